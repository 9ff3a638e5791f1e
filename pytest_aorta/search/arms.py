"""The trials of a search: how many may still run, how those of each arm have ended, and what fresh pairs confirm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from pytest_aorta.common.texts import counted, one_line
from pytest_aorta.search import Wanted
from pytest_aorta.triage import MARGIN
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.sequential import SequentialTest

#: Probability that any pairs of a search confirm a difference although there is none.
LEVEL = 0.05

#: After so many trials of an arm of which none says anything of the workload, it cannot be tested.
_NOT_RUN = 3

#: Yields the trials that are wanted, is sent what became of them; and returns something.
Ends = Generator[list[Wanted], list[TrialFacts], list[bool | None]]
Confirms = Generator[list[Wanted], list[TrialFacts], bool]


@dataclass(frozen=True)
class Confirmation:
    """Fresh pairs of trials, one of each of two arms: how many of ``pairs`` failed with the one and the other."""

    failures: int = 0
    base_failures: int = 0
    pairs: int = 0
    p: float = 1.0
    level: float = LEVEL

    @property
    def holds(self) -> bool:
        return self.p <= self.level

    @property
    def text(self) -> str:
        """``9 of 12 against 0 of 12``."""
        return f"{self.failures} of {self.pairs} against {self.base_failures} of {self.pairs}"


def slowness(facts: TrialFacts) -> float | None:
    """Milliseconds of a step (the median), or of the whole trial where it has no steps; ``None`` if it has failed."""
    if facts.is_failure or not facts.is_counted:
        return None
    if facts.steps is not None:
        return facts.steps.median_ms
    return None if facts.wall_sec is None else 1000 * facts.wall_sec


class Arms:
    """``number`` arms, of which ``most`` trials in all may run, ``at_once`` side by side.

    Args:
        signature: only failures whose text contains it count.
        hides: trials that fail in another way than ``signature`` do not count, as they may have hidden it; else they
            are passes.

    Attributes:
        failures, trials: of each arm, without what says nothing of the workload.
        ways: of each arm, how often it failed in which way.
        unable: arms that cannot be tested, and what became of their trials.
        ended: trials of all arms.
        confirmation: of the last attempt.
        slow_above: where it is a number, trials count as failed that are slower, see ``slowness``, and those that have
            failed do not count.
    """

    def __init__(self, number: int, most: int, at_once: int = 1, signature: str = "", *, hides: bool = False) -> None:
        self.failures, self.trials = [0] * number, [0] * number
        self.ways = [Counter[str]() for _ in range(number)]
        self.unable: dict[int, str] = {}
        self.ended = 0
        self.confirmation = Confirmation()
        self.slow_above: float | None = None
        self.most, self.at_once = most, at_once
        self._signature, self._hides = signature, hides
        self._asked, self._silent = [0] * number, [0] * number
        self._attempts = 0

    @property
    def left(self) -> int:
        return max(0, self.most - self.ended)

    @property
    def total_text(self) -> str:
        """``6 trials``, with the option that allows more where these were all."""
        return f"{counted(self.ended, 'trial')}{'' if self.left else ' (--max-trials)'}"

    def asked(self, arm: int) -> int:
        """How many of its trials were wanted so far."""
        return self._asked[arm]

    def run(self, arms: Sequence[int], blamed: int | None = None) -> Ends:
        """Whether a trial of each of these has failed; ``None`` for what does not count.

        ``blamed``: the arm that is said to fail more often. Its failures in another way are passes, whatever they hide:
        they never speak for what is said.
        """
        ended = yield from self._trials(arms)
        ends: list[bool | None] = []
        for arm, facts in zip(arms, ended, strict=True):
            way = "" if facts.signature is None else facts.signature.text
            slow = None if self.slow_above is None else slowness(facts)
            is_other = facts.is_failure and self._signature not in way
            is_hidden = is_other and self._hides
            if is_hidden or not facts.is_counted or (self.slow_above is not None and slow is None):
                ends.append(False if is_hidden and arm == blamed else None)
                self._silent[arm] += 1
                if self._silent[arm] >= _NOT_RUN and not self.trials[arm]:
                    self.unable[arm] = one_line(way or facts.outcome)[:200]
                continue
            has_failed = facts.is_failure and not is_other
            if self.slow_above is not None and slow is not None:
                has_failed, way = slow > self.slow_above, "slow"
            ends.append(has_failed)
            self.trials[arm] += 1
            self.failures[arm] += has_failed
            if has_failed:
                self.ways[arm][way] += 1
        return ends

    def times(self, arms: Sequence[int]) -> Generator[list[Wanted], list[TrialFacts], list[float | None]]:
        """The ``slowness`` of a trial of each of these, which count for nothing else."""
        return [slowness(facts) for facts in (yield from self._trials(arms))]

    def _trials(self, arms: Sequence[int]) -> Generator[list[Wanted], list[TrialFacts], list[TrialFacts]]:
        wanted = []
        for arm in arms:
            wanted.append(Wanted(arm, self._asked[arm]))
            self._asked[arm] += 1
        ended = yield wanted
        self.ended += len(ended)
        return ended

    def confirm(self, base: int, arm: int, *, is_more: bool, goes_on: Callable[[], bool]) -> Confirms:
        """Whether fresh pairs of trials, by turns, show that an arm fails more often than another (or less often).

        By a sequential test. The k-th attempt has 1 / (k (k + 1)) of the level, all attempts together have all of it.
        ``goes_on``: whether more pairs are worth it.
        """
        self._attempts += 1
        level = LEVEL / (self._attempts * (self._attempts + 1))
        test = SequentialTest(MARGIN, 1 - LEVEL)
        self.confirmation = Confirmation(level=level)
        while self.left and goes_on():
            pairs = [base, arm] * max(1, self.at_once // 2)
            ends = yield from self.run(pairs[: self.left], arm if is_more else base)
            test.pairs += [
                (float(theirs), float(ours))
                for theirs, ours in zip(ends[::2], ends[1::2], strict=False)  # the last trial may be alone
                if theirs is not None and ours is not None
            ]
            theirs, ours = (int(sum(pair[side] for pair in test.pairs)) for side in (0, 1))
            p = test.comparison().p if test.pairs else 1.0
            self.confirmation = Confirmation(ours, theirs, len(test.pairs), p, level)
            if self.confirmation.holds and ours != theirs and (ours > theirs) == is_more:
                return True
        return False
