"""The terminal's view of trials: the header, the table of cells with verdicts, and the lines below it."""

from __future__ import annotations

import os
import shutil
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_aorta.common.texts import counted, first_names, one_line, printable
from pytest_aorta.launch.launch_mode import AS_TYPED, FORKS
from pytest_aorta.plan import SEARCHES
from pytest_aorta.plugin.compat import terminal_width
from pytest_aorta.triage.columns import COLUMNS, MEANINGS, Column, conclusions
from pytest_aorta.triage.facts import LOSSES, CellKey, warnings_in
from pytest_aorta.triage.judging import VerdictKind
from pytest_aorta.triage.matrix import MATRIX_MD
from pytest_aorta.triage.power import smallest_fault, trials_needed
from pytest_aorta.triage.verdicts import Row, Table
from pytest_aorta.trials.command_line import COMMAND_TARGET, launcher_in, line_of
from pytest_aorta.workspace.paths import HISTORY, TrialPaths

if TYPE_CHECKING:
    import pytest

    from pytest_aorta.plugin.run import RecordToWrite, SessionRun

#: Most differences of a replay that are shown; and most names of commands.
_MOST = 12

#: Least columns of the table, also for a narrower terminal.
_NARROWEST = 80

#: Most reasons that are shown why earlier results were not kept.
_MOST_REASONS = 6

#: Phases in which ranks run; least trials, and least share of their time, for a line about imports.
_OF_A_TRIAL, _FEWEST, _SHARE = ("setup", "run", "cleanup", "exit"), 2, 0.25

#: Most warnings that the summary shows; the trial files have all.
_WARNINGS = 20


@dataclass
class CellSummary:
    trials: int = 0
    #: Trials that are ok only because their ranks were restarted.
    restarted: int = 0
    #: Trials that did not run in their environment; and what the first one saw instead.
    elsewhere: int = 0
    found_there: str = ""
    #: Number of slots to number of trials that ran with so many.
    at_a_time: Counter[int] = field(default_factory=Counter)
    #: Trials that are ok although their process ended badly; and the message of the first one.
    bad_ends: int = 0
    bad_end: str = ""
    #: How the last trial was started, and why.
    how_started: str = ""
    #: For each trial whose ranks are forks: seconds of imports by module, and seconds of all phases.
    imports: list[tuple[dict[str, float], float]] = field(default_factory=list)
    #: Warning to number of trials that have it.
    warnings: Counter[str] = field(default_factory=Counter)


