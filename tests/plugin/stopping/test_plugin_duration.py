"""``--aorta-stop``: whole rounds over all cells until the time is over."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

import pytest
from support.stage import Stage, counts

from pytest_aorta.plugin.stopping import Rounds

WORKLOAD = """
import time

class Short:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        time.sleep(0.02)
        return {"passed": True}
"""

FOR_A_SECOND = (
    *(
        "--aorta-workload",
        "short",
        "--aorta-registry-file",
        "registry.json",
        "--aorta-stop",
        "1s",
        "--aorta-trials",
        "300",
    ),
    *("--aorta-mitigations", "none", "--aorta-mitigations", "a", "--aorta-mitigations", "b"),
)


@pytest.fixture
def short(stage: Stage) -> Stage:
    stage.write(short=WORKLOAD)
    stage.register(short="short:Short")
    stage.write_registry(mitigations={"a": {"A": "1"}, "b": {"B": "1"}})
    return stage


def rounds(stage: Stage) -> int:
    """How many rounds there are, all of them complete."""
    (number,) = set(Counter(path.split("/")[1] for path in stage.files()).values())
    return number


@pytest.mark.parametrize(
    "how",
    [
        (),
        pytest.param(("--aorta-slots", "2"), marks=pytest.mark.slow),
        pytest.param(("-n", "2"), marks=pytest.mark.slow),
        pytest.param(("-n", "2", "--dist", "worksteal"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_rounds_are_complete_and_what_does_not_begin_is_not_reported(short: Stage, how: tuple[str, ...]) -> None:
    done = short.run(*FOR_A_SECOND, *how)
    number = rounds(short)
    assert done.ret == 0
    assert counts(done) == {"passed": 3 * number}
    line = re.search(r"^(\d+) rounds? in 1s \(--aorta-stop\)$", done.stdout.str(), re.MULTILINE)
    assert line is not None
    assert int(line[1]) == number


def test_workers_agree_on_rounds_and_on_the_time(tmp_path: Path) -> None:
    one, other = Rounds(0.2, tmp_path), Rounds(0.2, tmp_path)
    assert one.begin("gemm 0")
    time.sleep(0.25)
    assert other.begin("gemm 0")
    assert not other.begin("gemm 1")
