"""How a failed trial is shown: in pytest's report, with a command that runs it again, and in those of other plugins."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.common.texts import own_frames, read_tail, stacks_excerpt, without_runner
from pytest_aorta.common.texts import printable as printable
from pytest_aorta.plugin import SUFFIXES, is_of_recipe
from pytest_aorta.plugin.compat import longrepr_of
from pytest_aorta.plugin.run import PAYLOAD
from pytest_aorta.settings import SETTINGS
from pytest_aorta.trials.execution import KEPT_DAYS

if TYPE_CHECKING:
    from pytest_aorta.trials.records import Failure
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.workspace.paths import TrialPaths


#: Not repeated: the item has a result now, and a report is one of all trials.
_OF_THE_RUN = ("resume", "report", "shard", "where")

#: Options of pytest and pytest-timeout that a trial depends on, by where their values are.
_OF_OTHERS = {"inifilename": "-c", "rootdir": "--rootdir", "override_ini": "-o", "timeout": "--timeout"}


def rerun_line(item: pytest.Item) -> str:
    """A command for the directory that pytest was started in, which runs just this item again.

    It has the options that shape the plan and its deadlines. Values of variables are left out: they may be secrets.
    """
    searched = getattr(item.config.option, "aorta_minimize", None)
    command = ["pytest"] if searched is None else ["pytest-aorta", "minimize", searched]
    words = command
    for word in (*_own_options(item.config), *_other_options(item.config), shown_nodeid(item)):
        if word.startswith("@"):  # for pytest, a word that begins so is a file of arguments
            words[-1] += f"={word}"
        else:
            words.append(word)
    return " ".join(shlex.quote(word) for word in words)


def shown_nodeid(item: pytest.Item) -> str:
    here, top = item.config.invocation_params.dir, item.config.rootpath
    path, separator, names = item.nodeid.partition("::")
    # That of a plan is no path: it is the same everywhere.
    if here == top or not path.endswith((".py", *SUFFIXES)):
        return item.nodeid
    return f"{os.path.relpath(top / path, here)}{separator}{names}"


def _own_options(config: pytest.Config) -> Iterator[str]:
    for option in SETTINGS:
        given = getattr(config.option, option.ini, None)
        for value in given if isinstance(given, list) else [] if given is None else [given]:
            if option.name in _OF_THE_RUN or option.scope != "option":
                continue
            yield option.flag
            if option.name == "extra-env":
                yield ",".join(f"{name}=..." for name in option.parse(value))
            elif option.name == "host":
                from pytest_aorta.runtime.hosts import without_values

                yield without_values(value)
            elif not option.is_switch:
                yield value


def _other_options(config: pytest.Config) -> Iterator[str]:
    for name, flag in _OF_OTHERS.items():
        given = getattr(config.option, name, None)
        for value in given if isinstance(given, list) else [] if given is None else [given]:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            secret = text.startswith(("aorta_extra_env", "aorta_host"))
            yield from (flag, text.partition("=")[0] + "=..." if secret else text)


#: Lines of each log shown for a failed trial.
_TAIL_LINES = 15

#: Bytes read from the end of a log for that.
_TAIL_BYTES = 16_384

#: Entries of ``failure_details`` shown.
_DETAILS = 5

#: Ends of the names of artifacts whose ends say nothing to a reader.
_FOR_MACHINES = ("evidence.json", "collectives.json")

#: Folders among the artifacts, whatever is in them.
_FOLDERS = {"files": "its files", "tmp": f"its temporary files (kept for {KEPT_DAYS} days)"}

#: Keys of them that are not: a traceback has its own place, and the time is for machines.
_NOT_SHOWN = ("traceback", "at")


class TrialFailed(pytest.fail.Exception):  # type: ignore[name-defined,misc]  # an attribute of a function
    """Shown as text, without a traceback through pytest; ``reason`` stands in the short summary."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text, pytrace=False)
        self.reason = reason or text.partition("\n")[0]


class TrialBroken(Exception):
    """A trial that did not run, as its item's outcome: the workload is not what failed.

    Not a ``pytest.fail``: allure's report calls such a test failed, and one that ends with any other exception broken.
    """

    def __init__(self, failure: TrialFailed) -> None:
        super().__init__(failure.reason)
        self.failure = failure


# Reporters print the name of the class with that of its module.
TrialFailed.__module__ = TrialBroken.__module__ = "builtins"


def failure_of(record: TrialResult, results: Path, paths: TrialPaths, item: pytest.Item) -> TrialFailed:
    """How a trial has failed, as the outcome of its item."""
    text = failure_text(record, paths.file_in(results), item)
    was_elsewhere = record.request is not None and record.request.isolation != "none" and not record.ranks
    if was_elsewhere and getattr(item.config.option, "usepdb", False):
        inside = f"{rerun_line(item)} --pdb --aorta-isolation none"
        text += f"\nthe debugger is not in the trial, which was a process of its own. To debug inside: {inside}"
    return TrialFailed(text, short_reason(record))