class TerminalSummary:
    def __init__(self, run: SessionRun) -> None:
        self._run = run
        self._cells: dict[CellKey, CellSummary] = {}
        #: Earlier records that were removed from the history.
        self.pruned = 0
        #: Number of trials that had a result already.
        self._resumed = 0
        self._replays: list[str] = []
        #: Exit status to number of repeats of trials.
        self._repeats: Counter[str] = Counter()
        #: Reason to number of earlier results that were not kept.
        self._not_kept: Counter[str] = Counter()
        #: What was imposed on trials that ran side by side, with the number of these trials.
        self._imposed: Counter[str] = Counter()
        #: The trial with most threads per core: this ratio, what runs it, how many at a time; ranks, threads, cores.
        self._crowd: tuple[float, str, int, int, int, int] | None = None

    def add(self, trial: RecordToWrite, key: CellKey) -> None:
        result = trial.result
        if TrialPaths(PurePosixPath(trial.path)).repeat:
            self._repeats[result["exit_status"]] += 1
            return
        self._resumed += trial.resumed
        if result.get("replay_of"):
            self._replays += replay_lines(result, self._run.config.invocation_params.dir)
        if trial.not_kept:
            more = len(trial.not_kept) - _MOST_REASONS
            others = [counted(more, "other change")] if more > 0 else []
            self._not_kept["; ".join([*trial.not_kept[:_MOST_REASONS], *others])] += 1
        cell = self._cells.setdefault(key, CellSummary())
        cell.trials += 1
        failure = result.get("failure") or {}
        if result["exit_status"] == "ok" and failure.get("phase") == "exit":
            cell.bad_ends += 1
            cell.bad_end = cell.bad_end or failure["message"]
        cell.how_started = result.get("how_started") or cell.how_started
        if result.get("zygote") is not None and (phases := result.get("phases_sec", {})):
            cell.imports.append((result.get("imports_sec", {}), sum(phases.get(name, 0.0) for name in _OF_A_TRIAL)))
        cell.restarted += result["exit_status"] == "ok" and (result.get("elastic") or {}).get("restarts", 0) > 0
        place = result["execution_env"]
        if place.get("verified") is False:
            cell.elsewhere += 1
            wrong = [f"{claim['claim']}: {claim['found']}" for claim in place["claims"] if claim["verified"] is False]
            cell.found_there = cell.found_there or "; ".join(wrong)
        cell.warnings.update(set(warnings_in(result)))
        beside, imposed, env = result.get("side_by_side"), result["imposed"], result["env"]
        if not beside:
            return
        cell.at_a_time[beside["slots"] * beside["workers"] * beside["hosts"]] += 1
        if trial.resumed:
            return
        what = counted(beside["workers"], "xdist worker") if beside["workers"] > 1 else counted(beside["slots"], "slot")
        shares = [counted(len(imposed["cpus"]), "CPU")] if imposed["cpus"] is not None else []
        if imposed["threads"] is not None:
            shares.append(counted(imposed["threads"], "thread"))
        if shares:
            self._imposed[f"{what}: {' and '.join(shares)} per trial (own-cores)"] += 1
        if imposed["devices"] is not None:
            from pytest_aorta.runtime.resources.devices import devices_text

            number = counted(len(imposed["devices"]), "device") if imposed["devices"] else "no device"
            given = devices_text(self._run.selection.resources.devices or ())
            self._imposed[f"{number} per trial (--aorta-devices {given})"] += 1
        end = ((env.get("end") or {}).get("torch") or {}).get("threads")
        threads = (end or (env.get("process") or {}).get("torch_threads") or {}).get("intraop")
        ranks, cores = len(result["ranks"]) or 1, beside["cores"]
        if isinstance(threads, int) and threads and cores:
            crowd = (ranks * threads / cores, what, beside["slots"] * beside["workers"], ranks, threads, cores)
            self._crowd = crowd if self._crowd is None else max(crowd, self._crowd)

    def print(self, terminal: pytest.TerminalReporter, table: Table, errors: Iterable[str]) -> None:
        if not self._cells:
            return
        run = self._run
        terminal.write_sep("=", "trials" if run.action is None else f"trials of {run.action}")
        # A bisection has a table of its own, of positions.
        pieces_of_lines = table_lines(table, max(_NARROWEST, shutil.get_terminal_size().columns))
        for pieces in pieces_of_lines if not run.selection.has_own_table else ():
            for piece in pieces:
                terminal.write(piece.text, **{piece.colour: True} if piece.colour else {})
            terminal.write_line("")
        for text, colour in self._lines(table):
            terminal.write_line(text, **{colour: True} if colour else {})
        for error in errors:
            terminal.write_line(f"not written: {error}", red=True)
        earlier = run.results / HISTORY / run.runner.store.stamp
        if earlier.is_dir():
            terminal.write_line(f"earlier results: {_shown(run, earlier)}")
        terminal.write_line(f"results: {_shown(run)}")

    def _lines(self, table: Table) -> Iterator[tuple[str, str]]:
        """Lines below the table, each with its colour: about the table, about each cell, about all trials."""
        from pytest_aorta.triage.starts import where_it_starts

        for line in where_it_starts(table):
            yield printable(line), ""
        for line in table.warnings:
            yield printable(f"warning: {line}"), "yellow"
        lines = [
            printable(f"warning: {key.workload} {key.cell}: {text} ({counted(number, 'trial')})")
            for key, cell in self._cells.items()
            for text, number in sorted(cell.warnings.items())
        ]
        if (more := len(lines) - _WARNINGS) > 0:
            lines[_WARNINGS:] = [f"{counted(more, 'more warning')} in the trial files"]
        for line in lines:
            yield line, "yellow"
        for line in self._replays:
            yield line, ""
        for key, cell in self._cells.items():
            if cell.restarted:
                yield f"{counted(cell.restarted, 'trial')} of {key.label} ok only after a restart of the ranks", ""
            if cell.bad_ends:
                yield (
                    f"{counted(cell.bad_ends, 'trial')} of {key.label} ok, but not its end: {cell.bad_end}",
                    "yellow",
                )
            if len(cell.at_a_time) > 1:
                counts = " and ".join(f"{number} with {slots}" for slots, number in sorted(cell.at_a_time.items()))
                yield f"trials of {key.label} ran with different numbers of slots: {counts}", "yellow"
            if cell.elsewhere:
                what = f"{counted(cell.elsewhere, 'trial')} of {key.label} did not run in that environment"
                yield f"{what}: {cell.found_there}", "yellow"
        run, total = self._run, sum(cell.trials for cell in self._cells.values())
        if run.config.get_verbosity() > 0:
            for key, cell in self._cells.items():
                yield f"starts of {key.label}: {cell.how_started}", ""
        elif any(cell.how_started == FORKS for cell in self._cells.values()):
            yield f"{FORKS}, and is what --aorta-isolation fork means", ""
        yield from ((line, "") for line in preload_lines(self._cells.values(), run.selection.execution.preload))
        if self._repeats:
            what = ", ".join(f"{number} {status}" for status, number in sorted(self._repeats.items()))
            text = f"{counted(sum(self._repeats.values()), 'repeat')} of the same trials not in the table: {what}"
            yield f"{text} (for more trials: --aorta-trials)", ""
        if run.selection.resume:
            is_asked_for = run.action is None  # a recipe resumes without being asked
            if self._resumed or is_asked_for:
                option = " (--aorta-resume)" if is_asked_for else ""
                yield f"{self._resumed} of {counted(total, 'trial')} had a result already{option}", ""
            for why, number in self._not_kept.items():
                yield f"{counted(number, 'earlier result')} not kept: {why}", ""
        new = total - self._resumed
        for text, trials in self._imposed.items():
            yield text if trials == new else f"{text}; so for {trials} of {new} trials", ""
        if run.held_by:
            yield f"one after the other, because of what runs before each trial: {', '.join(run.held_by)}", ""
        elif self._crowd is not None:
            _, what, at_a_time, ranks, threads, cores = self._crowd
            together = min(at_a_time, new)
            if together > 1 and together * ranks * threads > cores:
                processes = f"{what} x {counted(ranks, 'rank')}" if ranks > 1 else what
                crowd = f"{processes} x {counted(threads, 'thread')} on {counted(cores, 'core')}"
                slow = "steps may take many times longer than alone (--aorta-slots=own-cores divides the cores)"
                yield f"{crowd}: {slow}", ""
        if self.pruned:
            kept = counted(run.selection.history, "run")
            gone = counted(self.pruned, "earlier record")
            yield f"history: {gone} removed, {kept} of each workload kept (aorta_history)", ""


