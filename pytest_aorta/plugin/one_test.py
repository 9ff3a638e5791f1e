"""A test as a workload: pytest runs it, and nothing else, in the process of its trial."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import _pytest
import pluggy
import pytest

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.plugin import ONE_TEST
from pytest_aorta.trials.outcome import CANNOT_JUDGE
from pytest_aorta.trials.records import Failure
from pytest_aorta.trials.workload import CommandResult

#: Options that do not apply inside, with their values there: the pytest outside chooses tests and writes reports.
NOT_INSIDE: Mapping[str, Any] = {
    **{"numprocesses": None, "maxprocesses": None, "tx": [], "dist": "no", "maxschedchunk": None, "looponfail": False},
    **{"keyword": "", "markexpr": "", "deselect": None, "collectonly": False, "pyargs": False, "count": 1},
    **{"lf": False, "failedfirst": False, "newfirst": False, "stepwise": False, "stepwise_skip": False},
    **{"cacheshow": None, "cacheclear": False, "basetemp": None, "maxfail": 0, "session_timeout": None},
    **{"usepdb": False, "usepdb_cls": None, "trace": False, "setuponly": False, "setupshow": False, "setupplan": False},
    **{"xmlpath": None, "htmlpath": None, "report_log": None, "allure_report_dir": None, "json_report": False},
    **{"durations": None, "pastebin": None},
}

#: Folders of the code that runs a test.
_RUNNERS = tuple(os.path.dirname(file) + os.sep for file in (_pytest.__file__, pluggy.__file__, __file__))


class OneTest:
    """Runs one test in a pytest of its own, whose output is the trial's log."""

    default_config: Mapping[str, Any] = {"test": "", "nodeid": "", "rootdir": "", "inifile": None, "arguments": []}

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def setup(self) -> None:
        """Set up nothing: fixtures belong to the test, so a fixture that fails fails the test."""

    def run(self) -> CommandResult:
        given = self._config
        arguments = [*given["arguments"], f"--rootdir={given['rootdir']}"]
        if given["inifile"] is not None:
            arguments += ["-c", given["inifile"]]
        seen = _Inside(given["nodeid"])
        status = pytest.main([*arguments, given["test"]], plugins=[seen])
        return seen.result(int(status))

    @classmethod
    def data_files(cls, config: Mapping[str, Any]) -> list[str]:
        file, top = Path(config["test"].partition("::")[0]), Path(config["rootdir"])
        folders = [folder for folder in file.parents if folder == top or top in folder.parents]
        files = [file, *(folder / "conftest.py" for folder in folders)]
        return [*(str(path) for path in files if path.is_file()), *filter(None, [config["inifile"]])]

    @classmethod
    def aorta_description(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        return {"source": config["test"].partition("::")[0]}


class _Inside:
    """The plugin in the process of the trial: deselects all other tests, and keeps the reports of this one."""

    def __init__(self, nodeid: str) -> None:
        self._nodeid = nodeid
        self._reports: list[pytest.TestReport] = []
        self._errors: dict[str, dict[str, str]] = {}
        self._not_collected: list[str] = []

    def pytest_plugin_registered(self, plugin: object, manager: pytest.PytestPluginManager) -> None:
        if plugin is self:
            manager.register(object(), ONE_TEST)  # its name tells ``hooks`` to leave everything as it is

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Generator[None, object, object]:
        for name, value in NOT_INSIDE.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        result = yield
        others = [item for item in items if item.nodeid != self._nodeid]
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if item.nodeid == self._nodeid]
        return result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._not_collected.append(report.longreprtext)
        elif report.skipped and isinstance(report.longrepr, tuple):
            self._not_collected.append(report.longrepr[2])

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and call.when not in self._errors:
            error = call.excinfo.value
            self._errors[call.when] = describe_exception(error.with_traceback(_of_the_test(error.__traceback__)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def result(self, status: int) -> CommandResult:
        durations = {report.when: report.duration for report in self._reports}
        # The first time counts: one that passes when it is run again has failed.
        failed = next((report for report in self._reports if report.outcome not in ("passed", "skipped")), None)
        skipped = next((report for report in self._reports if report.skipped), None)
        failure, outcome = None, "passed"
        if failed is not None:
            failure, outcome = self._failure(failed), "failed" if failed.when == "call" else "error"
        elif skipped is not None and hasattr(skipped, "wasxfail"):
            outcome = "xfailed"
        elif skipped is not None:
            reason = skipped.longrepr[2] if isinstance(skipped.longrepr, tuple) else skipped.longreprtext
            failure, outcome = Failure("run", "result", reason.removeprefix("Skipped: "), CANNOT_JUDGE), "skipped"
        elif "call" not in durations:
            said = "\n".join(self._not_collected) or f"pytest has ended with exit status {status} before its end"
            last = said.rstrip().rpartition("\n")[2].removeprefix("E").strip()
            failure, outcome = Failure("launch", "exception", last, NOT_COLLECTED, said), "not collected"
        elif any(hasattr(report, "wasxfail") for report in self._reports):
            outcome = "xpassed"
        metrics = {"outcome": outcome, **{f"{when}_sec": seconds for when, seconds in durations.items()}}
        return CommandResult(
            passed=failure is None,
            step_times_ms=[durations["call"] * 1000] if "call" in durations else [],
            elapsed_sec=sum(durations.values()),
            metrics=metrics,
            main_work_started=outcome not in ("skipped", "not collected"),
            failure=failure,
        )

    def _failure(self, report: pytest.TestReport) -> Failure:
        lines = report.longreprtext.rstrip().splitlines() or ["?"]
        error = self._errors.get(report.when or "") or {"message": lines[-1], "traceback": report.longreprtext}
        message = error["message"] if report.when == "call" else f"in {report.when}: {error['message']}"
        phase: Any = "setup" if report.when == "setup" else "run"
        return Failure(phase, "exception", message, error.get("type"), error["traceback"])


#: Type of a failure that says nothing about the test.
NOT_COLLECTED = "NotCollected"


def _of_the_test(traceback: TracebackType | None) -> TracebackType | None:
    frame = traceback
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_RUNNERS):
        frame = frame.tb_next
    return frame or traceback
