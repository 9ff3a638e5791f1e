"""Trials that should be equal and are not: within a cell, and between a cell and its baseline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_aorta.collectors.contract import FOLDER
from pytest_aorta.collectors.divergence import Comparison, Place, Trial, compare_trials, read_trial
from pytest_aorta.common.texts import first_names
from pytest_aorta.triage.columns import counted
from pytest_aorta.triage.facts import CellKey, TrialFacts

#: Trials that are named in a sentence, and those whose first difference is shown.
_MOST_NAMES, _MOST_PLACES = 8, 3


@dataclass(frozen=True)
class Traced:
    """A trial with what it has recorded; ``folder`` of that."""

    facts: TrialFacts
    folder: Path
    trial: Trial


@dataclass(frozen=True)
class Divergence:
    """Of a cell: how its trials compare, or with ``of``, how those that stand for two cells do.

    ``trials``: by the names that the comparison has for them.
    """

    key: CellKey
    trials: Mapping[str, Traced]
    comparison: Comparison
    of: CellKey | None = None

    @property
    def first(self) -> tuple[Traced, Traced, Place] | None:
        """One that stands for the others, the one that differs from it first, and where."""
        found = self.comparison.first
        return None if found is None else (self.reference, self.trials[found[0]], found[1])

    @property
    def reference(self) -> Traced:
        return self.trials[self.comparison.equal[0]]

    def lines(self) -> Iterator[str]:
        """What there is to say."""
        found = self.comparison.first
        ranks = max(len(traced.trial.ranks) for traced in self.trials.values())
        trial = self.reference.trial
        if found is None:
            what = "bit by bit" if trial.tolerance is None else f"within {trial.tolerance:g}"
            size = f"{counted(trial.steps, 'step')}, {counted(ranks, 'rank')}"
            same = "both compute the same" if self.of else f"all {len(self.trials)} trials compute the same"
            yield f"{self._who()}: {same}, {what} ({size})"
            return
        name, place = found
        if self.of is not None:
            yield f"{self._who()}: they compute something else, first in {place.text(ranks)}"
            return
        places = self.comparison.places
        equal = self.comparison.equal
        names = ", ".join(first_names(sorted(places, key=int), _MOST_NAMES))
        if len(equal) > 1:
            what = f"{len(places)} of {len(self.trials)} trials differ from the {len(equal)} others ({names})"
        else:
            what = f"no two of {len(self.trials)} trials compute the same"
        failed = [self._failed(places), self._failed(equal)]
        if any(failed) and len(equal) > 1:
            what += f"; {failed[0]} of these failed, {failed[1]} of the others"
        yield f"{self._who()}: {what}"
        in_order = sorted(places.items(), key=lambda each: each[1].order)
        for name, place in in_order[:_MOST_PLACES]:
            yield f"  trial {name}: first in {place.text(ranks)}"

    def _who(self) -> str:
        return self.key.cell if self.of is None else f"{self.key.cell} and {self.of.cell}"

    def _failed(self, names: Iterable[str]) -> int:
        return sum(self.trials[name].facts.is_failure for name in names)

    def to_plain(self) -> dict[str, Any]:
        """For ``matrix.json``; ``docs/divergence.md`` has the keys."""
        return {
            "workload": self.key.workload,
            "cell": self.key.cell,
            "compared_with": self.of and self.of.cell,
            "trials": len(self.trials),
            "equal": self.comparison.equal,
            "differ": [{"trial": name, **vars(place)} for name, place in self.comparison.places.items()],
        }


def divergences(
    cells: Iterable[tuple[CellKey, Sequence[TrialFacts]]], results: Path, of: Mapping[CellKey, CellKey]
) -> Iterator[Divergence]:
    """Of each cell with recorded trials, then of each such cell and its baseline ``of[key]``.

    Cells are compared as far as each agrees with itself.
    """
    found: dict[CellKey, Divergence] = {}
    for key, facts in cells:
        trials = {str(each.index): traced for each in facts if (traced := _traced(each, results)).trial.ranks}
        if trials:
            found[key] = Divergence(key, trials, compare_trials({name: it.trial for name, it in trials.items()}))
    for divergence in found.values():
        if len(divergence.trials) > 1:
            yield divergence
    for key, base in of.items():
        if key in found and base in found:
            yield between(found[base], found[key])


def between(one: Divergence, other: Divergence) -> Divergence:
    """The cell of ``other`` beside that of ``one``, each by the trial that stands for it."""
    sides = {"0": one.reference, "1": other.reference}
    comparison = compare_trials({name: it.trial for name, it in sides.items()})
    inner = [place.order for each in (one, other) for place in each.comparison.places.values()]
    if comparison.first is not None and inner and comparison.first[1].order >= min(inner):
        comparison = Comparison(["0", "1"])  # where trials of one cell differ already, it says nothing
    return Divergence(other.key, sides, comparison, one.key)


def _traced(facts: TrialFacts, results: Path) -> Traced:
    folder = (results / facts.file).with_suffix("") / FOLDER / "divergence"
    return Traced(facts, folder, read_trial(folder))


@dataclass(frozen=True)
class Agreeing:
    """The trial that stands for a cell of a results directory; ``ends``: order of the first other place."""

    trial: Trial
    ends: tuple[int, int, int] | None


def agreeing(files: Iterable[Path]) -> Agreeing | None:
    """Of trial files; ``None`` where none of the trials has recorded anything."""
    read = {str(file): read_trial(file.with_suffix("") / FOLDER / "divergence") for file in files}
    trials = {name: trial for name, trial in read.items() if trial.ranks}
    if not trials:
        return None
    found = compare_trials(trials)
    return Agreeing(trials[found.equal[0]], min((place.order for place in found.places.values()), default=None))


def compare_agreeing(a: Agreeing, b: Agreeing) -> str:
    """Whether B computes what A does, as far as the trials of each agree with each other."""
    if a.trial.tolerance != b.trial.tolerance:
        return "not compared: one has hashes, the other statistics, or their tolerances differ"
    place = compare_trials({"A": a.trial, "B": b.trial}).places.get("B")
    ends = min((each.ends for each in (a, b) if each.ends is not None), default=None)
    if place is not None and (ends is None or place.order < ends):
        return f"B computes something else, first in {place.text(max(len(a.trial.ranks), len(b.trial.ranks)))}"
    steps = min(a.trial.steps, b.trial.steps)
    if ends is None:
        return f"B computes the same ({counted(steps, 'step')})"
    return f"trials of one side differ from each other in step {ends[0] + 1}; before it, B computes the same"
