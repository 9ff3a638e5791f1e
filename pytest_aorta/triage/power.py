"""How many trials of each cell show a cure: a cell that never fails, compared with a baseline of a given rate."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import comb, log

from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.cells import CellStatistics
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.judging import ENOUGH, LEVEL
from pytest_aorta.triage.rates import rate_below
from pytest_aorta.triage.verdicts import Row

POWER = 0.9

#: A fault that is rarer than this is worth a search for what makes it frequent.
FREQUENT = 0.1

#: Of a look for a fault that was not seen: its longest time, and its options.
LONGEST = "1h"
UNTIL_IT_FAILS = {"trials": "10000", "stop": f"failures=1,{LONGEST}"}

#: A cell with at most this share of the baseline's rate leads, and gets so many times the trials before it ends.
_LEADS, _MORE = 0.6, 4

#: Larger numbers of trials are not reported.
_MOST = 2000

#: Sequential tests are simulated at these rates, so many times each.
_SIMULATED, _RUNS = (0.2, 0.4, 0.6, 0.8, 1.0), 200


def trials_needed(rate: float, comparisons: int = 1, *, sequential: bool = False, confirm: bool = False) -> int | None:
    """Trials of each cell that show a cure of a fault of this ``rate`` with a chance of 90 %.

    ``comparisons`` share the level. ``sequential``: for tests that hold at any time, by simulation; ``confirm``: fresh
    pairs have to confirm. ``None`` for more than 2,000.
    """
    if not 0 < rate <= 1:
        return None
    if not sequential:
        return _at_once(float(f"{rate:.2g}"), comparisons)
    # The number of failures needed hardly depends on the rate, so interpolate it.
    place = max(0.0, (rate - _SIMULATED[0]) / (_SIMULATED[1] - _SIMULATED[0]))
    low = min(int(place), len(_SIMULATED) - 2)
    ends = [each * _at_any_time(each, comparisons, confirm) for each in _SIMULATED[low : low + 1 + (place > low)]]
    found = round((ends[0] + (place - low) * (ends[-1] - ends[0])) / rate)
    return None if found > _MOST else found


def smallest_fault(trials: int, comparisons: int = 1) -> float | None:
    """The lowest failure rate, in thousandths, at which trials of each cell show a cure with a chance of 90 %.

    For one test at the end, the inverse of ``trials_needed``; ``None`` if no rate is high enough.
    """
    thousandths = 1 + bisect_left(range(1, 1001), True, key=lambda each: _is_shown(each / 1000, trials, comparisons))
    return None if thousandths > 1000 else thousandths / 1000


@lru_cache(maxsize=256)
def _at_once(rate: float, comparisons: int) -> int | None:
    trials = 1 + bisect_left(range(1, _MOST + 1), True, key=lambda each: _is_shown(rate, each, comparisons))
    return None if trials > _MOST else trials


def _is_shown(rate: float, trials: int, comparisons: int) -> bool:
    """Whether a cell without a failure is called ``fixes`` with a chance of 90 %, with a baseline of this ``rate``.

    Uses Fisher's exact test, which has a closed form here; the table's test is a little more powerful. The bound on the
    cell's rate also has to be below half of the baseline's.
    """
    needed, p = 0, 2.0
    while p * comparisons >= LEVEL:
        if needed == trials:
            return False
        p *= (trials - needed) / (2 * trials - needed)
        needed += 1
    needed = max(needed, int(2 * trials * rate_below(trials)) + 1)
    fewer = sum(comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(needed))
    return 1 - fewer >= POWER


@lru_cache(maxsize=256)
def _at_any_time(rate: float, comparisons: int, confirm: bool) -> int:
    import numpy as np

    from pytest_aorta.triage.sequential import PairedEProcess, rate_upper_bound_sequential

    process, generator = PairedEProcess([0.0]), np.random.default_rng(0)
    # Limits of ``SequentialTest`` with Holm's correction, then of ``is_confirmed``.
    limits = np.array([log(2 * comparisons / LEVEL), *([log(1 / LEVEL)] if confirm else [])])
    stage, total = np.zeros(_RUNS, dtype=int), np.zeros(_RUNS)
    pairs, failures, capital = np.zeros(_RUNS, dtype=np.int64), np.zeros(_RUNS, dtype=np.int64), np.zeros(_RUNS)
    for number in range(1, _MOST + 1):
        states, which = np.unique(np.stack([pairs, failures]), axis=1, return_inverse=True)
        on_base, on_cell = process.gains(states[0], states[1], np.zeros(states.shape[1]))
        failed = generator.random(_RUNS) < rate
        which = which.ravel()
        capital += on_base[failed.astype(int), which, 1] + on_cell[0, which, 1]
        pairs, failures, total = pairs + 1, failures + failed, total + failed
        reached = (stage < len(limits)) & (capital >= limits[np.minimum(stage, len(limits) - 1)])
        stage[reached] += 1
        pairs[reached], failures[reached], capital[reached] = 0, 0, 0.0
        is_found = (stage == len(limits)) & (rate_upper_bound_sequential(0, number) < total / number / 2)
        if is_found.mean() >= POWER:
            return number
    return _MOST


def rate_seen(cells: Iterable[CellStatistics], base: CellStatistics) -> float:
    """The baseline's failure rate; if it has not failed, the highest of the other cells."""
    return base.rate or max((cell.rate or 0.0 for cell in cells), default=0.0)


def power_spent(
    cells: Mapping[CellKey, CellStatistics], key: CellKey, baseline: CellKey, family: int, settings: TriageSettings
) -> str:
    """Why an undecided cell needs no more trials: a cure would have shown in 90 %; empty if it needs more."""
    cell, base = cells[key], cells[baseline]
    rate = rate_seen(cells.values(), base)
    if not rate or min(cell.counted, base.counted) < ENOUGH:
        return ""
    needed = trials_needed(rate, family, sequential=True, confirm=settings.confirm)
    # A cell that fails clearly less is worth more trials, even if it is no cure.
    is_leading = bool(base.failures) and (cell.rate or 0.0) <= _LEADS * (base.rate or 0.0)
    if needed is None or min(cell.counted, base.counted) < needed * (_MORE if is_leading else 1):
        return ""
    return f"undecided with 90% power ({cell.failures} of {cell.counted} against {base.failures} of {base.counted})"


def power_sentence(
    undecided: Sequence[Row], rows: Sequence[Row], base: CellStatistics, settings: TriageSettings
) -> str:
    """What trials of the ``undecided`` rows can show: ``At 30%, 25 trials of each cell show a cure in 90%.``

    Empty if more trials would not decide, if there are too few to know the rate, and while trials run.
    """
    first = undecided[0]
    fewest = min(base.counted, *(row.cell.counted for row in undecided))
    if first.comparison is None or (first.comparison.method == "sequential") != settings.sequential:
        return ""
    if first.verdict.reason or first.verdict.of or base.shared_starts or fewest < ENOUGH:
        return ""
    rate = rate_seen((row.cell for row in rows), base)
    needed = trials_needed(rate, len(rows), sequential=settings.sequential, confirm=settings.confirm)
    if needed is None:
        return ""
    at = f"{rate:.2g}" if rate < 0.001 else f"{rate:.1%}".replace(".0%", "%") if rate < 0.1 else f"{rate:.0%}"
    if fewest < needed:
        return f"At {at}, {needed:,} trials of each cell show a cure in {POWER:.0%}."
    return f"A cure would have shown in {POWER:.0%}: at {at}, {needed:,} trials of each cell do."
