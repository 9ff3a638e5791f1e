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

#: Of places in a trial: number of the step, of the event in it, rank.
Order = tuple[int, int, int]

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

    @property
    def names(self) -> tuple[str, str, str | None]:
        """Workload, cell, and the cell that it is compared with."""
        return self.key.workload, self.key.cell, None if self.of is None else self.of.cell

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
            "lines": list(self.lines()),
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
    ends = _earlier(one.comparison, other.comparison)
    return Divergence(other.key, sides, compare_cells(sides["0"].trial, sides["1"].trial, ends), one.key)


def compare_cells(one: Trial, other: Trial, ends: Order | None) -> Comparison:
    """Of trials that stand for two cells, before ``ends``: from there on trials of one cell differ among themselves."""
    found = compare_trials({"0": one, "1": other})
    is_told = found.first is None or ends is None or found.first[1].order < ends
    return found if is_told else Comparison(["0", "1"])


def _earlier(*comparisons: Comparison) -> Order | None:
    return min((place.order for each in comparisons for place in each.places.values()), default=None)


def _traced(facts: TrialFacts, results: Path) -> Traced:
    folder = (results / facts.file).with_suffix("") / FOLDER / "divergence"
    return Traced(facts, folder, read_trial(folder))


def compare_recorded(a: Sequence[Path], b: Sequence[Path]) -> str | None:
    """Whether a cell in B computes what it does in A, of their trial files; ``None`` where one has recorded nothing."""
    sides = [
        {str(file): read_trial(file.with_suffix("") / FOLDER / "divergence") for file in files} for files in (a, b)
    ]
    one, other = ({name: trial for name, trial in side.items() if trial.ranks} for side in sides)
    return compare_sides(one, other) if one and other else None


def compare_sides(a: Mapping[str, Trial], b: Mapping[str, Trial]) -> str:
    """Of the trials of a cell in A and in B, as far as those of each agree with each other."""
    inner = [compare_trials(side) for side in (a, b)]
    one, other = a[inner[0].equal[0]], b[inner[1].equal[0]]
    if one.tolerance != other.tolerance:
        return "not compared: one has hashes, the other statistics, or their tolerances differ"
    ends = _earlier(*inner)
    first = compare_cells(one, other, ends).first
    if first is not None:
        return f"B computes something else, first in {first[1].text(max(len(one.ranks), len(other.ranks)))}"
    if ends is None:
        return f"B computes the same ({counted(min(one.steps, other.steps), 'step')})"
    return f"trials of one side differ from each other in step {ends[0] + 1}; before it, B computes the same"
