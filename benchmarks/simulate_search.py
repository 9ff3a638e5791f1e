"""How often searches are right, and after how many trials: ``python -m benchmarks.simulate_search``.

Each search is in a world whose change and rates are known, and neither is told to it. ``bisect``: until its
distribution is sure, without the pairs that confirm a change; beside it, where it is installed, ``git_bayesect`` on the
same worlds. ``amplify``: the whole search, of 1,000 trials at most, with 12 conditions. ``explain``: 40 differences.
``--searches N`` of each world (default 1,000: some hours; a quarter of bisections of 512 positions).
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_aorta.search import Search
from pytest_aorta.search.amplify import Amplify
from pytest_aorta.search.minimize import Minimize
from pytest_aorta.search.posterior import ChangePoint
from pytest_aorta.settings import TRIALS_UNTIL_DECIDED
from pytest_aorta.triage.facts import CellKey, TrialFacts

#: The failure rate of a position.
Rate = Callable[[int], float]

#: The change that was named (``None`` for none, or for no change), and after how many trials.
Answer = tuple[int | None, int]

WORLDS = [(number, before, after) for number in (8, 64, 512) for before, after in ((0, 1), (0, 0.3), (0.1, 0.5))]
WORLDS += [(8, 0.4, 0.5), (64, 0.4, 0.5)]

_FACTS = TrialFacts(CellKey("gemm", "local-none"), "local", ("none",), "gemm", 0, "trial_0.json", "ok")

#: Of one search.
_MOST = 20_000


def ours(positions: int, rate: Rate, generator: np.random.Generator, confidence: float, most: int = _MOST) -> Answer:
    points = ChangePoint(positions)
    for number in range(most):
        chances = points.distribution()
        if chances.max() >= confidence:
            best = int(np.argmax(chances))
            return (None if best == positions else best), number
        position = points.choose()
        points.learn(position, generator.random() < rate(position))
    return None, most


def bayesect(positions: int, rate: Rate, generator: np.random.Generator, confidence: float) -> Answer:
    """Its positions count from the newest."""
    from git_bayesect import Bisector  # type: ignore[import-not-found]

    search = Bisector(np.ones(positions))
    for number in range(_MOST):
        if search.distribution.max() >= confidence:
            return positions - 1 - int(np.argmax(search.distribution)), number
        position = search.select()
        search.record(position, bool(generator.random() < rate(positions - 1 - position)))
    return None, _MOST


@dataclass
class Tally:
    searches: int = 0
    answers: int = 0
    right: int = 0
    trials: int = 0

    def add(self, answer: Answer, change: int) -> None:
        self.searches += 1
        self.answers += answer[0] is not None
        self.right += answer[0] == change
        self.trials += answer[1]

    @property
    def text(self) -> str:
        return f"{self.right / max(1, self.answers):6.1%} of {self.answers:>4}  {self.trials / self.searches:8.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=1000)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--only", choices=["bisect", "amplify", "explain"])
    given = parser.parse_args()
    if given.only in (None, "bisect"):
        bisections(given.searches, given.confidence)
    if given.only in (None, "amplify"):
        amplifications(given.searches)
    if given.only in (None, "explain"):
        explanations(given.searches)


def carried_out(search: Search, rate: Callable[[Any], float], generator: np.random.Generator) -> int:
    """Run a search to its end, where trials of an arm fail with its rate; how many trials it wanted."""
    steps, trials = search.steps(), 0
    wanted = next(steps)
    while True:
        trials += len(wanted)
        failed = [generator.random() < rate(one.arm) for one in wanted]
        try:
            wanted = steps.send([replace(_FACTS, outcome="failed" if each else "ok") for each in failed])
        except StopIteration:
            return trials


def explanations(searches: int) -> None:
    """40 differences: one acts, two do together, either of two does, or none."""
    print("what acts, rate with and without it: right, wrong, trials (at most 2,000)")
    names = tuple(f"V{number}" for number in range(40))
    worlds: dict[str, tuple[list[set[str]], float, float]] = {
        "one": ([{"V7"}], 0.4, 0.0),
        "two together": ([{"V7", "V23"}], 0.4, 0.0),
        "either of two": ([{"V7"}, {"V23"}], 0.4, 0.0),
        "one, and 5 % without": ([{"V7"}], 0.4, 0.05),
        "none": ([], 0.0, 0.0),
        "none, 20 % always": ([], 0.2, 0.2),
    }
    for what, (acting, with_it, without) in worlds.items():
        right = wrong = trials = 0
        for seed in range(searches):
            generator = np.random.default_rng(seed)
            search = Minimize(names, TRIALS_UNTIL_DECIDED, 2000, turns_on=True)

            def rate(arm: Any, acting: list[set[str]] = acting, low: float = without, high: float = with_it) -> float:
                return high if any(each <= {*(arm or ())} for each in acting) else low

            trials += carried_out(search, rate, generator)
            left = search.found.left
            is_right = left is None if not acting else left is not None and {*left} in acting
            right += is_right
            wrong += not is_right and left is not None and search.found.is_complete and not search.found.unsure
        shown = f"{with_it} and {without}"
        print(f"{what:<22} {shown:>12}: {right / searches:6.1%} {wrong / searches:6.1%} {trials / searches:8.1f}")


def amplifications(searches: int) -> None:
    """12 conditions, of which none or one acts."""
    print("rate without, of the condition that acts: named right, named wrong, trials (at most 1,000)")
    for base, acting in ((0.01, None), (0.1, None), (0.01, 0.3), (0.05, 0.2)):
        right = wrong = trials = 0
        for seed in range(searches):
            generator = np.random.default_rng(seed)
            acts = None if acting is None else int(generator.integers(1, 13))
            search = Amplify([str(number) for number in range(13)], 1000)

            def rate(arm: Any, acts: int | None = acts, low: float = base, high: float | None = acting) -> float:
                return high if high is not None and arm == acts else low

            trials += carried_out(search, rate, generator)
            found = search.result.found
            right += found == acts and found is not None
            wrong += found is not None and found != acts
        print(f"{base:>5} {acting or '-':>5}: {right / searches:6.1%} {wrong / searches:6.1%} {trials / searches:8.1f}")


def bisections(searches: int, confidence: float) -> None:
    methods: dict[str, Callable[[int, Rate, np.random.Generator, float], Answer]] = {"pytest-aorta": ours}
    if importlib.util.find_spec("git_bayesect"):
        methods["git_bayesect"] = bayesect
    print("positions  rates        " + "   ".join(f"{name}: right, trials" for name in methods))
    for positions, before, after in WORLDS:
        tallies = {name: Tally() for name in methods}
        for name, method in methods.items():
            generator = np.random.default_rng(1)
            for _ in range(searches if positions < 512 else searches // 4):
                change = int(generator.integers(1, positions))

                def rate(position: int, change: int = change, low: float = before, high: float = after) -> float:
                    return high if position >= change else low

                tallies[name].add(method(positions, rate, generator, confidence), change)
        texts = "   ".join(tally.text for tally in tallies.values())
        ratio = ""
        if len(tallies) > 1:
            one, other = (tally.trials for tally in tallies.values())
            ratio = f"   ratio {one / other:.2f}"
        print(f"{positions:>9}  {before:>4} -> {after:<4} {texts}{ratio}", flush=True)
    for flat in (0.05, 0.3, 0.6):
        generator, named = np.random.default_rng(2), 0
        for _ in range(200):
            answer, _ = ours(64, lambda _, rate=flat: rate, generator, confidence, 400)  # type: ignore[misc]
            named += answer is not None
        print(f"       64  {flat} all over, 400 trials: a change is named in {named / 200:.1%}", flush=True)


if __name__ == "__main__":
    main()
