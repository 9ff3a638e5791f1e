"""What the live view knows of a run while its trials run: how many, how long they take, and when they will be over.

Times are seconds of one clock that does not go back, such as ``time.monotonic()``; every function is given ``now``.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from pytest_aorta.triage.facts import COUNTED, FAILURES, Outcome

#: Workload, or action of a recipe, and cell.
CellName = tuple[str, str]

#: A trial is slow when it takes so many times its cell's median, and at least so many seconds.
_SLOW, _LEAST = 2.0, 1.0


@dataclass
class RunningTrial:
    """A trial that runs.

    Attributes:
        name: of its item.
        cell: that it is in; ``None`` where a test chooses the workload when it runs.
        place: its slot, host or xdist worker; empty where that is not known.
        begun: when it was started.
        step: that it has reported last, of ``total``.
        first: the step that it was seen at first, and when.
    """

    name: str
    cell: CellName | None
    place: str
    begun: float
    step: int | None = None
    total: int | None = None
    first: tuple[int, float] | None = None

    def reached(self, step: int, total: int | None, now: float) -> None:
        """Its last step is known."""
        if self.first is None or step < self.first[0]:  # ranks that were started again begin anew
            self.first = (step, now)
        self.step, self.total = step, total

    def left_by_steps(self, now: float) -> float | None:
        if self.step is None or self.total is None or self.first is None or self.step <= self.first[0]:
            return None
        step, since = self.first
        return max(0, self.total - self.step) * (now - since) / (self.step - step)


@dataclass
class CellPace:
    """The trials of a cell that are over; ``seconds`` sorted."""

    seconds: list[float] = field(default_factory=list)
    outcomes: Counter[Outcome] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        return sum(self.outcomes[name] for name in FAILURES)

    @property
    def counted(self) -> int:
        """Trials that say something of the workload."""
        return sum(self.outcomes[name] for name in COUNTED)

    @property
    def median(self) -> float:
        """Of the seconds that a trial took; the upper one of two in the middle."""
        return self.seconds[len(self.seconds) // 2]


class LiveState:
    """Counts of a run; ``slots`` trials run at a time. Not thread-safe."""

    def __init__(self, begun: float, slots: int = 1) -> None:
        self.begun = begun
        self.slots = slots
        self.running: dict[Hashable, RunningTrial] = {}
        self.cells: dict[CellName, CellPace] = {}
        #: Trials with a result; and those that were or will be run, as far as known.
        self.done = 0
        self.total = 0
        #: Items whose trial has no result yet, and how many that are in each cell.
        self._expected: dict[str, CellName | None] = {}
        self._left: Counter[CellName | None] = Counter()
        #: Trials that have ended, while their items were not yet reported.
        self._ended: dict[Hashable, CellName | None] = {}

    def expect(self, items: Iterable[tuple[str, CellName | None]]) -> None:
        """Items, by node id, each of which will run one trial."""
        for nodeid, cell in items:
            self._expected[nodeid] = cell
            self._left[cell] += 1
            self.total += 1

    def expects(self, nodeid: str) -> bool:
        """Whether an item will run a trial, or runs one."""
        return nodeid in self._expected

    def item_over(self, nodeid: str, *, ran: bool) -> None:
        """An item is over; unless it ``ran``, it has no trial."""
        if nodeid in self._expected:
            self._left[self._expected.pop(nodeid)] -= 1
            self.total -= not ran

    def ended(self, key: Hashable) -> None:
        """A trial runs no more; its result will follow."""
        if key in self.running:
            self._ended[key] = self.running.pop(key).cell

    def finished(self, key: Hashable, cell: CellName, seconds: float | None, outcome: Outcome) -> None:
        """The result of a trial, which took ``seconds`` if that was measured."""
        self.running.pop(key, None)
        self._ended.pop(key, None)
        self.done += 1
        pace = self.cells.setdefault(cell, CellPace())
        pace.outcomes[outcome] += 1
        if seconds is not None:
            bisect.insort(pace.seconds, seconds)

    def usual(self, cell: CellName | None) -> float | None:
        """Seconds that a trial of a cell takes: the median; where there is none, the mean of the other cells'."""
        if cell in self.cells and self.cells[cell].seconds:
            return self.cells[cell].median
        known = [pace.median for pace in self.cells.values() if pace.seconds]
        return sum(known) / len(known) if known else None

    def is_slow(self, trial: RunningTrial, now: float) -> bool:
        """Whether it takes twice as long as others of its cell."""
        pace = self.cells.get(trial.cell) if trial.cell is not None else None
        return pace is not None and bool(pace.seconds) and now - trial.begun >= max(_LEAST, _SLOW * pace.median)

    def left_of(self, trial: RunningTrial, now: float) -> float | None:
        """Seconds until a trial will be over: by its own steps, else by what is usual; ``None`` where neither says."""
        by_steps = trial.left_by_steps(now)
        if by_steps is not None:
            return by_steps
        usual = self.usual(trial.cell)
        left = None if usual is None else usual - (now - trial.begun)
        return left if left is not None and left > 0 else None

    def left(self, now: float) -> float | None:
        """Seconds until the run will be over: what is usual for all that is to come, divided by the slots.

        At least as long as any running trial; ``None`` while no trial has finished, nor any reports its steps.
        """
        lefts = [self.left_of(trial, now) for trial in self.running.values()]
        waiting = Counter(self._left)
        for cell in [*(trial.cell for trial in self.running.values()), *self._ended.values()]:
            waiting[cell if waiting[cell] > 0 else None] -= 1  # a test chooses its workload when it runs
        wholes = [
            now - trial.begun + left
            for trial, left in zip(self.running.values(), lefts, strict=True)
            if left is not None and trial.step is not None
        ]
        to_come = 0.0
        for cell, number in waiting.items():
            if number > 0:
                each = self.usual(cell)
                each = sum(wholes) / len(wholes) if each is None and wholes else each
                if each is None:
                    return None
                to_come += number * each
        known = [left for left in lefts if left is not None]
        if not known and not to_come:
            return None
        return max([(to_come + sum(known)) / max(1, self.slots), *known])
