"""Which change on an ordered axis (commits, versions, values, environments) changes how often trials fail."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pytest_aorta.common.texts import counted, one_line
from pytest_aorta.search import Steps, Wanted
from pytest_aorta.search.posterior import ChangePoint
from pytest_aorta.triage import MARGIN
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.sequential import SequentialTest

#: After so many trials of which none says anything of the workload, a position is skipped.
_NOT_RUN = 3

#: Level of the test that confirms a change: fresh trials of both sides of it, by turns, at any time.
_LEVEL = 0.05

#: A second change is said where it is likelier than one or none.
_LIKELIER = 0.5

End = Literal["change", "no change", "two changes", "not confirmed", "open"]


@dataclass
class Bisection:
    """What is known at the end.

    Attributes:
        end: ``change`` is one that fresh trials have confirmed; ``open``: the budget has ended before.
        first: the first position after the change, ``last`` the last one before it; those between them cannot be run.
        probability: of a change there; of ``end`` else.
        failures, trials: of each position, without what says nothing of the workload.
        p: of the confirmation.
    """

    positions: tuple[str, ...]
    end: End = "open"
    last: int = 0
    first: int = 0
    second: int = 0
    probability: float = 0.0
    failures: list[int] = field(default_factory=list)
    trials: list[int] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)
    confirmed: tuple[int, int, int, int] = (0, 0, 0, 0)
    p: float = 1.0

    def rates(self) -> tuple[float, float]:
        """The failure rates before the change, and from it on."""
        return tuple(  # type: ignore[return-value]
            sum(self.failures[side]) / max(1, sum(self.trials[side]))
            for side in (slice(None, self.first), slice(self.first, None))
        )

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "skipped": {self.positions[at]: why for at, why in self.skipped.items()}}


def percent(chance: float) -> str:
    """``98.2%``; nothing is certain: ``over 99.9%``."""
    return "over 99.9%" if chance > 0.999 else f"{chance:.1%}"


class Bisect:
    """The search for the position from which on another failure rate holds, of rates that nobody knows.

    ``ChangePoint`` proposes positions until one change, or none, is as likely as ``confidence``. Then fresh trials of
    both sides of it run by turns, until a sequential test of these pairs shows the difference too; they count for the
    distribution as well, which may change its mind.

    Args:
        positions: names, for sentences, in their order.
        most: trials in all.
        at_once: how many trials may run side by side.
        confidence: probability at which a change is taken for found.
        weights: how likely each position is before any trial.
        signature: only failures whose text contains it count; others are passes.
    """

    def __init__(
        self,
        positions: Sequence[str],
        most: int,
        at_once: int = 1,
        *,
        confidence: float = 0.95,
        weights: Sequence[float] | None = None,
        signature: str = "",
    ) -> None:
        self.result = Bisection(tuple(positions), failures=[0] * len(positions), trials=[0] * len(positions))
        self._points = ChangePoint(len(positions), weights)
        self._most, self._at_once, self._confidence, self._signature = most, at_once, confidence, signature
        self._started = 0
        self._next_index = [0] * len(positions)
        self._silent = [0] * len(positions)

    def steps(self) -> Steps:
        result = self.result
        while self._started < self._most:
            chances = self._by_place()
            place = max(chances, key=lambda each: chances[each])
            result.probability = chances[place]
            if chances[place] >= self._confidence:
                probability, places = self._points.two_changes()
                if probability > _LIKELIER and len(result.positions) > 2:
                    result.end, result.probability = "two changes", probability
                    result.first, result.second = places
                    return
                if place is None:
                    result.end = "no change"
                    return
                result.last, result.first = place
                if (yield from self._confirm(*place)):
                    result.end = "change"
                    return
                if self._by_place()[place] >= self._confidence:
                    result.end = "not confirmed"
                    return
                continue
            if int((~self._points.skipped).sum()) < 2:
                return
            yield from self._run(self._choose())

    def _by_place(self) -> dict[tuple[int, int] | None, float]:
        """The probability of a change between neighbours that can be run, and of none."""
        chances = self._points.distribution()
        runnable = np.flatnonzero(~self._points.skipped)
        places: dict[tuple[int, int] | None, float] = {None: float(chances[-1])}
        for last, first in itertools.pairwise(runnable):
            places[int(last), int(first)] = float(chances[last + 1 : first + 1].sum())
        return places

    def _choose(self) -> list[int]:
        """The next positions; of several, each as if those before had ended as expected."""
        points = copy.deepcopy(self._points) if self._at_once > 1 else self._points
        chosen = [points.choose()]
        for _ in range(min(self._at_once, self._most - self._started) - 1):
            points.learn(chosen[-1], points.expected(chosen[-1]))
            chosen.append(points.choose())
        return chosen

    def _run(self, positions: Sequence[int]) -> Generator[list[Wanted], list[TrialFacts], list[bool | None]]:
        """Whether the trials have failed; ``None`` for what says nothing of the workload."""
        wanted = []
        for position in positions:
            wanted.append(Wanted(position, self._next_index[position]))
            self._next_index[position] += 1
        self._started += len(wanted)
        ends: list[bool | None] = []
        for position, facts in zip(positions, (yield wanted), strict=True):
            if not facts.is_counted:
                ends.append(None)
                self._silent[position] += 1
                if self._silent[position] >= _NOT_RUN and not self.result.trials[position]:
                    self._points.skip(position)
                    text = facts.outcome if facts.signature is None else facts.signature.text
                    self.result.skipped[position] = one_line(text)[:200]
                continue
            has_failed = facts.is_failure
            if has_failed and self._signature:
                has_failed = facts.signature is not None and self._signature in facts.signature.text
            ends.append(has_failed)
            self._points.learn(position, has_failed)
            self.result.failures[position] += has_failed
            self.result.trials[position] += 1
        return ends

    def _confirm(self, last: int, first: int) -> Generator[list[Wanted], list[TrialFacts], bool]:
        """Whether fresh pairs of trials, one on either side of the change, show it again before it becomes unlikely."""
        test = SequentialTest(MARGIN, 1 - _LEVEL)
        pairs: list[tuple[float, float]] = []
        rounds = max(1, self._at_once // 2)
        while self._started < self._most:
            ends = yield from self._run([last, first] * rounds)
            pairs += [
                (float(one), float(other))
                for one, other in zip(ends[::2], ends[1::2], strict=True)
                if one is not None and other is not None
            ]
            test.pairs += pairs[len(test.pairs) :]
            ours, theirs = (int(sum(pair[side] for pair in pairs)) for side in (1, 0))
            self.result.confirmed = (ours, len(pairs), theirs, len(pairs))
            self.result.p = test.comparison().p if pairs else 1.0
            self.result.probability = self._by_place().get((last, first), 0.0)
            if self.result.p <= _LEVEL:
                return True
            if self.result.probability < self._confidence / 2:
                return False
        return False

    # What is said.

    def _sides(self) -> tuple[str, str]:
        """Failures and trials before the change, and from it on."""
        first, result = self.result.first, self.result
        before = f"{sum(result.failures[:first])} of {sum(result.trials[:first])}"
        return before, f"{sum(result.failures[first:])} of {sum(result.trials[first:])}"

    def conclusion(self) -> tuple[bool, str]:
        result, names = self.result, self.result.positions
        total = counted(self._started, "trial")
        if result.end == "no change":
            seen = f"{sum(result.failures)} of {sum(result.trials)} trials failed"
            return False, f"no change from {names[0]} to {names[-1]}: {seen} (probability {result.probability:.0%})"
        if result.end == "two changes":
            places = f"{names[result.first]} and {names[result.second]}"
            return False, f"two changes are likelier than one (probability {result.probability:.0%}): at {places}"
        if result.end == "open":
            if len(result.skipped) > len(names) - 2:
                cannot = f"{counted(len(result.skipped), 'position')} of {len(names)} cannot run"
                return False, f"nothing to bisect: {cannot}: {next(iter(result.skipped.values()))}"
            likely = max(self._likely(), key=lambda each: each[1], default=None)
            best = "" if likely is None else f"; the most likely is {likely[0]} ({likely[1]:.0%})"
            return False, f"not found in {total} (--max-trials){best}"
        before, after = self._sides()
        where = names[result.first]
        between = names[result.last + 1 : result.first]
        if between:
            where = f"one of {', '.join((*between, where))} (the others cannot run)"
        rate_before, rate_after = result.rates()
        does = "fails more often" if rate_after > rate_before else "fails less often"
        text = (
            f"from {where} on it {does}: {after} failed, {before} before it (probability {percent(result.probability)})"
        )
        ours, pairs, theirs, _ = result.confirmed
        beside = f"{ours} of {pairs} against {theirs} of {pairs} of {names[result.last]}"
        if result.end == "not confirmed":
            return False, f"{text}; fresh trials have not confirmed it in {total}: {beside}"
        return True, f"{text}; fresh trials confirm it: {beside} (p = {result.p:.2g})"

    def _likely(self) -> list[tuple[str, float]]:
        names = self.result.positions
        return [
            ("no change" if place is None else f"a change at {names[place[1]]}", chance)
            for place, chance in self._by_place().items()
        ]

    def report(self) -> list[str]:
        result = self.result
        lines = [self.conclusion()[1]]
        chances = {None if place is None else place[1]: chance for place, chance in self._by_place().items()}
        rows = [("position", "failed", "probability of a change here")]
        for position, name in enumerate(result.positions):
            if position in result.skipped:
                rows.append((name, "-", f"cannot run: {result.skipped[position]}"))
            elif result.trials[position]:
                chance = chances.get(position, 0.0)
                seen = f"{result.failures[position]} of {result.trials[position]}"
                rows.append((name, seen, percent(chance) if chance >= 0.0005 else ""))
        width = max(len(row[0]) for row in rows)
        lines += [f"{name:<{width}}  {failed:>10}  {text}".rstrip() for name, failed, text in rows]
        untried = len(result.positions) - len(rows) + 1
        if untried:
            lines.append(f"{counted(untried, 'position')} needed no trial")
        return lines
