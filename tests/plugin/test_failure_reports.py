"""What reports say of a trial: why it failed, the ends of its logs, and the command that runs it again."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.records import record
from support.stage import Stage

from pytest_aorta.plugin.failures import failure_text, rerun_line
from pytest_aorta.settings import SETTINGS
from pytest_aorta.trials.result import TrialResult

FAULTY = Path(__file__).with_name("faulty_workloads.py")
NODE_ID = "aorta::fsdp[local-none-3]"
TOP = Path("/project")


def item(node_id: str = NODE_ID, *, here: Path = TOP, others: dict[str, Any] | None = None, **own: Any) -> pytest.Item:
    """As much of an item as is looked at; options as the command line gave them, ``own`` ones without ``aorta_``."""
    given = argparse.Namespace(**{each.ini: None for each in SETTINGS}, **(others or {}))
    for name, value in own.items():
        setattr(given, f"aorta_{name}", value)
    config = SimpleNamespace(option=given, rootpath=TOP, invocation_params=SimpleNamespace(dir=here))
    return cast(pytest.Item, SimpleNamespace(nodeid=node_id, config=config))


def failed(failure: dict[str, Any], **fields: Any) -> TrialResult:
    return TrialResult.from_dict(record(exit_status="workload_failed", failure=failure, **fields))


@pytest.mark.parametrize(
    ("rank", "confidence", "says"),
    [
        (1, "likely", "rank 1 is likely the cause: only it failed"),
        (None, "unknown", "the rank that is the cause is unknown: only it failed"),
        (1, "certain", ""),
    ],
)
def test_how_sure_the_cause_is_stands_below_it(tmp_path: Path, rank: int | None, confidence: str, says: str) -> None:
    failure = {"phase": "run", "kind": "exception", "message": "rank 1: boom", "rank": rank}
    trial = failed({**failure, "confidence": confidence, "evidence": "only it failed"})

    assert failure_text(trial, tmp_path / "trial_0.json", item()).splitlines()[1] == says


def test_a_detail_is_shown_once_and_not_where_the_failure_says_it(tmp_path: Path) -> None:
    details = [{"message": "loss is nan"}, {"step": 3, "message": "grad is nan"}] * 3
    result = {"passed": False, "failure_count": 6, "failure_details": details}
    trial = failed({"phase": "run", "kind": "result", "message": "loss is nan"}, result=result)

    lines = failure_text(trial, tmp_path / "trial_0.json", item()).splitlines()

    assert [line for line in lines if line.startswith("- ")] == ["- step: 3, message: grad is nan"]


@pytest.mark.parametrize(("wanted", "shown"), [("all", 2), ("stdout", 1), ("stderr", 1), ("log", 0), ("no", 0)])
def test_show_capture_decides_which_logs_are_shown(tmp_path: Path, wanted: str, shown: int) -> None:
    (tmp_path / "trial_3").mkdir()
    artifacts = {name: f"trial_3/{name}.log" for name in ("stdout", "stderr", "gone")}
    for name in ("stdout", "stderr"):
        (tmp_path / artifacts[name]).write_text("a line\n")
    trial = failed({"phase": "run", "kind": "result", "message": "no"}, artifacts=artifacts)
    text = failure_text(trial, tmp_path / "trial_3.json", item(others={"showcapture": wanted}))
    assert text.count("a line") == text.count("--- end of") == shown
    assert wanted == "all" or f"end of {wanted}" in text or not shown


# The command that runs one item again: from the same directory, with what its trial depends on, without secrets


def test_the_command_to_run_again_has_the_options_that_shape_the_plan() -> None:
    sets, node_id = ["none", "tf32_off,xnack"], "my tests/it's.py::A[local-none-0]"
    given = item(node_id, workload=["fsdp"], trials="8", mitigations=sets, config=["note=two words"])
    assert shlex.split(rerun_line(given)) == [
        *("pytest", "--aorta-workload", "fsdp", "--aorta-trials", "8"),
        *("--aorta-mitigations", "none", "--aorta-mitigations", "tf32_off,xnack"),
        *("--aorta-config", "note=two words", node_id),
    ]
    # Limits and configuration files of pytest are kept.
    others = {"timeout": 2.5, "inifilename": "other.ini", "rootdir": "..", "override_ini": ["x=1 2"], "verbose": 2}
    words = shlex.split(rerun_line(item(others=others)))
    assert words == ["pytest", "-c", "other.ini", "--rootdir", "..", "-o", "x=1 2", "--timeout", "2.5", NODE_ID]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"extra_env": ["TOKEN=hunter2,B=x,y", "C="]},
            ["--aorta-extra-env", "TOKEN=...,B=...", "--aorta-extra-env", "C=..."],
        ),
        ({"host": ["popen//env:TOKEN=hunter2//id=a"]}, ["--aorta-host", "popen//env:TOKEN=...//id=a"]),
        ({"others": {"override_ini": ["aorta_extra_env=TOKEN=hunter2"]}}, ["-o", "aorta_extra_env=..."]),
    ],
)
def test_the_command_to_run_again_names_variables_without_their_values(given: Any, words: list[str]) -> None:
    assert shlex.split(rerun_line(item(**given)))[1:-1] == words


@pytest.mark.parametrize(
    ("node_id", "here", "shown"),
    [
        ("sub/repro.py::Hangs[local-none-0]", TOP, "sub/repro.py::Hangs[local-none-0]"),
        ("sub/repro.py::Hangs[local-none-0]", TOP / "sub", "repro.py::Hangs[local-none-0]"),
        ("sub/repro.py::Hangs[local-none-0]", TOP / "other/below", "../../sub/repro.py::Hangs[local-none-0]"),
        (NODE_ID, TOP / "sub", NODE_ID),
    ],
)
def test_files_are_relative_to_the_directory_that_pytest_was_started_in(node_id: str, here: Path, shown: str) -> None:
    assert shlex.split(rerun_line(item(node_id, here=here))) == ["pytest", shown]


def test_a_passed_trial_has_the_ends_of_its_logs_as_captured_output(faulty: Stage) -> None:
    result = faulty.run_here("--aorta-workload", "passes", "-rP")
    result.stdout.fnmatch_lines(["*Captured stdout teardown*", "cleaned up"])
    faulty.run_here("--aorta-workload", "passes", "-rP", "--show-capture=no").stdout.no_fnmatch_line("cleaned up")


def test_the_table_is_printed_by_a_reporter_that_is_none_of_pytest_s(faulty: Stage) -> None:
    faulty.write(
        conftest="""
        import pytest

        class Short:
            '''Knows as little of a terminal as those of pytest-tldr and others do.'''
            verbosity = 0
            def __init__(self, config):
                self.config = config
                self.stats = {}
            def write(self, text, **markup): print(text, end="")
            def write_line(self, text, **markup): print(text)
            def write_sep(self, sep, title=None, **markup): print(sep, title, sep)
            @pytest.hookimpl(trylast=True)
            def pytest_unconfigure(self, config):
                config.hook.pytest_terminal_summary(terminalreporter=self, exitstatus=0, config=config)

        @pytest.hookimpl(trylast=True)
        def pytest_configure(config):
            config.pluginmanager.unregister(name="terminalreporter")
            config.pluginmanager.register(Short(config), "terminalreporter")
        """
    )
    result = faulty.run("--aorta-workload", "raises", "--aorta-trials", "5")
    result.stdout.fnmatch_lines(["= trials =", "*5 of 5*", "results: results"])
    assert "Error" not in result.stderr.str()
