"""How often ``pytest-aorta minimize`` names a wrong set: ``python -m benchmarks.simulate_minimize``.

Searches over eight variables whose effect is known; trials are drawn, none is run. A set is wrong that does not have
the effect, or of which a part has it. With 200 searches, about four minutes on two cores.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from pytest_aorta.search.minimize import Minimize, Minimized, conclusion
from pytest_aorta.triage.facts import CellKey, TrialFacts

VARIABLES = tuple("ABCDEFGH")

_FACTS = TrialFacts(CellKey("gemm", "local-none"), "local", ("none",), "gemm", 0, "trial_0.json", "ok")


@dataclass(frozen=True)
class World:
    """What is true.

    Attributes:
        sufficient: sets of variables; the effect is there with all variables of any of them.
        rate: failure rate of the baseline, by how many trials there were before.
        residual: failure rate of what has the effect, as a share of the baseline's.
        adds: of single variables, the share of the failures that each leaves, whatever the others do; then only what
            leaves as little as all of them together is right.
    """

    name: str
    sufficient: tuple[str, ...]
    rate: Callable[[int], float]
    residual: float = 0.0
    adds: tuple[tuple[str, float], ...] = ()

    def leaves(self, variables: tuple[str, ...]) -> float:
        """The share of the baseline's failures."""
        if self.adds:
            return prod(share for name, share in self.adds if name in variables)
        return self.residual if self.acts(variables) else 1.0

    def acts(self, variables: tuple[str, ...]) -> bool:
        return any(set(each) <= set(variables) for each in self.sufficient)

    def is_right(self, left: tuple[str, ...]) -> bool:
        """Whether it has the effect, and no part of it has."""
        return self.acts(left) and not any(self.acts(tuple(other for other in left if other != each)) for each in left)


def _constant(rate: float, before: int) -> float:
    return rate


def _drifting(first: float, last: float, before: int) -> float:
    return max(last, first + (last - first) * before / 200) if last < first else min(last, first + before / 400)


def _gone(rate: float, after: int, before: int) -> float:
    return rate if before < after else 0.0


def worlds() -> Iterator[World]:
    for rate in (1.0, 0.7, 0.4):
        constant = partial(_constant, rate)
        yield World(f"one variable, rate {rate}", ("F",), constant)
        yield World(f"a pair, rate {rate}", ("BG",), constant)
        yield World(f"either suffices, rate {rate}", ("C", "F"), constant)
        yield World(f"a pair or another variable, rate {rate}", ("BG", "D"), constant)
        yield World(f"one variable, residual 3 %, rate {rate}", ("F",), constant, 0.03 / rate)
        yield World(f"a pair, residual 3 %, rate {rate}", ("BG",), constant, 0.03 / rate)
    yield World("two that add up: .5 -> .25, .5 -> .2, both .1", ("BG",), partial(_constant, 0.5),
                adds=(("B", 0.5), ("G", 0.4)))  # fmt: skip
    yield World("two that add up: .5 -> .25 each, both .1", ("BG",), partial(_constant, 0.5),
                adds=(("B", 0.45), ("G", 0.45)))  # fmt: skip
    yield World("two that add up: .5 -> .1, .5 -> .25, both .05", ("BG",), partial(_constant, 0.5),
                adds=(("B", 0.2), ("G", 0.5)))  # fmt: skip
    yield World("three variables, rate 0.9", ("ACH",), partial(_constant, 0.9))
    yield World("reduces to 20 % of 0.8", ("BG",), partial(_constant, 0.8), 0.2)
    for first, last in ((0.9, 0.3), (0.3, 0.9)):
        yield World(f"a pair, drift {first} -> {last}", ("BG",), partial(_drifting, first, last), 0.03)
        yield World(f"either suffices, drift {first} -> {last}", ("C", "F"), partial(_drifting, first, last), 0.03)
    for after in (30, 60, 100):
        yield World(f"a pair, the fault goes after {after} trials", ("BG",), partial(_gone, 0.9, after), 0.03)


def search(world: World, seed: int) -> tuple[Minimized, int]:
    """One search, and how many trials it took."""
    rng = random.Random(f"{world.name} {seed}")
    found = Minimize(VARIABLES, most=200, most_in_all=2000)
    steps = found.steps()
    wanted, trials = next(steps), 0
    while True:
        facts = []
        for each in wanted:
            rate = world.rate(trials) * world.leaves(each.arm or ())
            facts.append(replace(_FACTS, index=each.index, outcome="failed" if rng.random() < rate else "ok"))
            trials += 1
        try:
            wanted = steps.send(facts)
        except StopIteration:
            return found.found, trials


def result(world: World, searches: int) -> str:
    """A row of the table."""
    ends = [search(world, seed) for seed in range(searches)]
    named = [found.left for found, _ in ends if found.left and conclusion(found, "it")[0]]
    right = sum(world.is_right(left) for left in named)
    gone = sum(found.tried[-1].answer == "gone" for found, _ in ends)
    trials = sum(number for _, number in ends) / searches
    shares = [(len(named) - right) / searches, right / searches, gone / searches]
    return f"| {world.name} | {' | '.join(f'{share:.1%}' for share in shares)} | {trials:.0f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--worlds", default="", help="only those with this in their name")
    options = parser.parse_args()
    print("| world | wrong set | right set | the fault went away | trials |")
    print("| --- | ---: | ---: | ---: | ---: |")
    with ProcessPoolExecutor(2) as pool:
        chosen = [world for world in worlds() if options.worlds in world.name]
        for row in pool.map(partial(_row, options.searches), [world.name for world in chosen]):
            print(row, flush=True)


def _row(searches: int, name: str) -> str:
    return result(next(world for world in worlds() if world.name == name), searches)


if __name__ == "__main__":
    main()