def preload_lines(cells: Iterable[CellSummary], preload: str | tuple[str, ...]) -> Iterator[str]:
    """Lines on imports that take more than a quarter of a trial, and that ``--aorta-preload`` would do once."""
    trials = [each for cell in cells for each in cell.imports]
    if len(trials) < _FEWEST or preload == "none":
        return
    for module in sorted({name for imports, _ in trials for name in imports}):
        spent = statistics.median(imports.get(module, 0.0) for imports, _ in trials)
        lasts = statistics.median(sec for _, sec in trials)
        if spent > _SHARE * lasts:
            names = ",".join([*(preload if isinstance(preload, tuple) else ()), module])
            yield (
                f"the first rank of a trial imports {module} for {spent:.1f} of {lasts:.1f} s: "
                f"--aorta-preload {names} does it once for each start"
            )


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


def understood(result: Mapping[str, Any]) -> str:
    output = result["result"].get("output") or {}
    launcher, ranks = launcher_in(str(result["config"].get("command", ""))), len(result["ranks"])
    if launcher is None and result.get("elastic"):
        launcher = "torchrun"
    parts = [f"{launcher}, {counted(ranks, 'rank')}" if launcher and ranks else launcher or "no launcher"]
    parts += [f"{pattern} matched {counted(lines, 'line')}" for pattern, lines in (output.get("matched") or {}).items()]
    steps = result["result"].get("executed_iterations")
    parts += [counted(steps, "step")] if steps is not None else []
    if devices := (output.get("devices") or result["imposed"].get("devices")):
        parts.append(f"used {', '.join(map(str, devices))}")
    elif "devices" in output:
        parts.append("no GPU")
    return printable(f"aorta: {result['workload']}: {'; '.join(parts)}")


