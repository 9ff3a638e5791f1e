"""The examples of docs/ending.md, as they are typed there."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from support.stage import Stage, counts

PAGE = (Path(__file__).parents[2] / "docs" / "ending.md").read_text()

COMMANDS = [shlex.split(text)[1:] for text in re.findall(r"^```\n(pytest(?:-aorta)? .*)\n```$", PAGE, re.MULTILINE)]
UNTIL_DECIDED, FOR_SO_LONG, WITH_GATES, MINIMIZE = COMMANDS

SHOWN = re.findall(r"^```text\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        len(os.sched_getaffinity(0)) < 2, reason="on one core there is one thread, and nothing that could differ"
    ),
]


def per_cell(stage: Stage) -> Counter[str]:
    """How many trial files each cell has."""
    return Counter(path.split("/")[1] for path in stage.files())


def test_it_runs_until_all_is_decided(stage: Stage) -> None:
    done = stage.run_here(*UNTIL_DECIDED)
    assert per_cell(stage) == {"local-none": 8, "local-omp_1": 8}
    for line in SHOWN[0].splitlines():
        assert line in done.outlines


def test_it_runs_for_so_long(stage: Stage) -> None:
    done = stage.run_here(*["3s" if word == "8h" else word for word in FOR_SO_LONG], "--aorta-trials", "40")
    (rounds,) = set(per_cell(stage).values())
    assert re.search(rf"^{rounds} rounds? within 3s", done.stdout.str(), re.MULTILINE)


def test_gates_decide(stage: Stage) -> None:
    done = stage.run_here(*WITH_GATES)
    assert done.ret == 0
    for line in SHOWN[1].splitlines():
        assert line in done.outlines


def test_one_of_eight_variables_is_found(stage: Stage) -> None:
    (registry,) = re.findall(r"^```json\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL)
    stage.write_file("eight.json", registry)
    done = stage.aorta(*MINIMIZE)
    assert counts(done) == {"passed": 1}
    assert SHOWN[2].strip() in done.outlines
