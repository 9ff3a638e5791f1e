"""Shows failed trials: in pytest's reports, with a command that runs one again, and in its summary, which shows one or
two of many trials that failed alike, and counts the rest."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_aorta.common.texts import (
    counted,
    format_ranges,
    printable,
    read_tail,
)
from pytest_aorta.plugin import SUFFIXES, is_of_recipe
from pytest_aorta.plugin.compat import WithLines, add_reason, add_section, has_no_summary, longrepr_of
from pytest_aorta.plugin.run import PAYLOAD, run_of
from pytest_aorta.probe.health.meaning import after, hardware_events
from pytest_aorta.settings import SETTINGS
from pytest_aorta.trials.execution import KEPT_DAYS
from pytest_aorta.trials.tracebacks import stacks_excerpt, without_callers, without_runner

if TYPE_CHECKING:
    from pytest_aorta.triage.facts import Outcome
    from pytest_aorta.triage.signatures import Signature
    from pytest_aorta.trials.records import Failure
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.workspace.paths import TrialPaths


#: Options that a command for one item does not repeat.
_OF_THE_RUN = ("resume", "report", "shard", "where")

#: Options of pytest and pytest-timeout that a trial depends on, by their attribute of ``config.option``.
_OF_OTHERS = {"inifilename": "-c", "rootdir": "--rootdir", "override_ini": "-o", "timeout": "--timeout"}


def rerun_line(item: pytest.Item) -> str:
    """A command that runs just this item again."""
    return run_line(item.config, item.nodeid)


def run_line(config: pytest.Config, nodeid: str, more: Sequence[str] = ()) -> str:
    """A command that runs the items of a node id, in the directory in which pytest was started; ``more``: options.

    It repeats the options that shape the plan and its deadlines, without values of variables: they may be secrets.
    """
    given = list(more)
    for option in SETTINGS:
        if option.name in _OF_THE_RUN or option.scope != "option":
            continue
        for value in _given(config, option.ini):
            given.append(option.flag)
            if option.name == "extra-env":
                given.append(",".join(f"{name}=..." for name in option.parse(value)))
            elif option.name == "host":
                from pytest_aorta.runtime.hosts import without_values

                given.append(without_values(value))
            elif not option.is_switch:
                given.append(value)
    for name, flag in _OF_OTHERS.items():
        for value in _given(config, name):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            secret = text.startswith(("aorta_extra_env", "aorta_host"))
            given += [flag, text.partition("=")[0] + "=..." if secret else text]
    here, top = config.invocation_params.dir, config.rootpath
    path, separator, names = nodeid.partition("::")
    if here != top and path.endswith((".py", *SUFFIXES)):  # that of a plan is no path: it is the same everywhere
        nodeid = f"{os.path.relpath(top / path, here)}{separator}{names}"
    words = ["pytest"]
    for word in (*given, nodeid):
        if word.startswith("@"):  # for pytest, a word that begins so is a file of arguments
            words[-1] += f"={word}"
        else:
            words.append(word)
    return " ".join(map(shlex.quote, words))


def _given(config: pytest.Config, name: str) -> list[Any]:
    value = getattr(config.option, name, None)
    return value if isinstance(value, list) else [] if value is None else [value]


#: Lines of each log shown for a failed trial.
_TAIL_LINES = 15

#: Bytes that are read from the end of a log for these lines.
_TAIL_BYTES = 16_384

#: Entries of ``failure_details`` shown.
_DETAILS = 5

#: Suffixes of artifacts not worth quoting.
_FOR_MACHINES = ("evidence.json", "collectives.json")

#: Artifacts that are folders, with their meanings.
_FOLDERS = {"files": "its files", "tmp": f"its temporary files (kept for {KEPT_DAYS} days)"}

#: Keys of ``failure_details`` that are not shown.
_NOT_SHOWN = ("traceback", "at")


class TrialFailed(pytest.fail.Exception):  # type: ignore[name-defined,misc]  # an attribute of a function
    """Fails an item with a text and without a traceback; ``reason``: for the short summary."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text, pytrace=False)
        self.reason = reason or text.partition("\n")[0]


class TrialBroken(Exception):
    """Ends an item whose trial did not run: the workload is not what failed.

    It is no ``pytest.fail``, so that allure's report calls the item broken, and not failed.
    """

    def __init__(self, failure: TrialFailed) -> None:
        super().__init__(failure.reason)
        self.failure = failure


# Reporters print the name of the class with that of its module.
TrialFailed.__module__ = TrialBroken.__module__ = "builtins"


def failure_of(record: TrialResult, results: Path, paths: TrialPaths, item: pytest.Item) -> TrialFailed:
    text = failure_text(record, paths.file_in(results), item)
    was_elsewhere = record.request is not None and record.request.isolation != "none" and not record.ranks
    if was_elsewhere and getattr(item.config.option, "usepdb", False):
        inside = f"{rerun_line(item)} --pdb --aorta-isolation none"
        text += f"\nthe debugger is not in the trial, which was a process of its own. To debug inside: {inside}"
    return TrialFailed(text, short_reason(record))