def shown_failure(error: TrialFailed, item: pytest.Item) -> Any:
    """A failed trial in the report of its item; with ``--tb=line``, pytest's own line has the reason already."""
    is_line = getattr(item.config.option, "tbstyle", "auto") == "line"
    payload = item.stash.get(PAYLOAD, None)
    # pytest lists what it counts as an error without such a line.
    is_error = payload is None or payload.exit_status != "workload_failed"
    text = str(error) if not is_line else error.reason if is_error else ""
    return longrepr_of(text, *item.reportinfo()[:2], error.reason)


def short_reason(record: TrialResult) -> str:
    """One line. What has failed comes first: where a terminal is narrow, pytest cuts the end off."""
    failure = record.failure
    assert failure is not None
    lines = _what(failure).splitlines() or [""]
    return " ".join(printable(f"{lines[0]} ({_status(record)})").split())


def _what(failure: Failure) -> str:
    kind = failure.type if failure.type and failure.kind == "exception" else ""
    return ": ".join(part for part in (kind, failure.message) if part)


def _status(record: TrialResult) -> str:
    assert record.failure is not None
    # Only a cleanup can go wrong in a trial that is ok.
    return "cleanup failed" if record.exit_status == "ok" else f"{record.exit_status} in {record.failure.phase}"


def failure_text(record: TrialResult, file: Path, item: pytest.Item) -> str:
    """The failure, the ends of the logs, and a command that runs just this trial again; ``file`` has its record."""
    failure = record.failure
    assert failure is not None
    lines = [": ".join(part for part in (_status(record), _what(failure)) if part)]
    if failure.confidence in ("likely", "unknown"):
        rank = (
            "the rank that is the cause is unknown"
            if failure.rank is None
            else f"rank {failure.rank} is likely the cause"
        )
        lines.append(f"{rank}: {failure.evidence}")
    if failure.traceback and failure.kind == "exception":
        lines += ["", *own_frames(failure.traceback.rstrip().splitlines())]
    for detail in [detail for detail in record.result.failure_details if not _is(detail, failure)][:_DETAILS]:
        lines.append("- " + ", ".join(f"{key}: {value}" for key, value in detail.items() if key not in _NOT_SHOWN))
    for name, relative in record.artifacts.items():
        if relative.endswith(_FOR_MACHINES) or not _is_wanted(name, item):
            continue
        is_stacks = relative.endswith("stacks.log")
        tail = stacks_excerpt(file.parent / relative) if is_stacks else tail_of(file.parent / relative)
        if tail:
            lines += ["", f"--- {'' if is_stacks else 'end of '}{name} ({relative}) ---", *tail]
    lines += ["", f"trial file: {file}"]
    lines += [
        f"{what}: {file.parent / record.artifacts[name]}" for name, what in _FOLDERS.items() if name in record.artifacts
    ]
    kept = "remove the trial file, which the recipe keeps, then " if is_of_recipe(item.nodeid) else ""
    lines += [f"run it again: {kept}{rerun_line(item)}"]
    if record.request is not None and record.replay_of is None:
        lines.append(f"with the same seeds: pytest --aorta-replay {shlex.quote(str(file))}")
    return printable("\n".join(lines))


def _is_wanted(log: str, item: pytest.Item) -> bool:
    wanted = getattr(item.config.option, "showcapture", "all")
    return wanted == "all" or wanted in log


def _is(detail: dict[str, Any], failure: Failure) -> bool:
    return failure.rank is not None and (
        failure.rank == detail.get("rank") and failure.message == f"rank {failure.rank}: {detail.get('message')}"
    )


def tail_of(path: Path) -> list[str]:
    """The last lines of a log, as printable text; empty when there are none."""
    clean = printable(read_tail(path, _TAIL_BYTES))
    return without_runner(clean.rstrip().split("\n"))[-_TAIL_LINES:] if clean.strip() else []


#: Logs whose ends a passing trial's report has; a failing one's text has all of them.
_LOGS = ("stdout", "stderr")


def add_details(item: pytest.Item, record: TrialResult, results: Path, paths: TrialPaths) -> None:
    """Attach to an item what its last report is to say of its trial, which is over."""
    file = paths.file_in(results)
    artifacts = ", ".join(f"{name}={relative}" for name, relative in record.artifacts.items())
    properties = {"aorta_cell": record.cell, "aorta_trial_file": str(file), "aorta_artifacts": artifacts}
    item.user_properties += [(name, printable(text)) for name, text in properties.items() if text]
    if record.failure is None:
        for name in _LOGS:
            tail = tail_of(file.parent / record.artifacts[name]) if name in record.artifacts else []
            if tail:
                item.add_report_section("teardown", name, "\n".join(tail))
