"""Many ranks that start at once on a busy host: none may hang.

``AORTA_STRESS_TRIALS`` sets how many trials are run, of each kind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.stage import Stage
from support.workloads import GLOO

TRIALS = int(os.environ.get("AORTA_STRESS_TRIALS", "0"))

MEET = (
    GLOO
    + """

class Meet(Gloo):
    def run(self):
        dist.barrier()
        if os.environ.get("FAIL_FIRST") and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
            raise RuntimeError("once")
        return {"passed": True}
"""
)


@pytest.fixture
def busy_host() -> Iterator[None]:
    """Two processes that compute without end."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("busy_host")
@pytest.mark.parametrize(
    ("trials", "options"),
    [
        pytest.param(TRIALS or 120, ["--aorta-nproc", "12"], id="twelve ranks"),
        pytest.param(
            TRIALS or 40,
            ["--aorta-nproc", "3", "--aorta-elastic", "max_restarts=1", "--aorta-extra-env", "FAIL_FIRST=1"],
            id="restarts",
        ),
    ],
)
def test_no_trial_hangs(stage: Stage, trials: int, options: list[str]) -> None:
    stage.write(meet=MEET)
    process = stage.start("meet.py", "--aorta-trials", str(trials), "--aorta-timeout", "120", "--tb=line", *options)
    text = process.communicate(timeout=60 + 120 * trials)[0].decode()
    assert f"{trials} passed" in text
