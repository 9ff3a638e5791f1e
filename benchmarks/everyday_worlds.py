"""Worlds in which a good statistician finds what acts, each with the test that finds it.

Drift and bursts that hit all cells of a round alike, bad hosts, stragglers and clocks, seeds that decide, and faults
that hide others. ``simulated_worlds`` judges them as all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import comb
from typing import TypeAlias

import numpy as np
from scipy.stats import mannwhitneyu, wilcoxon

from benchmarks.simulated_worlds import (
    LEVEL,
    LOWERS,
    RAISES,
    Fate,
    Fates,
    Numbers,
    Spot,
    Times,
    Truth,
    World,
    acting,
    barnard,
    by_chance,
    on_nodes,
    on_one_host,
    two_ways,
)

Reference: TypeAlias = Callable[[Sequence[Spot], Sequence[Fate], Numbers], bool]


def everyday() -> dict[str, list[World]]:
    """All of them, by what they are about."""
    return {
        "rounds": _rounds(),
        "speeds": _speeds(),
        "families": _families(),
        "ends": _ends(),
    }


# --- the tests that know the world -----------------------------------------------------------------------------------


def within_rounds(cell: int, base: int, cells: int) -> Reference:
    """McNemar's test with mid-p over rounds, corrected for all cells (Bonferroni)."""

    def finds(spots: Sequence[Spot], fates: Sequence[Fate], times: Numbers) -> bool:
        failed = {(spot.cell, spot.index): fate != "ok" for spot, fate in zip(spots, fates, strict=True)}
        pairs = [(failed[base, index], failed[cell, index]) for each, index in failed if each == cell]
        return _mid_p(pairs.count((True, False)), pairs.count((False, True))) * (cells - 1) < LEVEL

    return finds


def _mid_p(better: int, worse: int) -> float:
    pairs, fewer = better + worse, min(better, worse)
    if better == worse:
        return 1.0
    return (2 * sum(comb(pairs, k) for k in range(fewer + 1)) - comb(pairs, fewer)) / 2.0**pairs


def within_hosts(cell: int, cells: int) -> Reference:
    """The exact conditional test over hosts (Birch 1964) with mid-p, corrected for all cells."""

    def finds(spots: Sequence[Spot], fates: Sequence[Fate], times: Numbers) -> bool:
        tables: dict[str | None, list[list[bool]]] = {}
        for spot, fate in zip(spots, fates, strict=True):
            if spot.cell in (0, cell):
                tables.setdefault(spot.place.host, [[], []])[spot.cell == cell].append(fate != "ok")
        chances, seen = np.ones(1), 0
        for base, ours in tables.values():
            failed = sum(base) + sum(ours)
            chances = np.convolve(chances, [comb(len(ours), k) * comb(len(base), failed - k) if failed >= k else 0
                                            for k in range(len(ours) + 1)])  # fmt: skip
            seen += sum(ours)
        chances /= chances.sum()
        tail = min(chances[:seen].sum(), chances[seen + 1 :].sum()) + chances[seen] / 2
        return bool(2 * tail * (cells - 1) < LEVEL)

    return finds


def _sides(spots: Sequence[Spot], times: Numbers) -> tuple[Numbers, Numbers]:
    """Step times of the second cell, and of the first, by index."""
    found = [{spot.index: time for spot, time in zip(spots, times, strict=True) if spot.cell == cell}
             for cell in (1, 0)]  # fmt: skip
    return np.array([found[0][index] for index in found[0]]), np.array([found[1][index] for index in found[0]])


def by_ranks(spots: Sequence[Spot], fates: Sequence[Fate], times: Numbers) -> bool:
    """The test of Mann & Whitney of medians of trials."""
    return bool(mannwhitneyu(*_sides(spots, times)).pvalue < LEVEL)


def by_signed_ranks(spots: Sequence[Spot], fates: Sequence[Fate], times: Numbers) -> bool:
    """The signed rank test of Wilcoxon of pairs of one round."""
    ours, theirs = _sides(spots, times)
    return bool(wilcoxon(np.log(ours) - np.log(theirs)).pvalue < LEVEL)


