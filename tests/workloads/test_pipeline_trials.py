"""Trials of the pipeline workload, which end all processes that it has started."""

from __future__ import annotations

import os
import signal

import pytest
from support.processes import PATIENCE
from support.stage import Stage


@pytest.mark.slow
def test_trials_pass_and_leave_nothing_running(stage: Stage) -> None:
    options = ("--aorta-trials", "2", "--aorta-steps", "1", "--aorta-slots", "2")
    result = stage.run_here("--aorta-workload", "pipeline", *options)

    result.assert_outcomes(passed=2)
    assert set(stage.statuses().values()) == {"ok"}
    assert stage.left_running() == []


FAULTY = """
import os, time
from aorta_workloads.pipeline import Pipeline

def hangs(args):
    open(f"hanging_{os.getpid()}", "w").close()
    time.sleep(1000)

class Hangs(Pipeline):
    multiply = staticmethod(hangs)

    def run(self):
        with open("trial", "w") as file:
            file.write(str(os.getpid()))
        return super().run()
"""


@pytest.mark.slow
def test_trial_that_is_killed_within_a_task_leaves_nothing_running(stage: Stage) -> None:
    stage.write(faulty=FAULTY)
    stage.register(hangs="faulty:Hangs")

    running = stage.start("--aorta-workload", "hangs")
    stage.wait_until(lambda: len(list(stage.path.glob("hanging_*"))) == 2)
    os.kill(int((stage.path / "trial").read_text()), signal.SIGKILL)
    running.communicate(timeout=PATIENCE)

    [trial] = stage.trials().values()
    assert trial["exit_status"] == "workload_failed"
    assert trial["failure"]["signal"] == "SIGKILL"
    assert stage.left_running() == []