def shown_failure(error: TrialFailed, item: pytest.Item) -> Any:
    """The report of a failed trial; empty with ``--tb=line`` if pytest's own line has the reason already."""
    is_line = getattr(item.config.option, "tbstyle", "auto") == "line"
    payload = item.stash.get(PAYLOAD, None)
    # pytest lists what it counts as an error without such a line.
    is_error = payload is None or payload.exit_status != "workload_failed"
    text = str(error) if not is_line else error.reason if is_error else ""
    return longrepr_of(text, *item.reportinfo()[:2], error.reason)


def short_reason(record: TrialResult) -> str:
    """The failure in one line, the important part first: in a narrow terminal, pytest cuts the end off."""
    failure = record.failure
    assert failure is not None
    lines = _what(failure).splitlines() or [""]
    reported = after(record.health.model_dump()) if record.health else ""
    ended = ", ".join(filter(None, (_status(record), reported)))
    return " ".join(printable(f"{lines[0]} ({ended})").split())


def _what(failure: Failure) -> str:
    kind = failure.type if failure.type and failure.kind == "exception" else ""
    return ": ".join(filter(None, (kind, failure.message)))


def _status(record: TrialResult) -> str:
    assert record.failure is not None
    phase = record.failure.phase
    if record.exit_status == "ok":  # only its cleanup and its exit can go wrong
        return f"{phase} failed"
    return f"{record.exit_status} at exit" if phase == "exit" else f"{record.exit_status} in {phase}"


def failure_text(record: TrialResult, file: Path, item: pytest.Item) -> str:
    """The failure, the ends of the logs, and a command that runs just this trial again; ``file`` has its record."""
    failure = record.failure
    assert failure is not None
    lines = [": ".join(filter(None, (_status(record), _what(failure))))]
    for event in hardware_events(record.health.model_dump()) if record.health else ():
        where = "the host" if event.place == "host" else event.place
        lines.append(f"hardware: {event.name} on {where}; {event.action}")
    if failure.confidence in ("likely", "unknown"):
        unknown = "the rank that is the cause is unknown"
        rank = unknown if failure.rank is None else f"rank {failure.rank} is likely the cause"
        lines.append(f"{rank}: {failure.evidence}")
    if failure.traceback and failure.kind == "exception":
        lines += ["", *without_callers(failure.traceback.rstrip().splitlines())]
    details: dict[str, None] = {}
    for detail in record.result.failure_details:
        message = f"rank {failure.rank}: {detail.get('message')}"
        if failure.rank is None or (failure.rank, failure.message) != (detail.get("rank"), message):
            shown = (f"{key}: {value}" for key, value in detail.items() if key not in _NOT_SHOWN)
            details["- " + ", ".join(shown)] = None
    details.pop(f"- message: {failure.message}", None)
    lines += list(details)[:_DETAILS]
    wanted = getattr(item.config.option, "showcapture", "all")
    for name, relative in record.artifacts.items():
        if relative.endswith(_FOR_MACHINES) or not (wanted == "all" or wanted in name):
            continue
        is_stacks = relative.endswith("stacks.log")
        tail = stacks_excerpt(file.parent / relative) if is_stacks else tail_of(file.parent / relative)
        if tail:
            lines += ["", f"--- {'' if is_stacks else 'end of '}{name} ({relative}) ---", *tail]
    lines += ["", f"trial file: {file}"]
    for name, what in _FOLDERS.items():
        if name in record.artifacts:
            lines.append(f"{what}: {file.parent / record.artifacts[name]}")
    kept = "remove the trial file, which the recipe keeps, then " if is_of_recipe(item.nodeid) else ""
    lines += [f"run it again: {kept}{rerun_line(item)}"]
    if record.request is not None and record.replay_of is None:
        lines.append(f"with the same seeds: pytest --aorta-replay {shlex.quote(str(file))}")
    return printable("\n".join(lines))


def tail_of(path: Path) -> list[str]:
    clean = printable(read_tail(path, _TAIL_BYTES))
    return without_runner(clean.rstrip().split("\n"))[-_TAIL_LINES:] if clean.strip() else []


def add_details(item: pytest.Item, record: TrialResult, results: Path, paths: TrialPaths) -> None:
    file = paths.file_in(results)
    artifacts = ", ".join(map("=".join, record.artifacts.items()))
    properties = {"aorta_cell": record.cell, "aorta_trial_file": str(file), "aorta_artifacts": artifacts}
    for name, text in properties.items():
        if text:
            item.user_properties.append((name, printable(text)))
    if record.failure is None:  # else its text has the ends of all logs
        for name in ("stdout", "stderr"):
            if name in record.artifacts and (tail := tail_of(file.parent / record.artifacts[name])):
                item.add_report_section("teardown", name, "\n".join(tail))


#: Trials of one test that are shown in full.
_IN_FULL = 3