def unpaired(cell: int, cells: int) -> Reference:
    """Barnard's test, corrected for all cells."""

    def finds(spots: Sequence[Spot], fates: Sequence[Fate], times: Numbers) -> bool:
        sides = [[fate != "ok" for spot, fate in zip(spots, fates, strict=True) if spot.cell == each]
                 for each in (cell, 0)]  # fmt: skip
        table = barnard(len(sides[0]), len(sides[1]))
        return bool(table[sum(sides[0]), sum(sides[1])] * (cells - 1) < LEVEL)

    return finds


# --- rounds ----------------------------------------------------------------------------------------------------------


def in_waves(middle: float, height: float, cured: int | None, periods: float = 1.0) -> Fates:
    """The failure rate of all cells rises and falls over the run as a sine does; one cell may be cured."""

    def fates(generator: np.random.Generator, spots: Sequence[Spot]) -> list[Fate]:
        def rate(spot: Spot) -> float:
            turn = spot.turn / len(spots)
            return 0.0 if spot.cell == cured else middle + height * float(np.sin(2 * np.pi * periods * turn))

        return by_chance(rate)(generator, spots)

    return fates


def in_bursts(rate: float, cured: int | None, *, per_cell: bool) -> Fates:
    """All trials of a burst fail, 3 to 10 in a row: of the run, or of each cell."""

    def states(generator: np.random.Generator, number: int) -> list[bool]:
        # 6.5 is the mean length of a burst.
        found: list[bool] = []
        while len(found) < 2 * number + 20:
            found += [False] * int(generator.geometric(1 / (1 + 6.5 * (1 - rate) / rate)) - 1)
            found += [True] * int(generator.integers(3, 11))
        start = int(generator.integers(number))
        return found[start : start + number]

    def fates(generator: np.random.Generator, spots: Sequence[Spot]) -> list[Fate]:
        cells = 1 + max(spot.cell for spot in spots)
        if per_cell:
            chains = [iter(states(generator, len(spots))) for _ in range(cells)]
        else:
            chains = [iter(states(generator, len(spots)))] * cells
        bad = [next(chains[spot.cell]) for spot in spots]
        return ["nan" if each and spot.cell != cured else "ok" for each, spot in zip(bad, spots, strict=True)]

    return fates


def _rounds() -> list[World]:
    found = []
    truth = Truth((0.4, 0.0, 0.4, 0.4), {1: LOWERS}, changes=True)
    alike = Truth((0.4,) * 4, changes=True)
    for rounds in (20, 40, 80):
        name = f"slow drift of all cells, {rounds} rounds"
        found.append(World(f"{name}, one of four cures", truth, on_one_host(4, rounds), in_waves(0.4, 0.35, 1),
                           reference=within_rounds(1, 0, 4)))  # fmt: skip
        found.append(World(f"{name}, none does", alike, on_one_host(4, rounds), in_waves(0.4, 0.35, None)))
    found.append(World("slow drift of both cells, 30 rounds, one cures", Truth((0.4, 0.0), {1: LOWERS}, changes=True),
                       on_one_host(2, 30), in_waves(0.4, 0.35, 1), reference=within_rounds(1, 0, 2)))  # fmt: skip
    found.append(World("the same, until decided", Truth((0.4, 0.0, 0.4, 0.4), {1: LOWERS}, changes=True),
                       on_one_host(4, 80), in_waves(0.4, 0.35, 1, 2.0), True))  # fmt: skip
    truth = Truth((0.3, 0.0, 0.3, 0.3), {1: LOWERS}, changes=True, in_runs=True)
    found.append(World("bursts over the run, 30 rounds, one of four cures", truth, on_one_host(4, 30),
                       in_bursts(0.3, 1, per_cell=False), reference=within_rounds(1, 0, 4)))  # fmt: skip
    alike = Truth((0.3,) * 4, changes=True, in_runs=True)
    found.append(World("bursts over the run, 30 rounds, none does", alike, on_one_host(4, 30),
                       in_bursts(0.3, None, per_cell=False)))  # fmt: skip
    for cells, rounds in ((4, 30), (4, 60), (2, 30)):
        alike = Truth((0.3,) * cells, in_runs=True)
        found.append(World(f"bursts of each of {cells} cells, {rounds} rounds", alike, on_one_host(cells, rounds),
                           in_bursts(0.3, None, per_cell=True)))  # fmt: skip

    def bad_hosts(cured: int | None) -> Fates:
        return by_chance(lambda spot: 0.8 if spot.place.host in ("node_1", "node_2") and spot.cell != cured else 0.0)

    truth = Truth((0.2, 0.0, 0.2, 0.2), {1: LOWERS}, culprit=r"node_[12]\b")
    found.append(World("two bad hosts of eight, 24 trials, one of four cures", truth, on_nodes(4, 24, 8, 3),
                       bad_hosts(1), reference=within_hosts(1, 4)))  # fmt: skip
    found.append(World("two bad hosts of eight, 24 trials, none does", Truth((0.2,) * 4, culprit=r"node_[12]\b"),
                       on_nodes(4, 24, 8, 3), bad_hosts(None)))  # fmt: skip
    return found


