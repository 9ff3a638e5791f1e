"""Nothing of a finished pytest run is left running, nor of a killed one."""

from __future__ import annotations

import signal

import pytest
from support.stage import Stage

#: The third trial waits for ever in the phase that is named in the environment.
WAITS = """
import os
import subprocess
import time
from pathlib import Path

class Waits:
    def __init__(self, config): pass
    def phase(self, name):
        if name == "setup":
            self.index = len(list(Path.cwd().glob("seen_*")))
            Path(f"seen_{self.index}").touch()
        if self.index == 2 and name == os.environ["WAIT_IN"]:
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
            time.sleep(0.3)  # by then, pytest waits for it
            Path("waiting").touch()
            time.sleep(1000)
    def setup(self):
        self.phase("setup")
    def run(self):
        self.phase("run")
        return {"passed": True, "metrics": {"index": self.index}}
    def cleanup(self):
        self.phase("cleanup")
"""


@pytest.fixture
def waits(stage: Stage) -> Stage:
    stage.write(waits=WAITS)
    return stage


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_nothing_survives_the_end_of_pytest(waits: Stage, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv("WAIT_IN", "run")
    process = waits.start("waits.py", "--aorta-trials", "5")
    waits.wait_until((waits.path / "waiting").exists)
    process.send_signal(number)
    process.communicate(timeout=60)
    waits.wait_until(lambda: not waits.left_running())
    # Whatever is there is complete.
    assert waits.statuses().items() >= {"Waits/trial_0.json": "ok", "Waits/trial_1.json": "ok"}.items()
    assert not [path for path in waits.everything() if path.endswith(".tmp")]
    # And the next run puts things in order.
    (waits.path / "waiting").unlink()
    waits.run("waits.py", "--aorta-trials", "5").assert_outcomes(passed=5)
    assert set(waits.statuses().values()) == {"ok"}