def header(run: SessionRun) -> list[str]:
    """Lines on the plan, the start of commands, what so many trials can show, and the shard."""
    selection, lines = run.selection, list[str]()
    if run.chosen is not None and run.replays:
        lines.append(f"{counted(len(run.replays), 'replay')}, results in {_shown(run)}")
    elif run.chosen is not None:
        lines += _of_plan(run)
    if selection.shard is not None:
        lines.append(f"shard {selection.shard[0]} of {selection.shard[1]}")
    return [f"aorta: {line}" for line in lines]


def _of_plan(run: SessionRun) -> Iterator[str]:
    resources, cells = run.selection.resources, [*run.plan.cells.values()]
    parts = [f"plan {run.plan.digest}"]
    if run.selection.searches:
        what = next(name for name in SEARCHES if getattr(run.selection, name))
        parts.append(f"{what}: {counted(run.selection.max_trials, 'trial')} at most")
    else:
        parts.append(f"{counted(len(run.plan.trials), 'trial')} in {counted(sum(map(len, cells)), 'cell')}")
    if resources.hosts:
        from pytest_aorta.runtime.hosts import without_values

        hosts = ", ".join(map(without_values, resources.hosts))
        parts.append(f"{counted(resources.slots, 'slot')} on each of {hosts}")
    elif resources.slots > 1:
        parts.append(f"{resources.slots} slots")
    if resources.devices:
        from pytest_aorta.runtime.resources.devices import are_named_only, devices_text, find_devices

        names = not resources.hosts and are_named_only(find_devices())
        parts.append(f"devices {devices_text(resources.devices)}" + (" (names only: there is no GPU)" if names else ""))
    yield ", ".join([*parts, f"results in {_shown(run)}"])
    # How commands are started; a trial may find out that its process cannot be forked.
    commands_by_way: dict[str, list[str]] = {"in a fork of a prepared interpreter": [], "as typed": []}
    forked, typed = commands_by_way.values()
    for spec in {spec.workload.name: spec for spec in run.plan.trials}.values():
        if spec.workload.target == COMMAND_TARGET:
            may_fork = spec.execution.isolation == "fork" and spec.execution.launcher != AS_TYPED
            path = os.environ.get("PATH", os.defpath)
            line = line_of(spec.overrides["command"], path) if may_fork else None
            ranks = ", with its ranks" if line is not None and line.is_agent else ""
            (typed if line is None else forked).append(f"{spec.workload.name}{ranks}")
    for how, commands in commands_by_way.items():
        if commands:
            yield f"{how}: {', '.join(first_names(commands, _MOST))}"
    # What the planned trials can show, where their number is set before.
    most = max(map(len, cells), default=0)
    if most > 1 and run.selection.stop.power:
        confirm = run.selection.triage.confirm
        known = [(rate, trials_needed(rate, most - 1, sequential=True, confirm=confirm)) for rate in (0.3, 0.1)]
        numbers = ", ".join(f"at {rate:.0%} {number} trials of each" for rate, number in known)
        numbers += f", {run.selection.trials} at most"
        yield f"until each cell is decided, or has had 90% power to show a cure: {numbers}"
    if most > 1 and not run.selection.triage.sequential:
        trials, rate = counted(run.selection.trials, "trial"), smallest_fault(run.selection.trials, most - 1)
        shows = " can show no cure" if rate is None else f": 90% power to show a cure of a fault of {rate:.0%}"
        yield f"{trials} of each cell{shows}"


