"""Where it starts: findings of collectors in the trials of a results directory, as sentences and as heat lines.

Also trials that should compute the same and do not, within a cell and between a cell and its baseline.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_aorta.collectors.contract import COUNTED, FOLDER, step_name
from pytest_aorta.collectors.divergence import (
    FirstDifference,
    Step,
    StepTraces,
    TraceComparison,
    compare_trials,
    is_same,
    read_trial,
)
from pytest_aorta.common.texts import counted, first_names, format_ranges
from pytest_aorta.settings import RequestError
from pytest_aorta.triage.cells import CellStatistics, CellTrials
from pytest_aorta.triage.facts import CellKey, TrialFacts, facts_of
from pytest_aorta.triage.matrix import EarlierMatrix
from pytest_aorta.triage.reading import RecordedTrial, Results, triage_in_order
from pytest_aorta.triage.replays import Replayed, ReplayedCell, replayed_cells
from pytest_aorta.triage.signatures import signature_of
from pytest_aorta.triage.verdicts import Table, Triage
from pytest_aorta.workspace.paths import REPLAY

#: Trials named in a sentence, and trials whose first difference is shown, at most.
_MOST_NAMES, _MOST_PLACES = 8, 3

#: Findings shown per cell, at most.
_MOST_FOUND = 5

#: Files listed, at most.
_MOST_FILES = 24

#: Lines of a heat before and after the marked one; steps of a heat; heats of a cell; heats in all.
_BEFORE, _AFTER, _MOST_STEPS, _MOST_OF_A_CELL, _MOST_HEATS = 10, 4, 12, 3, 12

_STEP = re.compile(r"\bstep (\d+)")

_OF_NUMERICS = {"gradients": "{module}, {what} before the update", "optimizer": "{module}, after the update"}

#: Short names of events; ``collectors.divergence`` has sentences.
_EVENTS = {
    "initial": "{}, before the first step",
    "input": "{} input",
    "forward": "{} output",
    "backward": "{} gradient of output",
    "gradient": "{}, gradient before the update",
    "parameter": "{}, after the update",
}


def where_it_starts(table: Table) -> Iterator[str]:
    """Lines for a terminal: findings and problems of collectors by cell, then trials that differ."""
    replayed = {each.key: each for each in table.replays}
    said = {row.cell.key: list(sentences(row.cell, replayed.get(row.cell.key))) for row in table.rows}
    if any(said.values()) or table.divergence:
        yield "where it starts:"
    are_several = len({key.group() for key in said}) > 1
    for key, texts in said.items():
        if texts:
            yield f"  {key.label}" if are_several else f"  {key.cell}"
            yield from (f"    {text}" for text in texts)
    for each in table.divergence:
        first, *others = each["lines"]
        yield f"  {each['workload']} {first}" if are_several else f"  {first}"
        yield from (f"  {line}" for line in others)
    observed = sum(row.cell.observed for row in table.rows)
    if observed and observed == sum(row.cell.total for row in table.rows):
        how = "" if table.divergence else " (--aorta-vary collect=none,NAME compares them with trials without)"
        yield f"what collectors change is not known: every trial ran with them{how}"


def read_replay_facts(record: Mapping[str, Any], file: str, rules: Sequence[tuple[str, str]]) -> TrialFacts:
    """Read the facts of a replay; findings of collectors do not change its way to fail."""
    return replace(facts_of(record, file, rules), signature=signature_of({**record, "collected": {}}, rules))


def with_replays(table: Table, triage: Triage, results: Path) -> Table:
    """Add the replays of failed trials that a run has left in ``results``."""
    first = {
        (facts.key.workload, facts.key.cell, facts.index, facts.started_at): facts
        for cell in triage.cells
        for facts in cell.finished
        if facts.is_failure and not facts.observed
    }
    replayed: dict[CellKey, list[Replayed]] = {}
    folder = results / REPLAY
    for trial in Results(folder) if folder.is_dir() else ():
        then = trial.record.get("replay_of") or {}
        key = (trial.facts.key.workload, trial.facts.key.cell, trial.facts.index, then.get("started_at"))
        if trial.facts.observed and key in first:
            again = read_replay_facts(trial.record, trial.file, triage.settings.signatures)
            replayed.setdefault(first[key].key, []).append((first[key], again))
    return table.with_replays(replayed_cells(replayed, triage.cells)) if replayed else table


def sentences(cell: CellStatistics, replayed: ReplayedCell | None = None) -> Iterator[str]:
    """Findings of collectors in a cell, with numbers of trials or replays; then the results of replays."""
    collected: Mapping[str, int] = cell.tally("collected")
    not_collected: Mapping[str, int] = cell.tally("not_collected")
    of = str(cell.observed or cell.total)  # foreign records do not say which trials had collectors
    if replayed is not None:
        collected, not_collected = replayed.collected, replayed.not_collected
        of = counted(replayed.replays, "replay")
    for texts, label in ((_by_step(collected), ""), (not_collected, "not collected: ")):
        ranked = sorted(texts, key=lambda text: -texts[text])
        for text in ranked[:_MOST_FOUND]:
            yield f"{texts[text]} of {of}: {label}{text}"
        if len(ranked) > _MOST_FOUND:
            yield f"{counted(len(ranked) - _MOST_FOUND, 'other sentence')} in the trial files"
    yield from [] if replayed is None else replayed.lines()


def _by_step(texts: Mapping[str, int]) -> dict[str, int]:
    """Join sentences that differ only in the number of a step."""
    steps: dict[str, Counter[int]] = {}
    joined: dict[str, int] = {}
    for text, number in texts.items():
        named = set(_STEP.findall(text))
        if len(named) == 1:
            steps.setdefault(_STEP.sub("step #", text), Counter())[int(named.pop())] += number
        else:
            joined[text] = number
    for text, by_step in steps.items():
        if len(by_step) == 1:
            [step] = by_step
            joined[text.replace("step #", f"step {step}")] = by_step[step]
        else:
            named_first = text.replace("step #", f"steps {format_ranges(sorted(by_step)).replace(',', ', ')}", 1)
            joined[named_first.replace("step #", "the same step")] = by_step.total()
    return joined


@dataclass(frozen=True)
class Traced:
    """A trial with its recording, and the recording's folder."""

    facts: TrialFacts
    folder: Path
    trial: StepTraces


