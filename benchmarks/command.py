"""What a trial of a command costs, against ``subprocess.run`` of the same command in a loop."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.compare import Comparison, Rounds, Subject, duration
from benchmarks.processes import Workplace
from benchmarks.quiet import Quiet

#: Items of one pytest run, and runs of one loop.
TRIALS = 60

#: The most that a trial may add to its command, in seconds.
_EXPECTED = 0.02

#: The script takes as long as a small test does; the other one nothing.
PYTHON = (sys.executable, "-c", "pass")
NOTHING = ("true",)

#: The same for commands that import torch, those in forks and those as typed.
_FORKED, _TYPED = 12, 5

COMPARISONS = (
    Comparison("torch script / the same as a class", "torch script", "torch class", at_most=1.5),
    Comparison("torchrun as typed / in forks, 2 ranks", "torchrun typed", "torchrun", at_least=15),
    Comparison("trial / subprocess.run, python -c pass", "python", "plain python", at_most=2),
    Comparison("trial / subprocess.run, true", "true", "plain true"),
)


def subjects(place: Workplace) -> dict[str, Subject]:
    """Whose times are compared."""

    def trials(words: Sequence[str]) -> Callable[[], Sequence[float]]:
        options = (f"--aorta-command={shlex.join(words)}", f"--aorta-trials={TRIALS}")
        return lambda: place.items(sys.executable, "-p", "pytest_aorta.plugin.hooks", *options)

    def loop(words: Sequence[str]) -> Callable[[], Sequence[float]]:
        return lambda: list(json.loads(place.run(sys.executable, "plain_loop.py", str(TRIALS), *words)))

    def forked(*options: str, number: int = _FORKED) -> Callable[[], Sequence[float]]:
        return lambda: place.items(
            sys.executable, "-p", "pytest_aorta.plugin.hooks", *options, f"--aorta-trials={number}"
        )

    script = f"--aorta-command={shlex.join((sys.executable, 'torch_steps.py'))}"
    words = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "gloo_ranks_script.py")
    line = f"--aorta-command={shlex.join(words)}"
    return {
        "torch class": Subject("a trial of a class: 100 steps with torch", forked("torch_steps_workload.py")),
        "torch script": Subject("a trial of a script that does the same", forked(script)),
        "torchrun": Subject("a trial of torchrun with 2 gloo ranks, in forks", forked(line)),
        "torchrun typed": Subject("as typed", forked(line, "--aorta-launcher=as-typed", number=_TYPED)),
        "plain true": Subject("subprocess.run of true", loop(NOTHING)),
        "true": Subject("a trial of it", trials(NOTHING)),
        "plain python": Subject("subprocess.run of python -c pass", loop(PYTHON)),
        "python": Subject("a trial of it", trials(PYTHON)),
    }


def measure(place: Workplace, rounds: int, quiet: Quiet) -> dict[str, Any]:
    """Measure and print; all numbers, in seconds."""
    compared = Rounds(subjects(place), quiet)
    for _ in range(rounds):
        compared.add()
    print("\n".join(compared.lines(COMPARISONS)))
    added = {}
    for name, plain in (("true", "plain true"), ("python", "plain python")):
        pairs = zip(compared.seconds[name], compared.seconds[plain], strict=True)
        added[name] = min(of_trial - of_loop for of_trial, of_loop in pairs)
    met = "met" if max(added.values()) <= _EXPECTED else "MISSED"
    said = ", ".join(f"{duration(seconds)} to {name}" for name, seconds in added.items())
    print(f"a trial adds {said} in its best round, at most {duration(_EXPECTED)} expected: {met}")
    return {**compared.plain(COMPARISONS), "added": added}
