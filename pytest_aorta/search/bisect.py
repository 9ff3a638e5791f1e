"""Which change on an ordered axis (commits, versions, values, environments) changes how often trials fail."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import sqrt
from statistics import median
from typing import Any, Literal

from pytest_aorta.common.texts import counted
from pytest_aorta.search import Steps, Wanted
from pytest_aorta.search.arms import Arms, Confirmation
from pytest_aorta.search.posterior import ChangePoint
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.searches import SearchReport, SearchRow

#: Trials of each end that say what is slow.
_OF_EACH_END = 5

#: A second change is said where it is likelier than one or none.
_LIKELIER = 0.5

End = Literal["change", "no change", "two changes", "not confirmed", "open"]


@dataclass
class Bisection:
    """What is known at the end.

    Attributes:
        end: ``change`` is one that fresh trials have confirmed; ``open``: the budget has ended before.
        first: the first position after the change, ``last`` the last one before it; none between them can be tested.
        probability: of a change there; of ``end`` else.
        failures, trials: of each position, without what says nothing of the workload.
        skipped: positions that cannot be tested, as none of their trials says anything; and what became of one.
        confirmed: the fresh pairs of both sides.
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
    confirmed: Confirmation = field(default_factory=Confirmation)

    def rates(self) -> tuple[float, float]:
        """The failure rates before the change, and from it on."""
        return tuple(  # type: ignore[return-value]
            sum(self.failures[side]) / max(1, sum(self.trials[side]))
            for side in (slice(None, self.first), slice(self.first, None))
        )

    def to_json(self) -> dict[str, Any]:
        skipped = {self.positions[at]: why for at, why in self.skipped.items()}
        return {**vars(self), "skipped": skipped, "confirmed": vars(self.confirmed)}


def percent(chance: float) -> str:
    """``98.2%``; nothing is certain: ``over 99.9%``."""
    return "over 99.9%" if chance > 0.999 else f"{chance:.1%}"


