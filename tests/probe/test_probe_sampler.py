"""The process that reads the health of a host beside its trials."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys

import psutil
import pytest
from support.processes import wait_until, wait_until_gone
from support.stage import Stage

from pytest_aorta.probe.health.host import KernelLog

ON = {"PYTEST_AORTA_HEALTH": "true"}


@pytest.fixture
def script(stage: Stage) -> list[str]:
    """The options of a run whose trials last until the file ``end`` is there, once they have written their pids."""
    stage.write(
        work="""
        import os, pathlib, sys, time
        pathlib.Path(f"began-{os.getpid()}").touch()
        while not pathlib.Path("end").exists():
            time.sleep(0.05)
        sys.exit("fail" in sys.argv)
        """
    )
    return ["--aorta-command", f"{sys.executable} work.py"]


def samplers(stage: Stage) -> list[psutil.Process]:
    found = []
    for each in stage.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found += [each] if "health.sampler" in " ".join(each.cmdline()) else []
    return found


def test_a_failed_trial_is_sampled_from_its_begin_to_its_end(stage: Stage) -> None:
    result = stage.run("--aorta-command", f"{sys.executable} -c 'exit(1)'", env=ON)
    assert result.ret == 1
    [trial] = stage.trials().values()
    assert trial["health"]["readings"] >= 2
    assert trial["health"]["host"]
    assert len(json.dumps(trial["health"])) <= 1024
    assert not samplers(stage)


@pytest.mark.skipif(bool(KernelLog().problem), reason="the kernel log may not be read here")
def test_a_crash_that_the_kernel_has_logged_is_an_event_of_the_trial(stage: Stage) -> None:
    # Without our handler, which raises the signal once more: that the kernel does not log.
    crashes = f"{sys.executable} -ES -c 'import ctypes; ctypes.string_at(0)'"
    stage.run("--aorta-command", crashes, "--aorta-trials", "3", env=ON)
    events = [each for trial in stage.trials().values() for each in trial["health"]["host"].get("events", [])]
    assert "segfault" in {each["kind"] for each in events}


def test_it_can_be_switched_off(stage: Stage) -> None:
    stage.write_file("pytest.ini", "[pytest]\naorta_health = false")
    stage.run("--aorta-command", f"{sys.executable} -c 'exit(1)'", env={"PYTEST_AORTA_HEALTH": ""})
    [trial] = stage.trials().values()
    assert trial["health"] is None
    assert trial["request"]["resources"]["health"] is False


@pytest.mark.slow
def test_a_host_has_one_however_many_workers_there_are(stage: Stage, script: list[str]) -> None:
    process = stage.start("-n2", "--aorta-trials", "2", *script, env=ON)
    wait_until(lambda: len(list(stage.path.glob("began-*"))) == 2)
    wait_until(lambda: samplers(stage))
    assert len(samplers(stage)) == 1
    (stage.path / "end").touch()
    assert stage.finish(process).ret == 0


def test_it_dies_with_pytest_that_is_killed(stage: Stage, script: list[str]) -> None:
    process = stage.start(*script, env=ON)
    wait_until(lambda: samplers(stage) and list(stage.path.glob("began-*")))
    left = [each.pid for each in samplers(stage)]
    os.kill(process.pid, signal.SIGKILL)
    wait_until_gone(left)
    stage.finish(process)


def test_a_trial_goes_on_without_it_and_says_so(stage: Stage, script: list[str]) -> None:
    process = stage.start(*script, env=ON)
    wait_until(lambda: samplers(stage) and list(stage.path.glob("began-*")))
    for each in samplers(stage):
        each.kill()
    (stage.path / "end").touch()
    assert stage.finish(process).ret == 0
    [trial] = stage.trials().values()
    assert trial["health"]["unreadable"].startswith("the sampler")