@dataclass(frozen=True)
class Divergence:
    """A comparison of a cell's trials; with ``of``, of one trial of the cell and one of the cell ``of``.

    ``trials``: by their names in the comparison.
    """

    key: CellKey
    trials: Mapping[str, Traced]
    comparison: TraceComparison
    of: CellKey | None = None

    @property
    def first(self) -> tuple[Traced, Traced, FirstDifference] | None:
        """The reference, the trial that differs from it first, and the place of the difference."""
        first = self.comparison.first
        return None if first is None else (self.reference, self.trials[first[0]], first[1])

    @property
    def reference(self) -> Traced:
        """A trial that stands for all that agree with it."""
        return self.trials[self.comparison.equal[0]]

    @property
    def names(self) -> tuple[str, str, str | None]:
        """Workload, cell, and compared cell."""
        return self.key.workload, self.key.cell, None if self.of is None else self.of.cell

    def lines(self) -> Iterator[str]:
        """The result in sentences."""
        first, places, equal = self.comparison.first, self.comparison.places, self.comparison.equal
        ranks = max(len(traced.trial.ranks) for traced in self.trials.values())
        who = self.key.cell if self.of is None else f"{self.key.cell} and {self.of.cell}"
        if first is None:
            trial = self.reference.trial
            what = "bit by bit" if trial.tolerance is None else f"within {trial.tolerance:g}"
            size = f"{counted(trial.steps, 'step')}, {counted(ranks, 'rank')}"
            same = "both compute the same" if self.of else f"all {len(self.trials)} trials compute the same"
            yield f"{who}: {same}, {what} ({size})"
            return
        if self.of is not None:
            yield f"{who}: they compute something else, first in {first[1].text(ranks)}"
            return
        if len(equal) > 1:
            names = ", ".join(first_names(sorted(places, key=int), _MOST_NAMES))
            what = f"{len(places)} of {len(self.trials)} trials differ from the {len(equal)} others ({names})"
            failed, others = (sum(self.trials[name].facts.is_failure for name in side) for side in (places, equal))
            what += f"; {failed} of these failed, {others} of the others" if failed or others else ""
        else:
            what = f"no two of {len(self.trials)} trials compute the same"
        yield f"{who}: {what}"
        in_order = sorted(places.items(), key=lambda each: each[1].order)
        for name, place in in_order[:_MOST_PLACES]:
            yield f"  trial {name}: first in {place.text(ranks)}"

    def to_plain(self) -> dict[str, Any]:
        """For ``matrix.json``; ``docs/guides/divergence.md`` has the keys."""
        workload, cell, compared_with = self.names
        return {
            "workload": workload,
            "cell": cell,
            "compared_with": compared_with,
            "trials": len(self.trials),
            "equal": self.comparison.equal,
            "lines": list(self.lines()),
            "differ": [{"trial": name, **vars(place)} for name, place in self.comparison.places.items()],
        }


