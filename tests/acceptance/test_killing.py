"""What is left after a kill of: a worker, a zygote, pytest itself. And what trials leave behind on their own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.processes import is_gone, wait_for
from support.stage import PYTEST, Stage, counts

HERE = Path(__file__).parent


@pytest.fixture
def held(stage: Stage) -> Callable[[], psutil.Process]:
    """Waits for a trial of ``Held`` to be in the middle of ``run()``; its process."""
    stage.copy(HERE / "simple_workloads.py")

    def wait() -> psutil.Process:
        def pid() -> int | None:
            try:
                text = (stage.path / "held").read_text()
            except OSError:
                return None
            return int(text) if text.endswith("\n") else None

        return psutil.Process(wait_for(pid, "a trial that is held"))

    return wait


def trials_of_held(number: int, *options: str) -> tuple[str, ...]:
    """Arguments of pytest."""
    return ("simple_workloads.py", "-k", "Held", "--aorta-trials", str(number), *options)


def ancestor(process: psutil.Process, is_it: Callable[[psutil.Process], bool]) -> psutil.Process:
    """The closest one of that kind."""
    return next(parent for parent in process.parents() if is_it(parent))


def is_zygote(process: psutil.Process) -> bool:
    """By the command that it was started with."""
    return "pytest_aorta.runtime.zygote_main" in " ".join(process.cmdline())


@pytest.mark.parametrize("options", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["plain", "xdist"])
def test_a_killed_pytest(stage: Stage, held: Callable[[], psutil.Process], options: tuple[str, ...]) -> None:
    # Trial 0 of both workloads first: one is held, the other one's file is there before or after.
    both = ("simple_workloads.py", "-k", "Held or Second")
    running = stage.start(*both, *options)
    trial = held()
    assert len(trial.children()) == 2
    before = stage.trials()
    running.kill()
    running.wait(60)
    stage.wait_until_alone()
    assert is_gone(trial.pid)
    assert stage.trials() | before == stage.trials()
    assert "Held/trial_0.json" not in stage.files()
    # The next run in the same folder is not disturbed by what is left (a file that was just being written), and takes
    # it away.
    done = stage.run(*both)
    assert (done.ret, counts(done)) == (0, {"passed": 2})


def start_a_pair_that_hangs(stage: Stage, *command: str) -> subprocess.Popen[bytes]:
    """Start two trials of two ranks; returns in the middle of the second one, which hangs."""
    stage.copy(HERE / "gloo_workloads.py")
    options = ("--aorta-trials", "2", "--aorta-config", "script=nothing.hangs")
    running = stage.start_command(*command, "gloo_workloads.py", *options)
    asked = [stage.path / f"asked_by_rank_{rank}" for rank in (0, 1)]

    def both_have_begun() -> bool | None:
        return True if all(path.exists() and path.read_text() == "xx" for path in asked) else None

    wait_for(both_have_begun, "two ranks")
    return running


@pytest.mark.slow
def test_a_killed_pytest_with_ranks(stage: Stage) -> None:
    running = start_a_pair_that_hangs(stage, *PYTEST)
    running.kill()
    running.wait(60)
    stage.wait_until_alone()
    assert stage.statuses() == {"Gloo/trial_0.json": "ok"}


def test_a_killed_zygote(stage: Stage, held: Callable[[], psutil.Process]) -> None:
    running = stage.start(*trials_of_held(3))
    trial = held()
    ancestor(trial, is_zygote).kill()
    done = stage.finish(running)
    assert (done.ret, counts(done)) == (1, {"errors": 1, "passed": 2})
    assert list(stage.statuses().values()) == ["infrastructure_failed", "ok", "ok"]
    failure = stage.trial("Held/trial_0.json")["failure"]
    assert failure["phase"] == "run"
    assert "the zygote" in failure["message"]
    assert "SIGKILL" in failure["message"]
    assert is_gone(trial.pid)
