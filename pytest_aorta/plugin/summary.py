"""What pytest's terminal shows of trials: the header, the words of their statuses, the summary."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.texts import first_names, printable
from pytest_aorta.launch.launch_mode import AS_TYPED
from pytest_aorta.plugin.verdict_table import table_lines
from pytest_aorta.triage.columns import counted
from pytest_aorta.triage.rates import smallest_fault
from pytest_aorta.trials.command_line import COMMAND_TARGET, launcher_in, line_of
from pytest_aorta.workspace.paths import HISTORY, repeat_of

if TYPE_CHECKING:
    import pytest

    from pytest_aorta.plan import Selection
    from pytest_aorta.plugin.run import FinishedTrial, Run
    from pytest_aorta.triage.facts import CellKey
    from pytest_aorta.triage.verdicts import Table
    from pytest_aorta.trials.execution import Resources


#: Differences shown; the trial file has all.
_MOST = 12


def replay_lines(result: Mapping[str, Any], start: Path) -> Iterator[str]:
    then = result["replay_of"]
    file = Path(then["file"])
    shown = file.relative_to(start) if file.is_relative_to(start) else file
    before, now = then["exit_status"], result["exit_status"]
    ended = f"{now}, as it was" if before == now else f"{now}, was {before}"
    yield f"replay of {shown} ({then['started_at'][:19]}): {ended}"
    differences = then["differences"]
    if not differences:
        yield "  the same request, seeds and surroundings, as far as the records say"
    for line in differences[:_MOST]:
        yield f"  differs now: {line}"
    if len(differences) > _MOST:
        yield f"  and {len(differences) - _MOST} more: see replay_of in the trial file"


class SideBySide:
    """What was imposed on trials that run beside others, and whether the cores suffice for them."""

    def __init__(self) -> None:
        self._trials = 0
        #: On how many trials each was imposed.
        self._imposed: Counter[str] = Counter()
        #: Of the trial with most threads for a core: that, what runs it, how many at a time; ranks, threads, cores.
        self._crowd: tuple[float, str, int, int, int, int] | None = None

    def add(self, result: Mapping[str, Any], resources: Resources) -> None:
        self._trials += 1
        beside = result.get("side_by_side")
        if beside is None:
            return
        what = counted(beside["workers"], "xdist worker") if beside["workers"] > 1 else counted(beside["slots"], "slot")
        self._imposed.update(_impositions(result["imposed"], what, resources))
        ranks, threads, cores = len(result["ranks"]) or 1, _threads(result), beside["cores"]
        if threads and cores:
            crowd = (ranks * threads / cores, what, beside["slots"] * beside["workers"], ranks, threads, cores)
            self._crowd = crowd if self._crowd is None else max(crowd, self._crowd)

    def lines(self, *, one_at_a_time: bool) -> Iterator[str]:
        """``one_at_a_time``: trials did not run side by side after all."""
        for text, trials in self._imposed.items():
            yield text if trials == self._trials else f"{text}; so for {trials} of {self._trials} trials"
        if self._crowd is None or one_at_a_time:
            return
        _, what, at_a_time, ranks, threads, cores = self._crowd
        together = min(at_a_time, self._trials)
        if together > 1 and together * ranks * threads > cores:
            processes = f"{what} x {counted(ranks, 'rank')}" if ranks > 1 else what
            yield (
                f"{processes} x {counted(threads, 'thread')} on {counted(cores, 'core')}: steps may take many times "
                "longer than alone (--aorta-slots=own-cores divides the cores)"
            )


def _impositions(imposed: Mapping[str, Any], what: str, resources: Resources) -> list[str]:
    found = []
    shares = [counted(len(imposed["cpus"]), "CPU")] if imposed["cpus"] is not None else []
    if imposed["threads"] is not None:
        shares.append(counted(imposed["threads"], "thread"))
    if shares:
        found.append(f"{what}: {' and '.join(shares)} per trial (own-cores)")
    if imposed["devices"] is not None:
        from pytest_aorta.runtime.resources.devices import devices_text

        number = counted(len(imposed["devices"]), "device") if imposed["devices"] else "no device"
        found.append(f"{number} per trial (--aorta-devices {devices_text(resources.devices or ())})")
    return found


def _threads(result: Mapping[str, Any]) -> int | None:
    env = result["env"]
    end = ((env.get("end") or {}).get("torch") or {}).get("threads")
    start = (env.get("process") or {}).get("torch_threads")
    threads = (end or start or {}).get("intraop")
    return threads if isinstance(threads, int) else None


#: Columns of a terminal that is narrower, or none, as pytest has it.
_NARROWEST = 80

#: Reasons that are shown for a result that was not kept.
_MOST_REASONS = 6

#: Different warnings that the summary shows; all are in the trial files.
_WARNINGS = 20


@dataclass
class CellSummary:
    trials: int = 0
    #: How many trials are ok only because their ranks were started again.
    restarted: int = 0
    #: How many trials did not run in their environment, and what the first of them has found.
    elsewhere: int = 0
    found_there: str = ""
    #: How many trials could run at a time, of how many trials.
    at_a_time: Counter[int] = field(default_factory=Counter)
    #: How many trials have each.
    warnings: Counter[str] = field(default_factory=Counter)


class Summary:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._cells: dict[CellKey, CellSummary] = {}
        self._beside = SideBySide()
        #: Earlier records that were removed from the history.
        self.pruned = 0
        #: How many trials had a result already.
        self._resumed = 0
        self._replays: list[str] = []
        #: How the repeats of trials have ended.
        self._repeats: Counter[str] = Counter()
        #: Why other earlier results were not kept, and how many.
        self._not_kept: Counter[str] = Counter()

    def add(self, trial: FinishedTrial, key: CellKey) -> None:
        result = trial.result
        if repeat_of(PurePosixPath(trial.path)):
            self._repeats[result["exit_status"]] += 1
            return
        self._resumed += trial.resumed
        if result.get("replay_of"):
            self._replays += replay_lines(result, self._run.config.invocation_params.dir)
        if trial.not_kept:
            self._not_kept[_listed(trial.not_kept)] += 1
        if not trial.resumed:
            self._beside.add(result, self._run.selection.resources)
        cell = self._cells.setdefault(key, CellSummary())
        cell.trials += 1
        cell.restarted += result["exit_status"] == "ok" and (result.get("elastic") or {}).get("restarts", 0) > 0
        place = result["execution_env"]
        if place.get("verified") is False:
            cell.elsewhere += 1
            wrong = [f"{claim['claim']}: {claim['found']}" for claim in place["claims"] if claim["verified"] is False]
            cell.found_there = cell.found_there or "; ".join(wrong)
        cell.warnings.update(set(result.get("warnings", ())))
        if beside := result.get("side_by_side"):
            cell.at_a_time[beside["slots"] * beside["workers"] * beside["hosts"]] += 1

    def print(self, terminal: pytest.TerminalReporter, table: Table, errors: Iterable[str]) -> None:
        """Print the cells with their verdicts, what went wrong in writing, and where the results are."""
        if not self._cells:
            return
        terminal.write_sep("=", "trials" if self._run.action is None else f"trials of {self._run.action}")
        for pieces in table_lines(table, max(_NARROWEST, shutil.get_terminal_size().columns)):
            for piece in pieces:
                terminal.write(piece.text, **{piece.colour: True} if piece.colour else {})
            terminal.write_line("")
        from pytest_aorta.triage.starts import where_it_starts

        for line in where_it_starts(table):
            terminal.write_line(printable(line))
        for line in table.warnings:
            terminal.write_line(printable(f"warning: {line}"), yellow=True)
        for line in self._warnings():
            terminal.write_line(line, yellow=True)
        for line in self._replays:
            terminal.write_line(line)
        for key, found in self._cells.items():
            name = " ".join(filter(None, (key.test, key.workload, key.cell, key.options)))
            if found.restarted:
                what = f"{counted(found.restarted, 'trial')} of {name}"
                terminal.write_line(f"{what} ok only after a restart of the ranks")
            if len(found.at_a_time) > 1:
                counts = " and ".join(f"{number} with {slots}" for slots, number in sorted(found.at_a_time.items()))
                terminal.write_line(f"trials of {name} ran with different numbers of slots: {counts}", yellow=True)
            if found.elsewhere:
                what = f"{counted(found.elsewhere, 'trial')} of {name} did not run in that environment"
                terminal.write_line(f"{what}: {found.found_there}", yellow=True)
        if self._repeats:
            what = ", ".join(f"{number} {status}" for status, number in sorted(self._repeats.items()))
            text = f"{counted(sum(self._repeats.values()), 'repeat')} of the same trials not in the table: {what}"
            terminal.write_line(f"{text} (for more trials: --aorta-trials)")
        if self._run.selection.resume:
            total = sum(cell.trials for cell in self._cells.values())
            is_asked_for = self._run.action is None  # a recipe resumes without being asked
            if self._resumed or is_asked_for:
                option = " (--aorta-resume)" if is_asked_for else ""
                terminal.write_line(f"{self._resumed} of {counted(total, 'trial')} had a result already{option}")
            for why, number in self._not_kept.items():
                terminal.write_line(f"{counted(number, 'earlier result')} not kept: {why}")
        for line in self._beside.lines(one_at_a_time=bool(self._run.held_by)):
            terminal.write_line(line)
        if self._run.held_by:
            code = ", ".join(self._run.held_by)
            terminal.write_line(f"one after the other, because of what runs before each trial: {code}")
        if self.pruned:
            kept = counted(self._run.selection.history, "run")
            gone = counted(self.pruned, "earlier record")
            terminal.write_line(f"history: {gone} removed, {kept} of each workload kept (aorta_history)")
        for error in errors:
            terminal.write_line(f"not written: {error}", red=True)
        earlier = self._run.results / HISTORY / self._run.runner.store.stamp
        if earlier.is_dir():
            terminal.write_line(f"earlier results: {_shown(self._run, earlier)}")
        terminal.write_line(f"results: {_shown(self._run)}")

    def _warnings(self) -> list[str]:
        lines = [
            printable(f"warning: {key.workload} {key.cell}: {text} ({counted(number, 'trial')})")
            for key, found in self._cells.items()
            for text, number in sorted(found.warnings.items())
        ]
        more = len(lines) - _WARNINGS
        return lines if more <= 0 else [*lines[:_WARNINGS], f"{counted(more, 'more warning')} in the trial files"]


def _listed(reasons: list[str]) -> str:
    more = len(reasons) - _MOST_REASONS
    return "; ".join([*reasons[:_MOST_REASONS], *([f"{counted(more, 'other change')}"] if more > 0 else [])])


def understood(result: Mapping[str, Any]) -> str:
    """What was understood of a command, from the record of its first trial."""
    found = result["result"].get("output") or {}
    launcher, ranks = launcher_in(str(result["config"].get("command", ""))), len(result["ranks"])
    if launcher is None and result.get("elastic"):
        launcher = "torchrun"
    parts = [f"{launcher}, {counted(ranks, 'rank')}" if launcher and ranks else launcher or "no launcher"]
    parts += [f"{pattern} matched {counted(lines, 'line')}" for pattern, lines in (found.get("matched") or {}).items()]
    steps = result["result"].get("executed_iterations")
    parts += [counted(steps, "step")] if steps is not None else []
    if "written" in found:  # else no process of Python has told
        parts.append(f"wrote {', '.join(found['written']) or 'no files here'}")
    if devices := (found.get("devices") or result["imposed"].get("devices")):
        parts.append(f"used {', '.join(map(str, devices))}")
    elif "devices" in found:
        parts.append("no GPU")
    return printable(f"aorta: {result['workload']}: {'; '.join(parts)}")


def header(run: Run) -> str:
    if run.replays:
        return f"aorta: {counted(len(run.replays), 'replay')}, results in {_shown(run)}"
    cells = sum(len(labels) for labels in run.plan.cells.values())
    size = f"{counted(len(run.plan.trials), 'trial')} in {counted(cells, 'cell')}"
    return f"aorta: plan {run.plan.digest}, {size}{_resources(run.selection.resources)}, results in {_shown(run)}"


def command_lines(run: Run) -> list[str]:
    """How commands are started; a trial may find out that its process cannot be forked."""
    path = os.environ.get("PATH", os.defpath)
    forked: list[str] = []
    typed: list[str] = []
    for spec in {spec.workload.name: spec for spec in run.plan.trials}.values():
        if spec.workload.target != COMMAND_TARGET:
            continue
        execution = spec.execution
        may_fork = execution.isolation == "fork" and execution.launcher != AS_TYPED
        line = line_of(spec.overrides["command"], path) if may_fork else None
        ranks = ", with its ranks" if line is not None and line.is_agent else ""
        (typed if line is None else forked).append(f"{spec.workload.name}{ranks}")
    lines = [f"in a fork of a prepared interpreter: {', '.join(first_names(forked, _MOST))}"] if forked else []
    return [
        f"aorta: {line}" for line in [*lines, *([f"as typed: {', '.join(first_names(typed, _MOST))}"] if typed else [])]
    ]


def forecast(run: Run) -> list[str]:
    """What the planned trials can show, where their number is set before."""
    cells = max((len(labels) for labels in run.plan.cells.values()), default=0)
    if cells < 2 or run.replays or run.selection.triage.sequential:
        return []
    trials = run.selection.trials
    rate = smallest_fault(trials, cells - 1)
    if rate is None:
        return [f"aorta: {counted(trials, 'trial')} of each cell can show no cure"]
    return [f"aorta: {counted(trials, 'trial')} of each cell: 90% power to show a cure of a fault of {rate:.0%}"]


def shard_line(selection: Selection) -> list[str]:
    """What part of all is run."""
    if selection.shard is None:
        return []
    number, count = selection.shard
    return [f"aorta: shard {number} of {count}"]


def _shown(run: Run, path: Path | None = None) -> Path:
    start, path = run.config.invocation_params.dir, path or run.results
    return path.relative_to(start) if path.is_relative_to(start) else path


def _resources(resources: Resources) -> str:
    found = [f"{resources.slots} slots"] if resources.slots > 1 else []
    if resources.hosts:
        from pytest_aorta.runtime.hosts import without_values

        hosts = ", ".join(map(without_values, resources.hosts))
        found = [f"{counted(resources.slots, 'slot')} on each of {hosts}"]
    if resources.devices:
        from pytest_aorta.runtime.resources.devices import are_named_only, devices_text, find_devices

        names = not resources.hosts and are_named_only(find_devices())
        found.append(f"devices {devices_text(resources.devices)}" + (" (names only: there is no GPU)" if names else ""))
    return "".join(f", {text}" for text in found)


def duration_text(seconds: float) -> str:
    """As it is typed: ``1h30m``."""
    parts, rest = [], seconds
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if rest >= length:
            number, rest = divmod(rest, length)
            parts.append(f"{number:g}{unit}")
    return "".join(parts) + (f"{rest:g}s" if rest or not parts else "")