def divergences(
    cells: Iterable[tuple[CellKey, Sequence[TrialFacts]]], results: Path, of: Mapping[CellKey, CellKey]
) -> Iterator[Divergence]:
    """Compare the recorded trials of each cell, then each such cell with its baseline ``of[key]``.

    Cells are compared up to the first difference within one of them.
    """
    within: dict[CellKey, Divergence] = {}
    for key, facts in cells:
        trials: dict[str, Traced] = {}
        for each in facts:
            folder = (results / each.file).with_suffix("") / FOLDER / "divergence"
            if (trial := read_trial(folder)).ranks:
                trials[str(each.index)] = Traced(each, folder, trial)
        if trials:
            within[key] = Divergence(key, trials, compare_trials({name: it.trial for name, it in trials.items()}))
    yield from (divergence for divergence in within.values() if len(divergence.trials) > 1)
    for key, base in of.items():
        if key in within and base in within:
            sides = {"0": within[base].reference, "1": within[key].reference}
            ends = _first_order(within[base].comparison, within[key].comparison)
            compared = _compare_cells(sides["0"].trial, sides["1"].trial, ends)
            yield Divergence(key, sides, compared, base)


def _compare_cells(one: StepTraces, other: StepTraces, ends: tuple[int, int, int] | None) -> TraceComparison:
    """Compare one trial of each cell before ``ends``, where trials within one cell begin to differ."""
    compared = compare_trials({"0": one, "1": other})
    is_before = compared.first is None or ends is None or compared.first[1].order < ends
    return compared if is_before else TraceComparison(["0", "1"])


def _first_order(*comparisons: TraceComparison) -> tuple[int, int, int] | None:
    """The first difference: step, event in it, rank."""
    return min((place.order for each in comparisons for place in each.places.values()), default=None)


def compare_recorded(a: Sequence[Path], b: Sequence[Path]) -> str | None:
    """Whether a cell computes the same in runs A and B, by its trial files; ``None`` if one has no recording."""
    sides = [
        {str(file): read_trial(file.with_suffix("") / FOLDER / "divergence") for file in files} for files in (a, b)
    ]
    one, other = ({name: trial for name, trial in side.items() if trial.ranks} for side in sides)
    return compare_sides(one, other) if one and other else None


def compare_sides(a: Mapping[str, StepTraces], b: Mapping[str, StepTraces]) -> str:
    """Compare the trials of a cell in A and in B, up to the first difference within one side."""
    inner = [compare_trials(side) for side in (a, b)]
    one, other = a[inner[0].equal[0]], b[inner[1].equal[0]]
    if one.tolerance != other.tolerance:
        return "not compared: one has hashes, the other statistics, or their tolerances differ"
    ends = _first_order(*inner)
    first = _compare_cells(one, other, ends).first
    if first is not None:
        return f"B computes something else, first in {first[1].text(max(len(one.ranks), len(other.ranks)))}"
    if ends is None:
        return f"B computes the same ({counted(min(one.steps, other.steps), 'step')})"
    where = step_name(ends[0] + 1, one.first_step)
    return f"trials of one side differ from each other in {where}; before it, B computes the same"


@dataclass(frozen=True)
class Spot:
    """A tensor in a step; ``text`` is empty if it was not recorded, ``share`` is its heat from 0 to 1.

    ``is_bad``: not finite, above the threshold, or different from trials that agree. ``is_first``: the first bad spot
    in the order of execution.
    """

    text: str = ""
    share: float = 0.0
    is_bad: bool = False
    is_first: bool = False