def _shown(run: SessionRun, path: Path | None = None) -> Path:
    start, path = run.config.invocation_params.dir, path or run.results
    return path.relative_to(start) if path.is_relative_to(start) else path


# The table, in the width of the terminal

#: Most cells that are shown one by one: the most telling ones.
MOST_CELLS = 40

#: With more cells than this, each way to fail is shown only once.
_FEW_CELLS = 12

#: Most operators that are shown per cell.
_MOST_OPERATORS = 3

#: Most ways to fail that are shown per cell.
_MOST_WAYS = 4

_GAP = "  "

_COLOURS: Mapping[VerdictKind, str] = {
    "fixes": "green",
    "reduces": "yellow",
    "undecided": "yellow",
    "worse": "red",
    "error": "red",
    "did not run": "red",
    "exchanges": "red",
    "leaves": "yellow",
    "confounded": "yellow",
    "slower": "yellow",
    "faster": "yellow",
    "similar": "light",
    "no cure": "light",
    "baseline": "light",
    "second baseline": "light",
    "not read": "light",
}


class Piece(NamedTuple):
    """A part of a line; ``colour``: a name of pytest's terminal writer, or empty."""

    text: str
    colour: str = ""


Line = tuple[Piece, ...]


def table_lines(table: Table, width: int) -> list[Line]:
    """Lines of the table, of further facts below each cell, and of the conclusion; none is wider than ``width``."""
    rows = shown = [row for row in table.rows if row.cell.total]
    if len(rows) > MOST_CELLS:
        importance = list(MEANINGS)
        chosen = sorted(rows, key=lambda row: importance.index(row.verdict.kind))[:MOST_CELLS]
        keys = {row.cell.key for row in chosen}
        shown = [row for row in rows if row.cell.key in keys]
    names = _names(rows, width)
    unwanted = {"verdict"} if not any(row.has_verdict for row in shown) else set()
    compared = [row for row in shown if row.comparison is not None]
    if table.settings.speed and compared and all(row.is_on_speed for row in compared):
        unwanted |= {"verdict"}  # the column of the speed begins with it
    longest = max([len("cell"), *(terminal_width(names[row.cell.key][-1]) for row in shown)])
    # Names come first: for them, slower steps are a line below, and verdicts are short.
    tries: tuple[tuple[set[str], bool], ...] = ((unwanted, True), ({*unwanted, "speed"}, True), ({"speed"}, False))
    for without, has_long_verdicts in tries[:1] if table.settings.speed else tries:
        columns = [each for each in COLUMNS if "terminal" in each.formats and each.key not in {*without, *unwanted}]
        columns = [column for column in columns if column.says_something(shown)]
        short = set() if has_long_verdicts else {"verdict"}
        texts = {
            row.cell.key: [row.verdict.kind if it.key in short else it.short_text_of(row) for it in columns]
            for row in shown
        }
        titles = [column.title.lower() for column in columns]
        widths = [max(map(terminal_width, each)) for each in zip(titles, *texts.values(), strict=True)]
        room = width - sum(len(_GAP) + each for each in widths)
        if room >= longest:
            break
    has_speeds = any(column.key == "speed" for column in columns)
    aligned = [(column, each) for column, each in zip(columns, widths, strict=True)]
    name_width = min(room, longest)
    lines = [_row("cell", titles, name_width, aligned)]
    heading = ""
    seen: set[str] = set()
    for row in shown:
        above, name = names[row.cell.key]
        if above and above != heading:
            lines.append((Piece(shortened(above, width), "bold"),))
        heading = above
        if terminal_width(name) > name_width:
            lines.append((Piece(shortened(name, width)),))
            name = ""
        lines.append(_row(name, texts[row.cell.key], name_width, aligned, _COLOURS[row.verdict.kind]))
        for note in _notes(row, has_long_verdicts, has_speeds, seen if len(shown) > _FEW_CELLS else set()):
            lines.append((Piece(shortened(f"    {note.text}", width), note.colour),))
    if folded := Counter(row.verdict.kind for row in rows if row.cell.key not in texts):
        listing = ", ".join(f"{number} {kind}" for kind, number in folded.items())
        text = f"and {counted(folded.total(), 'more cell')}, {listing}: see {MATRIX_MD} in the results"
        lines += [(Piece(line),) for line in _wrapped(text, width)]
    for sentence in conclusions(table):
        lines += [(Piece(line, "bold"),) for line in _wrapped(sentence, width)]
    if any(row.comparison and row.comparison.method == "sequential" for row in rows):
        lines.append((Piece("p and verdicts allow for a number of trials that was not fixed before", "light"),))
    return lines


