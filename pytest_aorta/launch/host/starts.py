"""How many trials of a cell are forked from one start, that is from one prepared process.

A start draws its hash seed, its address layout and what its imports draw; trials that are forked from it share these. A
cell has as many starts as cost allows, and more while each start has only passed or only failed trials.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_aorta.launch.launch_mode import FORKS

#: Each trial gets a start of its own if a start takes less than so many seconds, or keeps a core busy for less.
QUICK, QUICK_CPU = 0.5, 0.35

#: Largest cost of starts, as a fraction of the time of the trials.
SHARE = 0.25

#: A cell of N trials has at least min(5, N / 8) starts, and up to 12 while no start has passed and failed trials.
_LEAST, _TRIALS_OF_ONE, _MOST = 5, 8, 12

#: Seconds that a cell may always spend on further starts while no start has passed and failed trials.
_BUDGET = 30.0

#: Assumed number of trials of a cell whose number of trials is not known.
_OPEN = 40

#: One trial of so many is a process of its own, to compare forks with; level of that test.
_SENTINEL, _LEVEL = 20, 0.01


@dataclass(eq=False)
class ZygoteStart:
    """One process from which trials of a cell are forked.

    Attributes:
        index: its number in the cell.
        quota: trials that it will serve.
        given: trials that it was given so far.
        passed, failed: how they ended.
    """

    index: int
    quota: float = 1
    given: int = 0
    passed: int = 0
    failed: int = 0

    @property
    def is_spent(self) -> bool:
        return self.given >= self.quota

    @property
    def is_mixed(self) -> bool:
        return self.passed > 0 and self.failed > 0


@dataclass
class StartPlan:
    """Decides which start each trial of a cell comes from.

    Args:
        isolation: ``auto``, ``fork`` for one start, ``spawn`` for one for each trial.
        trials: of the cell; 0 where their number is not known.
        number: the starts have the indices ``number``, ``number + step``, ...: several processes may share a cell.
        fixed: a number of starts that the user has chosen.
    """

    isolation: str
    trials: int = 0
    number: int = 0
    step: int = 1
    fixed: int | None = None
    starts: list[ZygoteStart] = field(default_factory=list)
    #: Seconds that starts and trials took so far; seconds of a core that one start took.
    start_sec: list[float] = field(default_factory=list)
    start_cpu_sec: float = math.inf
    trial_sec: list[float] = field(default_factory=list)
    #: Whether forks have proved to fail more or less often than processes of their own.
    forks_differ: bool = False

    @property
    def count(self) -> int:
        """Number of trials from which the length of a start is computed."""
        return self.trials or _OPEN

    @property
    def reason(self) -> str:
        """The choice and its reason, for the user."""
        if self.isolation == "fork":
            return FORKS
        if self.isolation == "spawn":
            return "an interpreter for each trial"
        if self.fixed is not None:
            return f"{self.fixed} processes, by aorta_zygotes"
        if self.forks_differ:
            return "a process for each trial: forks of one process end otherwise"
        if not self.start_sec:
            return "nothing has started"
        start, trial = self._costs()
        costs = f"a start takes {start:.1f} s, a trial {trial:.1f} s"
        if self._is_cheap():
            return f"a process for each trial: {costs}"
        return f"up to {math.ceil(self._quota())} trials from one start: {costs}"

    def new_start(self) -> ZygoteStart:
        start = ZygoteStart(self.number + self.step * len(self.starts))
        self.starts.append(start)
        return start

    def is_sentinel(self, trial: int) -> bool:
        """Whether a trial is always a process of its own, in a cell with several starts."""
        several = self.isolation == "auto" and self.fixed is None and self.count > _TRIALS_OF_ONE
        return several and (trial < 2 or trial % _SENTINEL == 0)

    def quota(self, trial: int) -> float:
        """Number of trials, ``trial`` included, that the start of ``trial`` serves."""
        if self.isolation == "fork":
            return math.inf
        if self.isolation == "spawn" or self.forks_differ or self.is_sentinel(trial) or self._is_cheap():
            return 1
        return self._quota()

    def ended(self, start: ZygoteStart, passed: bool | None, sec: float) -> None:
        """Note the end of a trial; ``passed`` is ``None`` if it says nothing about the workload."""
        self.trial_sec.append(sec)
        if passed is None:
            return
        start.passed += passed
        start.failed += not passed
        if self.isolation == "auto" and not self.forks_differ:
            self.forks_differ = differ(self.starts)

    def _costs(self) -> tuple[float, float]:
        """Median seconds of a start and of a trial so far."""
        start = statistics.median(self.start_sec) if self.start_sec else math.inf
        return start, statistics.median(self.trial_sec) if self.trial_sec else 0.0

    def _is_cheap(self) -> bool:
        start, trial = self._costs()
        is_quick = start < QUICK or self.start_cpu_sec < QUICK_CPU
        return self.fixed is None and (is_quick or start <= SHARE * trial)

    def _quota(self) -> float:
        if self.fixed is not None:
            return math.ceil(self.count / self.fixed)
        start, trial = self._costs()
        wanted = min(_LEAST, math.ceil(self.count / _TRIALS_OF_ONE))
        if wanted > 1 and not any(each.is_mixed for each in self.starts):
            budget, sentinels = max(_BUDGET, trial * self.count), 2 + (self.count - 1) // _SENTINEL
            wanted = max(wanted, min(_MOST, int(budget / start)) - sentinels)
        most = start / (SHARE * trial) if trial > 0 else math.inf
        return max(1, min(most, max(self.count, _TRIALS_OF_ONE) / wanted))


def differ(starts: Sequence[ZygoteStart]) -> bool:
    """Whether trials that are processes of their own fail more or less often than forks of a shared process.

    Fisher's exact test at 1 %. A shared start whose trials all ended alike counts as one trial: they may have had to.
    """
    own, shared = [0, 0], [0, 0]
    for start in starts:
        if start.quota <= 1:
            own[0] += start.passed
            own[1] += start.failed
        elif start.is_mixed:
            shared[0] += start.passed
            shared[1] += start.failed
        else:
            shared[0] += start.passed > 0
            shared[1] += start.failed > 0
    return sum(own) > 0 and sum(shared) > 0 and fisher(own, shared) < _LEVEL


def fisher(one: Sequence[int], other: Sequence[int]) -> float:
    """Two-sided p value of Fisher's exact test for two rows of counts; sums all tables at most as likely as this."""
    first, second, total = sum(one), sum(other), one[0] + other[0]
    ways = [math.comb(first, k) * math.comb(second, total - k) for k in range(total + 1)]
    return sum(each for each in ways if each <= ways[one[0]]) / math.comb(first + second, total)