@dataclass(frozen=True)
class Heat:
    """Tensors of one rank around the first bad one, in the order of execution, each with its last steps.

    Attributes:
        what: a caption.
        lines: the name of each tensor with a spot for each step.
        before, after: numbers of tensors that are left out.
        is_replay: the trial was run again with collectors.
    """

    trial: TrialFacts
    what: str
    steps: tuple[int, ...]
    lines: tuple[tuple[str, tuple[Spot, ...]], ...]
    before: int
    after: int
    is_replay: bool = False

    def text(self) -> Iterator[str]:
        """Lines for a terminal."""
        width = max(len(name) for name, _ in self.lines)
        again = "replay of " if self.is_replay else ""
        yield f"{self.trial.key.cell}, {again}trial {self.trial.index}: {self.what}"
        yield f"    {'step':>{width}}" + "".join(f"{step:>9}" for step in self.steps)
        if self.before:
            yield f"    {counted(self.before, 'tensor')} before"
        for name, spots in self.lines:
            is_first = any(spot.is_first for spot in spots)
            row = "".join(f"{spot.text or '.':>9}" for spot in spots)
            yield f"  {'>' if is_first else ' '} {name:<{width}}{row}{'  first' if is_first else ''}"
        if self.after:
            yield f"    {counted(self.after, 'tensor')} after"


@dataclass
class CollectorOutput:
    """Output of collectors, gathered record by record: a heat per cell and bad tensor, names, files."""

    bad: dict[tuple[CellKey, str, str], Heat] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    files: list[str] = field(default_factory=list)

    def add(self, trial: RecordedTrial, folder: Path) -> None:
        """Add a trial; ``folder``: the results directory."""
        facts, is_replay = trial.facts, bool(trial.record.get("replay_of"))
        collected = trial.record.get("collected") or {}
        numerics = collected.get("numerics") or {}
        data = numerics.get("data")
        first = data.get("first") if isinstance(data, dict) else None
        if isinstance(first, dict):
            key = (facts.key, str(first.get("module")), str(first.get("what")))
            is_wanted = len([cell for cell, *_ in self.bad if cell == facts.key]) < _MOST_OF_A_CELL
            if key not in self.bad and is_wanted and len(self.bad) < _MOST_HEATS:
                heat = _heat_of_values(facts, numerics, folder)
                self.bad |= {} if heat is None else {key: replace(heat, is_replay=is_replay)}
        self.names.update(collected)
        beside, whose = PurePosixPath(trial.file).parent, f"{'replay of ' if is_replay else ''}trial {facts.index}"
        for name, each in collected.items():
            self.files += [f"  {whose}, {name}: {beside / file}" for file in each.get("artifacts") or ()]
            self.files += [f"  {whose}, {name}: problem: {text}" for text in each.get("problems") or ()]

    def add_replays(self, results: Path) -> None:
        """Add replays that ran with collectors."""
        if not (results / REPLAY).is_dir():
            return
        replays = Results(results / REPLAY)
        for trial in replays:
            if trial.facts.observed:
                file = os.path.relpath(replays.folder / trial.file, results)
                self.add(RecordedTrial(file, trial.record, replace(trial.facts, file=file)), results)

    def divergences(
        self, cells: Sequence[CellTrials], results: Path, of: Mapping[CellKey, CellKey]
    ) -> list[tuple[Divergence, Heat | None]]:
        """Trials and cells that differ, with the tensors around the first difference."""
        if "divergence" not in self.names:
            return []
        compared = divergences([(cell.key, cell.finished) for cell in cells], results, of)
        return [(each, None if each.first is None else _heat_of_differences(each)) for each in compared]


def all_lines(path: Path) -> Iterator[str]:
    """Lines of ``pytest-aorta show collected`` for a results directory or one trial file.

    Raises:
        RequestError: ``path`` does not exist, has no trial, or nothing was collected.
    """
    results, output, trials = Results(path), CollectorOutput(), []
    for trial in results:
        output.add(trial, results.folder)
        trials.append(trial.facts)
    if not trials:
        raise results.nothing_found()
    if path.is_dir():
        output.add_replays(results.folder)
    if not output.names:
        raise RequestError(f"{path}: nothing was collected; --aorta-collect numerics looks into trials as they run")
    triage, earlier = triage_in_order(trials), EarlierMatrix(results.folder)
    said = [*where_it_starts(with_replays(triage.table(), triage, results.folder))]
    compared = output.divergences(triage.cells, results.folder, triage.baselines().of)
    for divergence, _ in compared:
        said += divergence.lines()
        zoom = earlier.zooms.get(divergence.names)
        said += [f"  {zoom}"] if zoom else []
    yield from said or [f"{', '.join(sorted(output.names))}: nothing was found"]
    for heat in [*output.bad.values(), *(heat for _, heat in compared if heat is not None)]:
        yield ""
        yield from heat.text()
    if output.files:
        yield ""
        yield f"files, in {results.folder}:"
        yield from output.files[:_MOST_FILES]
    if len(output.files) > _MOST_FILES:
        yield f"  {counted(len(output.files) - _MOST_FILES, 'other file')}"


