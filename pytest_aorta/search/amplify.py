"""Which condition makes a rare fault frequent: one core, busy cores, another allocator, more threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_aorta.common.texts import counted
from pytest_aorta.search import Steps, Wanted
from pytest_aorta.triage import MARGIN
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.sequential import SequentialTest

#: Probability that any condition is named although none acts.
_LEVEL = 0.05

#: A condition is tried with fresh pairs where it fails so many times as often as without, with this probability, and
#: has failed so often.
_TIMES, _LIKELY, _FEWEST = 2.0, 0.9, 2

#: Trials of each condition before any has more than another; and draws of rates for the probability above.
_FIRST, _DRAWS = 2, 400

#: Most fresh pairs of one attempt to confirm a condition; a third of it where that fails at most twice as often.
_PAIRS = 150


@dataclass
class Amplified:
    """What is known at the end; ``conditions``: names, first the one without any.

    Attributes:
        found: number of the condition that makes it more frequent; ``None`` for none.
        failures, trials: of each condition, without what says nothing of the workload.
        pairs: of the confirmation: failures with the condition, failures without, pairs.
        p: of the confirmation; ``level``: what it had to be below.
        ways: with each condition, how often it failed in which way.
    """

    conditions: tuple[str, ...]
    found: int | None = None
    failures: list[int] = field(default_factory=list)
    trials: list[int] = field(default_factory=list)
    pairs: tuple[int, int, int] = (0, 0, 0)
    p: float = 1.0
    level: float = _LEVEL
    ways: list[Counter[str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return vars(self)


class Amplify:
    """The search: first a look for what may act, then fresh pairs of trials with and without it.

    The look spends its trials by Thompson sampling (1933, "On the likelihood that one unknown probability exceeds
    another"): each goes to the condition whose rate, drawn from its distribution, is the highest. What it leads to does
    not matter for the error: only fresh pairs decide, by a sequential test. The k-th attempt has 1 / (k (k + 1)) of the
    level, all attempts together have all of it.

    Args:
        conditions: names, first the one without any condition.
        most: trials in all.
        at_once: how many trials may run side by side.
        signature: only failures whose text contains it count.
    """

    def __init__(self, conditions: Sequence[str], most: int, at_once: int = 1, *, signature: str = "") -> None:
        number = len(conditions)
        self.result = Amplified(tuple(conditions), None, [0] * number, [0] * number)
        self.result.ways = [Counter() for _ in conditions]
        self._most, self._at_once, self._signature = most, at_once, signature
        self._started = 0
        self._next_index = [0] * number
        self._silent = [0] * number
        self._attempts = 0
        #: Trials that a condition needs before it is tried again, after it was not confirmed.
        self._not_before = [0] * number
        self._generator = np.random.default_rng(number)

    def steps(self) -> Steps:
        while self._started < self._most:
            candidate = self._candidate()
            if candidate is None:
                yield from self._run(self._choose())
            elif (yield from self._confirm(candidate)):
                self.result.found = candidate
                return
            else:
                self._not_before[candidate] = 2 * self.result.trials[candidate]

    def _rates(self, draws: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Rates of all conditions, drawn from their distributions (Jeffreys's prior)."""
        failures, trials = np.array(self.result.failures), np.array(self.result.trials)
        return np.asarray(self._generator.beta(failures + 0.5, trials - failures + 0.5, (draws, len(trials))))

    def _choose(self) -> list[int]:
        """The conditions of the next trials, without those none of whose first trials came to its main work."""
        number = min(self._at_once, self._most - self._started)
        usable = [at for at in range(len(self._silent)) if self._silent[at] < 3 or self.result.trials[at]]
        fewest = [at for at in usable if self._next_index[at] < _FIRST]
        if fewest:
            return sorted(fewest, key=lambda at: self._next_index[at])[:number]
        chosen = [max(usable, key=draw.__getitem__) for draw in self._rates(number)]
        # What a condition does is no better known than what happens without one.
        return [0 if self._next_index[0] < self._next_index[at] else at for at in chosen]

    def _candidate(self) -> int | None:
        """A condition that probably fails much more often than the trials without."""
        result = self.result
        rates = self._rates(_DRAWS)
        likely = (rates > _TIMES * rates[:, :1]).mean(axis=0)
        able = [
            at
            for at in range(1, len(result.trials))
            if result.failures[at] >= _FEWEST and likely[at] >= _LIKELY and result.trials[at] >= self._not_before[at]
        ]
        return max(able, key=lambda at: result.failures[at] / result.trials[at], default=None)

    def _run(self, arms: Sequence[int]) -> Generator[list[Wanted], list[TrialFacts], list[bool | None]]:
        """Whether the trials have failed; ``None`` for what says nothing of the workload."""
        result = self.result
        wanted = []
        for arm in arms:
            wanted.append(Wanted(arm, self._next_index[arm]))
            self._next_index[arm] += 1
        self._started += len(wanted)
        ends: list[bool | None] = []
        for arm, facts in zip(arms, (yield wanted), strict=True):
            if not facts.is_counted:
                ends.append(None)
                self._silent[arm] += 1
                continue
            way = "" if facts.signature is None else facts.signature.text
            has_failed = facts.is_failure and self._signature in way
            ends.append(has_failed)
            result.trials[arm] += 1
            result.failures[arm] += has_failed
            if has_failed:
                result.ways[arm][way] += 1
        return ends

    def _confirm(self, arm: int) -> Generator[list[Wanted], list[TrialFacts], bool]:
        """Whether fresh pairs of trials, one with the condition and one without, show that it fails more often."""
        self._attempts += 1
        level = _LEVEL / (self._attempts * (self._attempts + 1))
        test = SequentialTest(MARGIN, 1 - _LEVEL)
        with_it = without = 0
        while self._started < self._most:
            # Without a clear lead by then, it is given up for now.
            if len(test.pairs) >= (_PAIRS if with_it > _TIMES * without else _PAIRS // 3):
                break
            ends = yield from self._run([0, arm] * max(1, self._at_once // 2))
            for base, own in zip(ends[::2], ends[1::2], strict=True):
                if base is not None and own is not None:
                    test.pairs.append((float(base), float(own)))
                    without, with_it = without + base, with_it + own
            if test.pairs:
                self.result.pairs, self.result.p = (with_it, without, len(test.pairs)), test.comparison().p
                self.result.level = level
                if self.result.p <= level and with_it > without:
                    return True
        return False

    # What is said.

    def conclusion(self) -> tuple[bool, str]:
        result, total = self.result, counted(self._started, "trial")
        names = result.conditions
        if result.found is None:
            if not any(result.trials):
                return False, "nothing to amplify: no trial came to its main work"
            highest = max(range(len(names)), key=lambda at: (result.failures[at] / max(1, result.trials[at]), -at))
            seen = f"{result.failures[highest]} of {result.trials[highest]} failed with {names[highest]}"
            return False, f"no condition is shown to make it more frequent in {total} (--max-trials); at most {seen}"
        own, base = result.found, 0
        rates = [result.failures[at] / result.trials[at] for at in (own, base)]
        times = f": {rates[0] / rates[1]:.2g} times as often" if rates[1] else ""
        seen = f"{result.failures[own]} of {result.trials[own]} fail, {result.failures[base]} of {result.trials[base]}"
        with_it, without, pairs = result.pairs
        text = f"with {names[own]} {seen} without it{times} (fresh pairs: {with_it} against {without} of {pairs}, "
        return True, f"{text}p = {result.p:.2g}); {self._same()}"

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

    def report(self) -> list[str]:
        result = self.result
        rows = [("condition", "failed", "most frequent way")]
        order = sorted(range(len(result.conditions)), key=lambda at: -result.failures[at] / max(1, result.trials[at]))
        for at in order:
            seen = f"{result.failures[at]} of {result.trials[at]}" if result.trials[at] else "did not run"
            way = max(result.ways[at], key=lambda each: result.ways[at][each], default="")
            rows.append((result.conditions[at], seen, way))
        width = max(len(row[0]) for row in rows)
        return [
            self.conclusion()[1],
            *(f"{name:<{width}}  {failed:>11}  {way}".rstrip() for name, failed, way in rows),
        ]
