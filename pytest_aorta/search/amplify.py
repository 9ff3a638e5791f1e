"""Which condition makes a rare fault frequent: one core, busy cores, another allocator, more threads."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import betaincc

from pytest_aorta.search import Steps
from pytest_aorta.search.arms import Arms, Confirmation
from pytest_aorta.triage.power import trials_needed
from pytest_aorta.triage.searches import SearchReport, SearchRow

#: A condition is tried with fresh pairs where it fails so many times as often as without, with this probability, and
#: has failed so often.
_TIMES, _LIKELY, _FEWEST = 2.0, 0.9, 2

#: None can fail so many times as often, with this probability: the search ends.
_FREQUENT = 0.999

#: Trials of each condition before any has more than another; and draws of rates for the probability above.
_FIRST, _DRAWS = 2, 400

#: Most fresh pairs of one attempt to confirm a condition; a third of it where that fails at most twice as often.
_PAIRS = 150


@dataclass
class Amplified:
    """What is known at the end.

    Attributes:
        conditions: names, first the one without any condition.
        found: number of the condition that makes it more frequent; ``None`` for none.
        failures, trials: of each condition, without what says nothing of the workload.
        confirmed: fresh pairs of trials with the condition and without.
        ways: with each condition, how often it failed in which way.
    """

    conditions: tuple[str, ...]
    found: int | None = None
    failures: list[int] = field(default_factory=list)
    trials: list[int] = field(default_factory=list)
    ways: list[Counter[str]] = field(default_factory=list)
    confirmed: Confirmation = field(default_factory=Confirmation)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "confirmed": vars(self.confirmed)}


class Amplify:
    """The search: first a look for what may act, then fresh pairs of trials with and without it.

    The look spends its trials by Thompson sampling (1933, "On the likelihood that one unknown probability exceeds
    another"): each goes to the condition whose rate, drawn from its distribution, is the highest. What it leads to does
    not matter for the error: only fresh pairs decide.

    Args:
        conditions: names, first the one without any condition.
        most: trials in all.
        at_once: how many trials may run side by side.
        signature: only failures whose text contains it count.
        sets: the mitigation set of each condition, for what to do next.
    """

    def __init__(
        self,
        conditions: Sequence[str],
        most: int,
        at_once: int = 1,
        *,
        signature: str = "",
        sets: Sequence[str] = (),
    ) -> None:
        self._sets = sets
        arms = self._arms = Arms(len(conditions), most, at_once, signature)
        self.result = Amplified(tuple(conditions), None, arms.failures, arms.trials, arms.ways)
        self._signature = signature
        #: Trials that a condition needs before it is tried again, after it was not confirmed.
        self._not_before = [0] * len(conditions)
        self._generator = np.random.default_rng(len(conditions))

    def steps(self) -> Steps:
        arms = self._arms
        while arms.left and not self._is_frequent():
            candidate = self._candidate()
            if candidate is None:
                yield from arms.run(self._choose())
            elif (yield from arms.confirm(0, candidate, is_more=True, goes_on=self._leads)):
                self.result.found, self.result.confirmed = candidate, arms.confirmation
                return
            else:
                self._not_before[candidate] = 2 * arms.trials[candidate]

    def _is_frequent(self) -> bool:
        failures, trials = self._arms.failures[0], self._arms.trials[0]
        return bool(betaincc(failures + 0.5, trials - failures + 0.5, 1 / _TIMES) >= _FREQUENT)

    def _leads(self) -> bool:
        """Whether more pairs are worth it: up to a third of them in any case, later those of a clear lead."""
        seen = self._arms.confirmation
        return seen.pairs < (_PAIRS if seen.failures > _TIMES * seen.base_failures else _PAIRS // 3)

    def _rates(self, draws: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Rates of all conditions, drawn from their distributions (Jeffreys's prior)."""
        failures, trials = np.array(self._arms.failures), np.array(self._arms.trials)
        return np.asarray(self._generator.beta(failures + 0.5, trials - failures + 0.5, (draws, len(trials))))

    def _choose(self) -> list[int]:
        """The conditions of the next trials, without those that say nothing."""
        arms = self._arms
        number = min(arms.at_once, arms.left)
        usable = [at for at in range(len(arms.trials)) if at not in arms.unable] or [0]
        if fewest := [at for at in usable if arms.asked(at) < _FIRST]:
            return sorted(fewest, key=arms.asked)[:number]
        chosen = [max(usable, key=draw.__getitem__) for draw in self._rates(number)]
        # What a condition does is no better known than what happens without one.
        return [0 if arms.asked(0) < arms.asked(at) else at for at in chosen]

    def _candidate(self) -> int | None:
        """A condition that probably fails much more often than the trials without."""
        failures, trials = self._arms.failures, self._arms.trials
        rates = self._rates(_DRAWS)
        likely = (rates > _TIMES * rates[:, :1]).mean(axis=0)
        able = [
            at
            for at in range(1, len(trials))
            if failures[at] >= _FEWEST and likely[at] >= _LIKELY and trials[at] >= self._not_before[at]
        ]
        return max(able, key=lambda at: failures[at] / trials[at], default=None)

    # What is said.

    def conclusion(self) -> tuple[bool, str]:
        result, names = self.result, self.result.conditions
        if result.found is None:
            if not any(result.trials):
                return False, "nothing to amplify: no trial came to its main work"
            if self._is_frequent():
                return False, f"nothing to amplify: {result.failures[0]} of {result.trials[0]} failed with {names[0]}"
            most = max(range(len(names)), key=lambda at: (result.failures[at] / max(1, result.trials[at]), -at))
            seen = f"{result.failures[most]} of {result.trials[most]} with {names[most]}"
            shown = f"no condition is shown to make it more frequent in {self._arms.total_text}"
            return False, f"{shown}; the most that failed: {seen}"
        # Trials that chose the condition make it look more frequent than it is: only those after them are counted.
        text = f"with {names[result.found]} it fails more often: {result.confirmed.text} without it, in fresh trials"
        return True, f"{text} (p = {result.confirmed.p:.2g}); {self._same()}"

    def _same(self) -> str:
        """Whether it is the same fault, as far as trials without the condition have shown that."""
        result = self.result
        assert result.found is not None
        own, base = result.ways[result.found], result.ways[0]
        if self._signature:
            return f"counted are failures with {self._signature!r}"
        if not base:
            return "whether it is the same fault is not known: none failed without it"
        ours, theirs = (max(each, key=lambda way: each[way]) for each in (own, base))
        if ours in base:
            return f"in the same way: {ours}"
        return f"but mostly in another way ({ours}) than without it ({theirs}): it may be another fault"

    def report(self) -> SearchReport:
        result, rows = self.result, []
        order = sorted(range(len(result.conditions)), key=lambda at: -result.failures[at] / max(1, result.trials[at]))
        for at in order:
            failures, trials = result.failures[at], result.trials[at]
            way = max(result.ways[at], key=lambda each: result.ways[at][each], default=self._arms.unable.get(at, ""))
            cells = result.conditions[at], f"{failures} of {trials}" if trials else "did not run", way
            rows.append(SearchRow(cells, failures, trials, at == result.found))
        head = "condition", "failed", "most frequent way"
        return SearchReport(*self.conclusion(), head, tuple(rows), tuple(self._next()))

    def _next(self) -> Iterator[str]:
        """What the condition saves, and how it is the baseline of mitigations."""
        found, seen = self.result.found, self.result.confirmed
        if found is None:
            return
        rates = [(failures + 0.5) / (seen.pairs + 1) for failures in (seen.base_failures, seen.failures)]
        before, now = (trials_needed(rate) for rate in rates)
        if now is not None:
            many = "over 2,000" if before is None else f"about {before:,}"
            yield f"to show a cure takes about {now:,} trials of each cell with it, {many} without"
        if self._sets:
            base, other = (shlex.quote(self._sets[found] + more) for more in ("", ",MITIGATION"))
            words = f"--aorta-mitigations {base} --aorta-mitigations {other} --aorta-baseline {base}"
            yield f"next: mitigations under it: {words}"