def _heat_of_values(facts: TrialFacts, numerics: Mapping[str, Any], results: Path) -> Heat | None:
    """Read ``heat.json``; ``None`` if it is gone or unreadable."""
    path = (results / facts.file).with_suffix("") / FOLDER / "numerics" / "heat.json"
    try:
        first, limit = numerics["data"]["first"], float((numerics.get("options") or {}).get("threshold", "inf"))
        rows = json.loads(path.read_bytes())[str(first["rank"])]
        names = [_OF_NUMERICS.get(row["phase"], "{module} {what}").format_map(row) for row in rows]
        values = [{int(step): float(value) for step, value, *_ in row["values"]} for row in rows]
        step, window = int(first["step"]), int((numerics.get("options") or {}).get("window", _MOST_STEPS))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None

    def is_bad(value: float) -> bool:
        return not (math.isfinite(value) and value <= limit)

    at = next((number for number, row in enumerate(values) if is_bad(row.get(step, 0.0))), None)
    if at is None:
        return None
    steps = sorted({each for row in values for each in row if step - window <= each <= step})[-_MOST_STEPS:]
    near = range(max(0, at - _BEFORE), min(len(rows), at + _AFTER + 1))
    seen = [value for number in near for value in values[number].values()]
    logs = [math.log10(value) for value in seen if 0 < value < math.inf]
    low, high = min(logs, default=0.0), max(logs, default=0.0)

    def spot(number: int, each: int) -> Spot:
        value = values[number].get(each)
        if value is None:
            return Spot()
        if is_bad(value):
            text = f"{value:.3g}" if math.isfinite(value) else "NaN" if math.isnan(value) else "Inf"
            return Spot(text, 1.0, is_bad=True, is_first=(number, each) == (at, step))
        share = (math.log10(value) - low) / (high - low) if value > 0 and high > low else 0.0
        return Spot(f"{value:.3g}", share)

    lines = tuple((names[number], tuple(spot(number, each) for each in steps)) for number in near)
    what = f"rank {first['rank']}, largest absolute value of each tensor, in the order of execution"
    numbers, counted_from = _numbered(steps, numerics["data"].get("first_step", 1))
    return Heat(facts, what + counted_from, numbers, lines, near.start, len(rows) - near.stop)


def _heat_of_differences(divergence: Divergence) -> Heat:
    """Equal and differing tensors around the first difference of two trials."""
    assert divergence.first is not None
    one, other, place = divergence.first
    own, others = (each.trial.ranks.get(place.rank, ()) for each in (other, one))
    near = range(max(0, place.ordinal - 2), min(len(own), place.ordinal + 3))
    events = own[place.ordinal].events if place.ordinal < len(own) else others[place.ordinal].events
    drawn = range(max(0, place.number - _BEFORE), min(len(events), place.number + _AFTER + 1))

    def value(steps: Sequence[Step], ordinal: int, event: str) -> Any:
        return dict(steps[ordinal].row()).get(event) if ordinal < len(steps) else None

    def spots(event: str) -> Iterator[Spot]:
        for ordinal in near:
            mine, theirs = value(own, ordinal, event), value(others, ordinal, event)
            if mine is None and theirs is None:
                yield Spot()
            elif None not in (mine, theirs) and is_same((event, mine), (event, theirs), other.trial.tolerance):
                yield Spot("equal")
            else:
                yield Spot("differs", 1.0, is_bad=True, is_first=(ordinal, event) == (place.ordinal, place.event))

    def short(event: str) -> str:
        phase, _, name = event.partition(":")
        name, _, call = name.partition("#")
        return _EVENTS.get(phase, "{}").format(name) + (f", call {call}" if call else "")

    lines = tuple((short(events[number]), tuple(spots(events[number]))) for number in drawn)
    beside = f"trial {one.facts.index}" if divergence.of is None else f"{one.facts.key.cell}, trial {one.facts.index}"
    what = f"rank {place.rank}, compared with {beside}, in the order of execution"
    numbers, counted_from = _numbered((own[ordinal].number for ordinal in near), place.first_step)
    return Heat(other.facts, what + counted_from, numbers, lines, drawn.start, len(events) - drawn.stop)


def _numbered(steps: Iterable[int], first_step: int | None) -> tuple[tuple[int, ...], str]:
    """The numbers that the trial gives its steps, and what is to be said where nothing tells them."""
    if first_step is None:
        return tuple(steps), COUNTED
    return tuple(each + first_step - 1 for each in steps), ""