# --- step times ------------------------------------------------------------------------------------------------------


def taking(longer: float, noise: float, around: Callable[[np.random.Generator, Sequence[Spot]], Numbers]) -> Times:
    """10 ms for a step, the second cell so much longer; ``around``: what else makes them longer, as logarithms."""

    def times(generator: np.random.Generator, spots: Sequence[Spot]) -> Numbers:
        own = np.array([np.log(longer) if spot.cell == 1 else 0.0 for spot in spots])
        found = 10 * np.exp(own + noise * generator.standard_normal(len(spots)) + around(generator, spots))
        return np.asarray(found)

    return times


def _in_blocks(
    run: Callable[[np.random.Generator], list[Spot]], size: int
) -> Callable[[np.random.Generator], list[Spot]]:
    """So many trials of a cell, then as many of the next one, as a resumed run of grouped cells has them."""

    def spots(generator: np.random.Generator) -> list[Spot]:
        found = sorted(run(generator), key=lambda spot: (spot.index // size, spot.cell, spot.index))
        return [replace(spot, turn=turn) for turn, spot in enumerate(found)]

    return spots


def _straggling(generator: np.random.Generator, spots: Sequence[Spot]) -> Numbers:
    late = generator.random(len(spots)) < 0.1
    return np.asarray(np.where(late, np.log(generator.uniform(1.5, 3, len(spots))), 0.0))


def _two_clocks(generator: np.random.Generator, spots: Sequence[Spot]) -> Numbers:
    return np.asarray(np.where(generator.random(len(spots)) < 0.5, np.log(1.25), 0.0))


def _warming_up(generator: np.random.Generator, spots: Sequence[Spot]) -> Numbers:
    return np.array([0.2 * np.exp(-3 * spot.turn / len(spots)) for spot in spots])


def _wandering(generator: np.random.Generator, spots: Sequence[Spot]) -> Numbers:
    found, now = [], 0.03 * generator.standard_normal()
    for _ in spots:
        now = 0.9 * now + 0.03 * np.sqrt(1 - 0.9**2) * generator.standard_normal()
        found.append(now)
    return np.array(found)


def _speeds() -> list[World]:
    found = []
    none_fails = by_chance(lambda spot: 0.0)
    for longer, name, is_slower in ((1.1, "10 % slower", True), (1.0, "as fast", False)):
        truth = Truth((0.0, 0.0), slower=frozenset({1} if is_slower else ()))
        for rounds in (20, 60):
            found.append(World(f"{name}, every tenth trial a straggler, {rounds} rounds", truth,
                               on_one_host(2, rounds), none_fails, times=taking(longer, 0.03, _straggling),
                               reference=by_ranks if is_slower else None))  # fmt: skip
        found.append(World(f"{name}, two clocks, 60 rounds", truth, on_one_host(2, 60), none_fails,
                           times=taking(longer, 0.02, _two_clocks),
                           reference=by_ranks if is_slower else None))  # fmt: skip
    for longer, name, is_slower in ((1.08, "8 % slower", True), (1.0, "as fast", False)):
        truth = Truth((0.0, 0.0), slower=frozenset({1} if is_slower else ()), changes=True)
        found.append(World(f"{name}, warm-up over 20 rounds", truth, on_one_host(2, 20), none_fails,
                           times=taking(longer, 0.015, _warming_up),
                           reference=by_signed_ranks if is_slower else None))  # fmt: skip
        found.append(World(f"{name}, wandering by 3 %, 20 rounds", truth, on_one_host(2, 20), none_fails,
                           times=taking(longer, 0.005, _wandering),
                           reference=by_signed_ranks if is_slower else None))  # fmt: skip
        found.append(World(f"{name}, 3 % of noise, 20 rounds", truth, on_one_host(2, 20), none_fails,
                           times=taking(longer, 0.03, lambda generator, spots: np.zeros(len(spots))),
                           reference=by_ranks if is_slower else None))  # fmt: skip
    truth = Truth((0.0, 0.0), changes=True)
    found.append(World("as fast, wandering by 10 %, cell after cell, 20 rounds", truth,
                       on_one_host(2, 20, "cell after cell"), none_fails,
                       times=taking(1.0, 0.005, lambda g, spots: 3 * _wandering(g, spots))))  # fmt: skip
    found.append(World("as fast, wandering by 10 %, ten of a cell by turns, 20 rounds", truth,
                       _in_blocks(on_one_host(2, 20, "cell after cell"), 10), none_fails,
                       times=taking(1.0, 0.005, lambda g, spots: 3 * _wandering(g, spots))))  # fmt: skip
    return found


# --- how many trials `fixes` takes -----------------------------------------------------------------------------------


def _families() -> list[World]:
    found = []
    for base, rounds in ((0.3, (25, 25, 33)), (0.1, (80, 92, 104))):
        for others, number in zip((1, 3, 11), rounds, strict=True):
            truth, fates = acting(base, 0.0, others + 1)
            found.append(World(f"{base:.0%} -> 0, the first of {others}, {number} rounds", truth,
                               on_one_host(others + 1, number), fates,
                               reference=unpaired(1, others + 1)))  # fmt: skip
    return found


# --- seeds, hidden faults, competing ends, first trials --------------------------------------------------------------


def _by_seed(failing: int) -> Fates:
    """The same trials fail in each cell, so many of them."""

    def fates(generator: np.random.Generator, spots: Sequence[Spot]) -> list[Fate]:
        trials = 1 + max(spot.index for spot in spots)
        bad = set(generator.permutation(trials)[:failing].tolist())
        return ["nan" if spot.index in bad else "ok" for spot in spots]

    return fates


def _ends() -> list[World]:
    found = [
        World("the seed decides, 19 of 30 in each of 3 cells", Truth((19 / 30,) * 3, says="seed", lies="come in runs"),
              on_one_host(3, 30), _by_seed(19), run_seed=7),
    ]  # fmt: skip
    hidden = Truth((1.0, 0.9), {1: LOWERS}, {(1, "nan"): LOWERS, (1, "SIGSEGV"): frozenset()}, says=r"hidden")
    found.append(World("NaN in 20 of 20 hid a crash in 18 of 20", hidden, on_one_host(2, 20),
                       two_ways(lambda spot: (1.0 - spot.cell, 0.9), ("nan", "crash")), oracle=None))  # fmt: skip
    partly = Truth((0.95, 0.3), {1: LOWERS}, {(1, "nan"): LOWERS, (1, "SIGSEGV"): frozenset()}, says=r"hidden")
    found.append(World("NaN in 93 % hid a crash of 30 %, 40 rounds", partly, on_one_host(2, 40),
                       two_ways(lambda spot: (0.93 * (1 - spot.cell), 0.3), ("nan", "crash"))))  # fmt: skip
    sooner = Truth((0.4, 0.76), {1: RAISES}, {(1, "nan"): frozenset(), (1, "timeout"): RAISES})
    for rounds in (20, 40):
        found.append(World(f"time-outs come before NaN in 60 %, {rounds} rounds", sooner, on_one_host(2, rounds),
                           two_ways(lambda spot: (0.6 * spot.cell, 0.4), ("hang", "nan"))))  # fmt: skip
    for rest in (0.0, 0.1):
        first = Truth((rest,) * 4, says="first trial")
        found.append(World(f"the first trial of each cell fails, {rest:.0%} of the others", first, on_one_host(4, 20),
                           by_chance(partial(_first, rest))))  # fmt: skip
    return found


def _first(rest: float, spot: Spot) -> float:
    return 1.0 if spot.index == 0 else rest
