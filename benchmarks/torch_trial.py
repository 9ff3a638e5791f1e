"""What a trial costs that only imports torch, against a bare fork, a fresh process and pytest-forked."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compare import Comparison, Subject
from benchmarks.processes import Workplace

#: Items of one pytest run, and forks of one bare process.
TRIALS = 60

COMPARISONS = (
    Comparison("trial / bare fork", "trial", "fork", at_most=1.5),
    Comparison("trial / fork server of 30 lines", "trial", "server", at_most=1.3),
    Comparison("fresh process / trial", "import", "trial", at_least=40),
    Comparison("trial / pytest-forked", "trial", "forked", at_most=1.0),
)


def subjects(place: Workplace, forked: Path | None) -> dict[str, Subject]:
    """Whose times are compared; without the interpreter ``forked``, not pytest-forked's."""

    def trial() -> Sequence[float]:
        return place.items(
            sys.executable, "-p", "pytest_aorta.plugin.hooks", "trivial_workload.py", f"--aorta-trials={TRIALS}"
        )

    def fork() -> Sequence[float]:
        times: list[float] = json.loads(place.run(sys.executable, "bare_fork.py", str(TRIALS)))
        return times

    def server() -> Sequence[float]:
        times: list[float] = json.loads(place.run(sys.executable, "fork_server.py", str(TRIALS)))
        return times

    def fresh() -> Sequence[float]:
        return place.wall(sys.executable, "-c", "import torch")

    def with_forked() -> Sequence[float]:
        return place.items(
            str(forked), "-p", "pytest_forked", "--forked", "test_trivial.py", BENCHMARK_TRIALS=str(TRIALS)
        )

    # In this order, so that the trial is measured right beside what it is close to.
    found = {
        "fork": Subject("os.fork, os._exit, os.waitpid with torch imported", fork),
        "server": Subject("a fork server of 30 lines: fork, logs, deadline, a record written and synced", server),
        "trial": Subject("a trial that does nothing, --aorta-isolation fork", trial),
        "forked": Subject("a test that does nothing, pytest-forked", with_forked),
        "import": Subject('python -c "import torch"', fresh),
    }
    if forked is None:
        del found["forked"]
    return found
