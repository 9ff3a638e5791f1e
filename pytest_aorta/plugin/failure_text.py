"""The text of a failed trial in pytest's report."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.common.file_tail import read_tail
from pytest_aorta.common.terminal_text import printable as printable
from pytest_aorta.common.traceback_text import own_frames, without_runner
from pytest_aorta.plugin.rerun_command import rerun_line
from pytest_aorta.trials.place_variables import KEPT_DAYS

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_aorta.trials.result import Failure, TrialResult
    from pytest_aorta.workspace.paths import TrialPaths

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
    """Shown as text, without a traceback through pytest."""

    def __init__(self, text: str) -> None:
        super().__init__(text, pytrace=False)


class TrialBroken(Exception):
    """A trial that did not run, as its item's outcome: the workload is not what failed.

    Not a ``pytest.fail``: allure's report calls such a test failed, and one that ends with any other exception broken.
    """

    def __init__(self, failure: TrialFailed) -> None:
        super().__init__(str(failure).partition("\n")[0])
        self.failure = failure


# Reporters print the name of the class with that of its module.
TrialFailed.__module__ = TrialBroken.__module__ = "builtins"


def failure_text(record: TrialResult, results: Path, paths: TrialPaths, item: pytest.Item) -> str:
    """The failure, the ends of the logs, and a command that runs just this trial again."""
    failure = record.failure
    assert failure is not None
    kind = failure.type if failure.type and failure.kind == "exception" else ""
    # Only a cleanup can go wrong in a trial that is ok.
    what = "cleanup failed" if record.exit_status == "ok" else f"{record.exit_status} in {failure.phase}"
    lines = [": ".join(part for part in (what, kind, failure.message) if part)]
    if failure.traceback and failure.kind == "exception":
        lines += ["", *own_frames(failure.traceback.rstrip().splitlines())]
    for detail in [detail for detail in record.result.failure_details if not _is(detail, failure)][:_DETAILS]:
        lines.append("- " + ", ".join(f"{key}: {value}" for key, value in detail.items() if key not in _NOT_SHOWN))
    for name, relative in record.artifacts.items():
        if relative.endswith(_FOR_MACHINES):
            continue
        tail = tail_of(paths.file_in(results).parent / relative)
        if tail:
            lines += ["", f"--- end of {name} ({relative}) ---", *tail]
    lines += ["", f"trial file: {paths.file_in(results)}"]
    lines += [
        f"{what}: {paths.file_in(results).parent / record.artifacts[name]}"
        for name, what in _FOLDERS.items()
        if name in record.artifacts
    ]
    lines += [f"run it again: {rerun_line(item)}"]
    if record.request is not None and record.replay_of is None:
        lines.append(f"with the same seeds: pytest --aorta-replay {shlex.quote(str(paths.file_in(results)))}")
    return printable("\n".join(lines))


def _is(detail: dict[str, Any], failure: Failure) -> bool:
    """Whether an entry of ``failure_details`` is the failure of a rank that is shown already."""
    return failure.rank is not None and (
        failure.rank == detail.get("rank") and failure.message == f"rank {failure.rank}: {detail.get('message')}"
    )


def tail_of(path: Path) -> list[str]:
    """The last lines of a log, as printable text; empty when there are none."""
    clean = printable(read_tail(path, _TAIL_BYTES))
    return without_runner(clean.rstrip().split("\n"))[-_TAIL_LINES:] if clean.strip() else []