def shortened(text: str, width: int) -> str:
    """A text on one line; if it is wider than ``width``, without its middle."""
    indent = " " * (len(text) - len(text.lstrip(" ")))
    text = indent + one_line(text)
    if terminal_width(text) <= width:
        return text
    left, right = 0, len(text)
    room = width - 3
    while room > 0:
        # One character from the left, then one from the right.
        take_left = left <= len(text) - right
        char = text[left] if take_left else text[right - 1]
        room -= terminal_width(char)
        if room < 0:
            break
        left, right = (left + 1, right) if take_left else (left, right - 1)
    return f"{text[:left]}...{text[right:]}"


#: A name longer than this share of the table's width loses what all cells have in common.
_LONG_NAME = 0.3


def _shared(cells: Sequence[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Names of cells without what all their environments and mitigations have in common.

    This may be the environment, and a prefix of all variables: ``local-none`` and
    ``local-MYLIB_FAST_ATTN=0+MYLIB_FUSED_ADAM=0`` become ``none`` and ``FAST_ATTN=0 FUSED_ADAM=0``.
    """
    names = {name.partition("=")[0] for _, mitigations in cells for name in mitigations if "=" in name}
    words = [name.split("_")[:-1] for name in names]
    common = list(takewhile(lambda each: len(set(each)) == 1, zip(*words, strict=False))) if len(names) > 1 else []
    start = "".join(f"{each[0]}_" for each in common)
    several = len({environment for environment, _ in cells}) > 1
    return [
        " ".join([*([environment] if several else []), *(name.removeprefix(start) for name in mitigations)])
        for environment, mitigations in cells
    ]


def _names(rows: Sequence[Row], width: int) -> dict[CellKey, tuple[str, str]]:
    """Heading and name of each cell: a heading and an indented name, or an empty heading and all in one name.

    Long names are shortened. Cells with equal names, which differ for instance in values of variables, are numbered.
    """
    cells = [row.cell for row in rows]
    labels_of = {cell.key: cell.key.cell for cell in cells}
    if len(cells) > 1 and max(terminal_width(cell.key.cell) for cell in cells) > _LONG_NAME * width:
        short = _shared([(cell.environment, cell.mitigations) for cell in cells])
        whole = [f"{cell.environment}-{'+'.join(cell.mitigations)}" == cell.key.cell for cell in cells]
        if all(whole) and len({(cell.key.test, cell.key.workload, cell.key.options, text)
                               for cell, text in zip(cells, short, strict=True)}) == len(cells):  # fmt: skip
            labels_of = dict(zip(labels_of, short, strict=True))
    groups: dict[tuple[str, str, str], list[tuple[CellKey, str]]] = {}
    alike: Counter[tuple[str, str, str, str]] = Counter()
    for key in (row.cell.key for row in rows):
        shown = (key.test, key.workload, key.options, key.cell)
        alike[shown] += 1
        label = f"{key.cell} #{alike[shown]}" if alike[shown] > 1 else labels_of[key]
        groups.setdefault(shown[:3], []).append((key, label))
    names = {}
    for (test, workload, options), labels in groups.items():
        heading = one_line(f"{test} {workload} {options}")
        for key, label in labels:
            alone = one_line(f"{test} {workload} {label} {options}")
            names[key] = ("", alone) if len(labels) == 1 else (heading, f"  {one_line(label)}")
    return names


def _row(
    name: str, texts: Sequence[str], name_width: int, columns: Sequence[tuple[Column[Row], int]], colour: str = ""
) -> Line:
    pieces = [Piece(name + " " * (name_width - terminal_width(name)))]
    for text, (column, width) in zip(texts, columns, strict=True):
        space = " " * (width - terminal_width(text))
        padded = f"{_GAP}{text}{space}" if column.left else f"{_GAP}{space}{text}"
        pieces.append(Piece(padded, colour if column.key == "verdict" else ""))
    while not pieces[-1].text.strip():
        pieces.pop()
    pieces[-1] = Piece(pieces[-1].text.rstrip(), pieces[-1].colour)
    return tuple(pieces)


def _notes(row: Row, has_long_verdicts: bool, has_speeds: bool, seen: set[str]) -> Iterator[Piece]:
    """Lines on a cell for facts without a column. ``seen``: ways to fail that need no further line."""
    verdict = row.verdict
    if verdict.reason and row.has_verdict:
        said = verdict.reason if verdict.is_likely else f"{verdict.kind}: {verdict.reason}"
        yield Piece(said, _COLOURS[verdict.kind])
    if not has_long_verdicts and verdict.text != verdict.kind:
        yield Piece(verdict.text, _COLOURS[verdict.kind])
    if row.speed and row.speed.kind in ("slower", "faster") and not has_speeds:
        yield Piece(f"{row.speed.of} are {row.speed.text}", "yellow")
    if row.speed and row.speed.reason and row.speed.interval:
        yield Piece(f"speed undecided: {row.speed.reason}", "yellow")
    for change in row.operators[:_MOST_OPERATORS]:
        yield Piece(change.text, "yellow")
    if row.effect and row.effect.is_inert and verdict.kind not in ("second baseline", "not read"):
        yield Piece(f"inert? ({row.effect.reason})", "yellow")
    if missing := [f"{row.cell.count(kind)} {kind}" for kind in LOSSES if row.cell.count(kind)]:
        events = f" ({counted(row.cell.loss_events, 'event')})" if row.cell.loss_events < row.cell.lost else ""
        yield Piece(f"not counted: {', '.join(missing)}{events}", "yellow")
        if row.cell.losses and row.cell.count("interrupted") < row.cell.lost:
            yield Piece(f"why: {row.cell.losses[0].signature.text}", "yellow")
    yield from _ways(row, seen)


def _ways(row: Row, seen: set[str]) -> Iterable[Piece]:
    texts = [(each.signature.text, len(each.trials)) for each in row.cell.signatures]
    judged = {way.signature.text: way for way in row.by_signature}
    if all(text in seen for text, _ in texts) and not judged:
        return
    seen.update(text for text, _ in texts)
    lines = []
    for text, number in texts:
        way = judged.pop(text, None)
        line = f"{number}x {text}"
        lines.append(Piece(f"{line}: {way.verdict.kind}", _COLOURS[way.verdict.kind]) if way else Piece(line))
    for text, way in judged.items():
        if way.verdict.kind != row.verdict.kind and text not in dict(texts):
            line = f"0x {text}, {way.base_failures}x in the baseline: {way.verdict.kind}"
            lines.append(Piece(line, _COLOURS[way.verdict.kind]))
    yield from lines[:_MOST_WAYS]
    if len(lines) > _MOST_WAYS:
        yield Piece(f"{counted(len(lines) - _MOST_WAYS, 'more way')} to fail")


def _wrapped(text: str, width: int) -> list[str]:
    """Break lines at ``width``; shorten wider words."""
    lines = [""]
    for word in one_line(text).split():
        word = shortened(word, width)
        joined = f"{lines[-1]} {word}".strip()
        if terminal_width(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word)
    return lines