def add_failed_trials(report: pytest.TestReport, item: pytest.Item) -> None:
    """Add the failed trials of a failed test to its report, and the reason of the first one to the short summary."""
    failed = [trial for trial in item.stash[PAYLOAD].trials if trial.result["exit_status"] != "ok"]
    if not failed:
        return
    from pytest_aorta.trials.result import TrialResult

    records = [TrialResult.from_dict(trial.result) for trial in failed[:_IN_FULL]]
    add_reason(report.longrepr, short_reason(records[0]))
    if item.config.option.tbstyle == "line":
        return
    results = run_of(item.config).results
    for trial, record in zip(failed, records, strict=False):
        title = printable(f"trial of {record.workload} in {record.cell}")
        add_section(report.longrepr, title, failure_text(record, results / trial.path, item))
    if len(failed) > _IN_FULL:
        files = "\n".join(str(results / trial.path) for trial in failed[_IN_FULL:])
        add_section(report.longrepr, f"{len(failed) - _IN_FULL} more failed trials", printable(files))


# Trials that have failed alike

#: Categories of reports, and their letters in ``-r``.
_CATEGORIES = {"error": "E", "failed": "f"}

#: Up to so many trials of a cell that failed alike are all shown; of more, so many.
_ALL, _FIRST = 3, 2

#: Most cells whose trials are shown, among those that failed alike.
_CELLS = 5

#: Most ranges of trial numbers in a line.
_MOST_RANGES = 6


class FailedAlike(NamedTuple):
    """A failed trial: its way to fail, its workload or action of a recipe, its cell, and its number."""

    way: tuple[Outcome, Signature]
    workload: str
    cell: str
    number: int


def fold_alike(nodeids: Iterable[str], failed: Mapping[str, FailedAlike]) -> tuple[set[str], dict[str, list[str]]]:
    """The items to hide; and, by node id of a shown item, lines that count the hidden ones that failed alike."""
    ways: dict[tuple[Outcome, Signature], dict[tuple[str, str], list[str]]] = {}
    for nodeid in nodeids:
        if nodeid in failed:
            way, workload, cell, _ = failed[nodeid]
            ways.setdefault(way, {}).setdefault((workload, cell), []).append(nodeid)
    several = len({workload for cells in ways.values() for workload, _ in cells}) > 1
    hidden: set[str] = set()
    lines: dict[str, list[str]] = {}
    for cells in ways.values():
        for number, (name, names) in enumerate(cells.items()):
            if number < _CELLS:
                shown = _FIRST if len(names) > _ALL else len(names)
                last, more, others = names[shown - 1], names[shown:], 0
            elif number == _CELLS:
                more = [each for further in list(cells.values())[_CELLS:] for each in further]
                others = len(cells) - _CELLS - 1
            else:
                break
            if more:
                hidden.update(more)
                which = f": trial{'s' * (len(more) > 1)} {ranges({failed[each].number for each in more})}"
                which = f" and {counted(others, 'other cell')}" if others else which
                where = f"{last.rpartition('::')[2]} in {' '.join(name) if several else name[1]}"
                text = f"... and {len(more)} more like {where}{which} (each has its file)"
                lines.setdefault(last, []).append(text)
    return hidden, lines


def ranges(numbers: Collection[int]) -> str:
    """Numbers as ``3-15, 17, 20-22``; only the first ranges of very many."""
    texts = format_ranges(numbers).split(",")
    return ", ".join([*texts[:_MOST_RANGES], "..."] if len(texts) > _MOST_RANGES else texts)


class FoldedSummary:
    """Switches the reports of a terminal reporter between all and a few of those that failed alike.

    It narrows the reporter's ``stats`` while pytest prints; other plugins, which print later, see all.
    """

    def __init__(self, terminal: pytest.TerminalReporter, failed: Mapping[str, FailedAlike]) -> None:
        self._terminal = terminal
        self._all = {category: terminal.stats[category] for category in _CATEGORIES if category in terminal.stats}
        self._shown: dict[str, list[Any]] = {}
        self._short_lines: list[str] = []
        for category, reports in self._all.items():
            hidden, lines = fold_alike([report.nodeid for report in reports if not _is_debugged(report)], failed)
            shown = [report for report in reports if report.nodeid not in hidden or _is_debugged(report)]
            self._shown[category] = []
            for report in shown:
                if (below := lines.get(report.nodeid)) and not _is_debugged(report):
                    report = copy.copy(report)
                    report.longrepr = WithLines(report.longrepr, below)
                self._shown[category].append(report)
            if terminal.hasopt(_CATEGORIES[category]):
                self._short_lines += [line for added in lines.values() for line in added]

    def show(self, *, everything: bool) -> None:
        """Show a few reports while pytest prints failures and its short summary; all while other plugins print."""
        self._terminal.stats.update(self._all if everything else self._shown)

    def print(self) -> None:
        if self._short_lines and not has_no_summary(self._terminal):
            for line in [*self._short_lines, "-v shows them all; each has its trial file"]:
                self._terminal.write_line(line)


def _is_debugged(report: Any) -> bool:
    return hasattr(report, "_pdbshown")