class Bisect:
    """The search for the first position with another failure rate; neither rate is known.

    ``ChangePoint`` proposes positions until one change, or none, is as likely as ``confidence``. Then fresh trials of
    both sides of it run by turns, until a sequential test of these pairs shows the difference too.

    Args:
        positions: names, for sentences, in their order.
        most: trials in all.
        at_once: how many trials may run side by side.
        confidence: probability at which a change is taken for found.
        weights: how likely each position is before any trial.
        signature: only failures whose text contains it count; trials that fail in another way do not.
        speed: slow trials count, not failed ones: slower than the mean of the medians of both ends, of a few trials.
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
        speed: bool = False,
    ) -> None:
        self._speed = speed
        self._arms = Arms(len(positions), most, at_once, signature, hides=True)
        self.result = Bisection(
            tuple(positions),
            failures=self._arms.failures,
            trials=self._arms.trials,
            skipped=self._arms.unable,
        )
        self._weights, self._confidence = weights, confidence

    def steps(self) -> Steps:
        result, arms = self.result, self._arms
        if self._speed and not (yield from self._calibrate()):
            return
        while arms.left:
            chances = self._by_place()
            place = max(chances, key=lambda each: chances[each])
            result.probability = chances[place]
            if chances[place] >= self._confidence:
                probability, places = self._points().two_changes()
                if probability > _LIKELIER and len(result.positions) > 2:
                    result.end, result.probability = "two changes", probability
                    result.first, result.second = places
                    return
                if place is None:
                    result.end = "no change"
                    return
                result.last, result.first = place
                before, after = result.rates()
                # They count for the distribution as well, which may change its mind.
                is_confirmed = yield from arms.confirm(
                    *place, is_more=after > before, goes_on=partial(self._is_likely, place)
                )
                result.confirmed, result.probability = arms.confirmation, self._by_place().get(place, 0.0)
                if is_confirmed:
                    result.end = "change"
                    return
                if not arms.left and result.probability >= self._confidence:
                    result.end = "not confirmed"
            elif len(result.positions) - len(arms.unable) < 2:
                return
            else:
                yield from arms.run(self._choose())

    def _calibrate(self) -> Generator[list[Wanted], list[TrialFacts], bool]:
        """Find out what counts as slow, between the two ends; whether both have a time."""
        times: tuple[list[float], list[float]] = [], []
        ends = 0, len(self.result.positions) - 1
        for _ in range(_OF_EACH_END):
            for side, each in zip(times, (yield from self._arms.times(ends)), strict=True):
                side += [each] if each is not None else []
        if all(times):
            self._arms.slow_above = sqrt(median(times[0]) * median(times[1]))
        return all(times)

    def _is_likely(self, place: tuple[int, int]) -> bool:
        """Whether a change there is still half as likely as it has to be."""
        return self._by_place().get(place, 0.0) >= self._confidence / 2

    def _points(self) -> ChangePoint:
        """The distribution, of all trials by now."""
        points = ChangePoint(len(self.result.positions), self._weights)
        points.failures[:], points.trials[:] = self._arms.failures, self._arms.trials
        points.skipped[list(self._arms.unable)] = True
        return points

    def _by_place(self) -> dict[tuple[int, int] | None, float]:
        """The probability of a change between neighbours that can be run, and of none."""
        chances = self._points().distribution()
        runnable = [at for at in range(len(self.result.positions)) if at not in self._arms.unable]
        places: dict[tuple[int, int] | None, float] = {None: float(chances[-1])}
        for last, first in itertools.pairwise(runnable):
            places[last, first] = float(chances[last + 1 : first + 1].sum())
        return places

    def _choose(self) -> list[int]:
        """The next positions; of several, each as if those before had ended as expected."""
        points = self._points()
        chosen = [points.choose()]
        for _ in range(min(self._arms.at_once, self._arms.left) - 1):
            points.learn(chosen[-1], points.expected(chosen[-1]))
            chosen.append(points.choose())
        return chosen

    # What is said.

    def _sides(self) -> tuple[str, str]:
        """Failures and trials before the change, and from it on."""
        first, result = self.result.first, self.result
        before = f"{sum(result.failures[:first])} of {sum(result.trials[:first])}"
        return before, f"{sum(result.failures[first:])} of {sum(result.trials[first:])}"

    def conclusion(self) -> tuple[bool, str]:
        result, names = self.result, self.result.positions
        total = self._arms.total_text
        if self._speed and self._arms.slow_above is None:
            return False, f"nothing to bisect: {names[0]} or {names[-1]} has no step time, nor that of a whole trial"
        if result.end == "no change":
            what = f"were slower than {self._limit}" if self._speed else "failed"
            seen = f"{sum(result.failures)} of {sum(result.trials)} trials {what}"
            return False, f"no change from {names[0]} to {names[-1]}: {seen} (probability {result.probability:.0%})"
        if result.end == "two changes":
            places = f"{names[result.first]} and {names[result.second]}"
            return False, f"two changes are likelier than one (probability {result.probability:.0%}): at {places}"
        if result.end == "open":
            if len(result.skipped) > len(names) - 2:
                cannot = f"{counted(len(result.skipped), 'position')} of {len(names)} cannot be tested"
                return False, f"nothing to bisect: {cannot}: {next(iter(result.skipped.values()))}"
            likely = max(self._likely(), key=lambda each: each[1], default=None)
            best = "" if likely is None else f"; the most likely is {likely[0]} ({likely[1]:.0%})"
            return False, f"not found in {total}{best}"
        before, after = self._sides()
        where = names[result.first]
        between = names[result.last + 1 : result.first]
        if between:
            where = f"one of {', '.join((*between, where))} (the others cannot be tested)"
        rate_before, rate_after = result.rates()
        does = "fails more often" if rate_after > rate_before else "fails less often"
        what = "failed"
        if self._speed:
            does = "is slower" if rate_after > rate_before else "is faster"
            what = f"took longer than {self._limit}"
        text = (
            f"from {where} on it {does}: {after} {what}, {before} before it (probability {percent(result.probability)})"
        )
        beside = f"{result.confirmed.text} of {names[result.last]}"
        if result.end == "not confirmed":
            return False, f"{text}; fresh trials have not confirmed it in {total}: {beside}"
        return True, f"{text}; fresh trials confirm it: {beside} (p = {result.confirmed.p:.2g})"

    @property
    def _limit(self) -> str:
        """``12.3 ms``."""
        return f"{self._arms.slow_above or 0:.3g} ms"

    def _likely(self) -> list[tuple[str, float]]:
        names = self.result.positions
        return [
            ("no change" if place is None else f"a change at {names[place[1]]}", chance)
            for place, chance in self._by_place().items()
        ]

    def report(self) -> SearchReport:
        result = self.result
        is_found, sentence = self.conclusion()
        chances = {None if place is None else place[1]: chance for place, chance in self._by_place().items()}
        rows = []
        for position, name in enumerate(result.positions):
            failures, trials = result.failures[position], result.trials[position]
            if position in result.skipped:
                rows.append(SearchRow((name, "-", f"cannot be tested: {result.skipped[position]}")))
            elif trials:
                chance = chances.get(position, 0.0)
                cells = name, f"{failures} of {trials}", percent(chance) if chance >= 0.0005 else ""
                rows.append(SearchRow(cells, failures, trials, is_found and position == result.first))
        untried = len(result.positions) - len(rows)
        notes = [f"{counted(untried, 'position')} needed no trial"] * bool(untried)
        head = "position", f"over {self._limit}" if self._speed else "failed", "probability of a change here"
        return SearchReport(is_found, sentence, head, tuple(rows), tuple(notes))
