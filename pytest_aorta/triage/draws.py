"""Trials that share a process: everything that it draws at its start is one draw for all of them.

A *start* is a process from which trials are forked, or a trial that was a process of its own. Trials of one start share
its hash seed, its addresses and the draws of its imports; any of these may make all of them fail or pass. So tests
between cells use the start as their unit, not the trial. ``docs/explanation/statistics.md`` has the formulas.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb

from pytest_aorta.triage import Margin
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.rates import MOST_MORE, difference_p, more_trials, rate_below

#: Correlation within a start that the weights assume. Many trials of a start weigh at most twice as much as one, so
#: that the test also holds for cells with different numbers of starts (with 0.2, 12 against 4 differ falsely in 6.7 %).
_CORRELATION = 0.5

#: Up to so many different sums, exchanges of starts are counted exactly; else so many exchanges are drawn.
_MOST_SUMS, _EXCHANGES = 4_000, 9_999

#: A guess of more processes than this is not useful.
_MOST_STARTS = 100

#: Level of the test between fresh processes and forks.
_FORKS_LEVEL = 0.01


@dataclass(frozen=True)
class Start:
    """Counted trials of one process, and how many of them have failed.

    ``place``: ``None`` if its trials ran in several.
    """

    failures: int
    trials: int
    place: Hashable = None

    @property
    def share(self) -> float:
        return self.failures / self.trials

    @property
    def is_shared(self) -> bool:
        return self.trials > 1


def shared_starts(trials: Iterable[TrialFacts]) -> dict[CellKey, set[int]]:
    """The starts of each cell that served several counted trials."""
    numbers = Counter((each.key, each.start) for each in trials if each.is_counted and each.start is not None)
    shared: dict[CellKey, set[int]] = {}
    for (key, start), number in numbers.items():
        if number > 1 and start is not None:
            shared.setdefault(key, set()).add(start)
    return shared


def group_by_start(
    trials: Iterable[TrialFacts],
    failed: Callable[[TrialFacts], bool] = lambda facts: facts.is_failure,
) -> tuple[Start, ...]:
    """Group the counted trials of one cell by start, in the order of their first trials."""
    members: dict[Hashable, list[TrialFacts]] = {}
    for number, facts in enumerate(each for each in trials if each.is_counted):
        # Merged runs number their starts independently.
        own: Hashable = (facts.start, facts.hash_seed, facts.place.host, facts.place.job)
        members.setdefault(("of its own", number) if facts.start is None else own, []).append(facts)
    found = []
    for those in members.values():
        places = {facts.place.key for facts in those}
        found.append(Start(sum(map(failed, those)), len(those), places.pop() if len(places) == 1 else None))
    return tuple(found)


def independent(starts: Sequence[Start]) -> float:
    """Effective number of trials if those of a start end alike: (sum n)^2 / sum n^2 (Kish 1965, "Survey Sampling")."""
    squares = sum(start.trials**2 for start in starts)
    return sum(start.trials for start in starts) ** 2 / squares if squares else 0.0


# The test between two cells.


@lru_cache(maxsize=4096)
def starts_p(cell: tuple[Start, ...], base: tuple[Start, ...]) -> float:
    """The two-sided p value of "the starts of both cells are exchangeable"; 1 without one on either side.

    An exact permutation test (Fisher 1935; of clusters: Gail et al. 1996, "On design considerations and
    randomization-based inference for community intervention trials"): starts are exchanged between the cells with all
    of their trials, so that their correlation does not matter. The statistic is the sum over the cell's starts of
    w (share - mean share), with w = n / (1 + 0.5 (n - 1)) for n trials; twice the smaller tail. Where each start has
    one place, only starts of one place are exchanged. If there are more than 4,000 sums, 9,999 exchanges are drawn;
    the same starts always give the same number.
    """
    by_place = all(start.place is not None for start in (*cell, *base))
    strata: dict[Hashable, tuple[list[Start], list[Start]]] = {}
    for side, starts in enumerate((cell, base)):
        for start in starts:
            strata.setdefault(start.place if by_place else None, ([], []))[side].append(start)
    lots: list[tuple[list[int], int]] = []
    seen = 0
    for ours, theirs in strata.values():
        if ours and theirs:
            both = [*ours, *theirs]
            weights = [start.trials / (1 + _CORRELATION * (start.trials - 1)) for start in both]
            mean = sum(w * start.share for w, start in zip(weights, both, strict=True)) / sum(weights)
            # Whole numbers, so that equal sums are equal.
            scores = [round(1e6 * w * (start.share - mean)) for w, start in zip(weights, both, strict=True)]
            lots.append((scores, len(ours)))
            seen += sum(scores[: len(ours)])
    if not any(any(scores) for scores, _ in lots):
        return 1.0
    sums: dict[int, int] | None = {0: 1}
    for scores, size in lots:
        sums = None if sums is None else _convolved(sums, scores, size)
    if sums is None:
        return _drawn_p(lots, seen)
    every = sum(sums.values())
    tails = sum(n for each, n in sums.items() if each <= seen), sum(n for each, n in sums.items() if each >= seen)
    return min(1.0, 2 * min(tails) / every)


def _convolved(before: dict[int, int], scores: Sequence[int], size: int) -> dict[int, int] | None:
    """Add ``size`` of these scores to each sum, with the number of ways; ``None`` if there are too many sums."""
    by_number: list[dict[int, int]] = [before, *({} for _ in range(size))]
    for score, alike in Counter(scores).items():
        for number in range(size, 0, -1):
            into = by_number[number]
            for taken in range(1, min(alike, number) + 1):
                ways = comb(alike, taken)
                for total, times in by_number[number - taken].items():
                    key = total + taken * score
                    into[key] = into.get(key, 0) + ways * times
            if len(into) > _MOST_SUMS:
                return None
    return by_number[size]


def _drawn_p(lots: Sequence[tuple[Sequence[int], int]], seen: int) -> float:
    import numpy as np

    generator = np.random.default_rng(len(lots) + sum(len(scores) for scores, _ in lots))
    sums = np.zeros(_EXCHANGES, dtype=np.int64)
    for scores, size in lots:
        chosen = np.argsort(generator.random((_EXCHANGES, len(scores))), axis=1)[:, :size]
        sums += np.array(scores, dtype=np.int64)[chosen].sum(axis=1)
    tails = int((sums <= seen).sum()), int((sums >= seen).sum())
    return min(1.0, 2 * (1 + min(tails)) / (1 + _EXCHANGES))


def more_starts(cell: Sequence[Start], base: Sequence[Start], comparisons: int = 1) -> int | None:
    """The fewest further processes of each cell with which a difference can be shown; ``None`` if no share differs.

    It assumes that further starts are as those of both cells together, and the clearest split: the starts with the
    highest shares of failures all in one cell. That split has to reach p < 0.05 in ``starts_p``, shared by all
    ``comparisons`` (Bonferroni). Below that number no split can be a difference, whichever cell the failing starts
    belong to: so a run may go on to that number and test as if it had been planned.
    """
    shares = sorted((start.share for start in (*cell, *base)), reverse=True)
    if not cell or not base or shares[0] == shares[-1]:
        return None
    middle = shares[(len(shares) - 1) // 2]
    above, alike = (
        sum(share > middle for share in shares) / len(shares),
        sum(share == middle for share in shares) / len(shares),
    )
    fewest = min(len(cell), len(base))
    for size in range(2, fewest + MOST_MORE + 1):
        higher = min(size, round(above * 2 * size))
        same = max(size - higher, round(alike * 2 * size))
        # 2 C(same, chosen) / C(2 size, size), in whole numbers.
        if 40 * comparisons * comb(same, size - higher) < comb(2 * size, size):
            return max(0, size - fewest)
    return None


@dataclass(frozen=True)
class StartComparison:
    """The test of two cells by starts, for cells in which a start served several trials.

    Attributes:
        cell, base: the starts of both.
        seconds: duration of a fresh process, or of a trial if there was none.
        cells: number of cells that share the baseline, itself included.
    """

    cell: tuple[Start, ...]
    base: tuple[Start, ...]
    seconds: float | None = None
    cells: int = 2

    @property
    def p(self) -> float:
        return starts_p(self.cell, self.base)

    @property
    def are_alike(self) -> bool:
        """Whether the trials of a start end alike: some start failed in all of its trials, and none has both ends."""
        shared = [start for start in (*self.cell, *self.base) if start.is_shared]
        return any(start.failures for start in shared) and all(start.share in (0, 1) for start in shared)

    def guess(self, margin: Margin, comparisons: int) -> int | None:
        """Guess how many more processes of each cell would decide, by ``rates.more_trials`` with starts as trials."""
        ours, theirs = (sum(start.share > 0.5 for start in side) for side in (self.cell, self.base))
        more = more_trials(ours, len(self.cell), theirs, len(self.base), margin, comparisons)
        return None if more is None or more > _MOST_STARTS else more

    def reason(self, more: int | None, *, is_guess: bool = False) -> str:
        """Why it is undecided: ``the trials of a process are alike here; 6 more processes of each cell ... decide``."""
        fewest = min(len(self.cell), len(self.base))
        because = (
            "the trials of a process are alike here"
            if self.are_alike
            else f"the trials of a cell come from {processes(fewest)}"
        )
        if more is None:
            return f"{because}, and more than {_MOST_STARTS} more of each would be needed"
        seconds = None if self.seconds is None else self.seconds * more * self.cells
        about = "" if seconds is None else f" (about {_about(seconds)})"
        does = "would probably decide" if is_guess else f"decide{'s' * (more == 1)}"
        return f"{because}; {processes(more, ' more')} of each cell{about} {does}"


def processes(number: int, more: str = "") -> str:
    """``1 process``, ``6 more processes``."""
    return f"{number:,}{more} process{'es' * (number != 1)}"


def _about(seconds: float) -> str:
    """Round a duration to one or two digits: ``40 s``, ``3 min``."""
    if seconds < 100:
        return f"{max(1, round(seconds, -1) if seconds >= 20 else round(seconds)):g} s"
    return f"{round(seconds / 60):g} min" if seconds < 6000 else f"{round(seconds / 3600):g} h"


def seconds_of_process(trials: Iterable[TrialFacts]) -> float | None:
    """The median wall time of trials that were fresh processes; of all trials if none was."""
    timed = [each for each in trials if each.is_counted and each.wall_sec is not None]
    shared = shared_starts(timed)
    own = [each for each in timed if each.start not in shared.get(each.key, ())]
    walls = [each.wall_sec for each in own or timed if each.wall_sec is not None]
    return statistics.median(walls) if walls else None


# Bounds for cells without failures.


def start_rate_below(starts: Sequence[Start]) -> float | None:
    """Upper 95 % bound on the share of starts that fail, if none of K has: 1 - 0.05^(1/K).

    ``None`` if each trial was a process of its own: the bound on trials says the same.
    """
    return rate_below(len(starts)) if any(start.is_shared for start in starts) else None


# Fresh processes compared with forks.


@dataclass(frozen=True)
class ForkCheck:
    """Failures and trials of fresh processes, and of forks of shared starts; ``p`` of Boschloo's test."""

    own_failures: int
    own: int
    fork_failures: int
    forks: int
    p: float

    @property
    def differ(self) -> bool:
        """Whether forks fail at another rate than fresh processes, at 1 %."""
        return self.p < _FORKS_LEVEL

    @property
    def sentence(self) -> str:
        own, forks = f"{self.own_failures} of {self.own}", f"{self.fork_failures} of {self.forks}"
        return f"processes of their own fail in {own}, forks in {forks}: trials go on as processes of their own"


def check_forks(trials: Iterable[TrialFacts]) -> ForkCheck:
    """Compare a cell's trials in fresh processes with its forks (Boschloo's exact test).

    A start that has served one trial so far counts as a fresh process.
    """
    counted = [each for each in trials if each.is_counted]
    shared = shared_starts(counted)
    own = [each.is_failure for each in counted if each.start not in shared.get(each.key, ())]
    forks = [each.is_failure for each in counted if each.start in shared.get(each.key, ())]
    counts = sum(own), len(own), sum(forks), len(forks)
    return ForkCheck(*counts, difference_p(*counts))
