"""Whatever is killed, nothing of the runner, torch's agent or multiprocessing stays in the temporary directory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.processes import kill_all
from support.stage import Stage

WORKLOAD = """
import multiprocessing
import os
import signal
import tempfile
import time

import psutil


def ancestor(generations):
    process = psutil.Process()
    for _ in range(generations):
        process = process.parent()
    return process.pid


class Kills:
    launch_mode = "distributed"
    min_world_size = 2

    def __init__(self, config):
        self.generations = config.get("generations")

    def setup(self):
        pass

    def cleanup(self):
        pass

    def run(self):
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        if os.environ["RANK"] == "1" and attempt == 0:
            # A folder with sockets in TMPDIR, which is removed at the end of a process that is not killed.
            self.server = multiprocessing.get_context("spawn").Manager()
            if self.generations is not None:
                time.sleep(0.5)
                os.kill(ancestor(self.generations), signal.SIGKILL)
            raise ValueError("the first attempt")
        if self.generations:
            time.sleep(100)
        return {"passed": True}
"""

#: How many generations above a rank, with the launcher auto. What a killed pytest leaves, the next run removes: below.
KILLED = {"nothing": None, "a rank": 0, "the agent": 1, "the zygote": 2}


def left_in(folder: Path) -> list[str]:
    """What lies there, and what leads there."""
    leading = [path for path in Path("/tmp").glob("aorta-tmp-*") if path.is_symlink()]
    return [path.name for path in folder.iterdir()] + [
        str(path) for path in leading if Path(os.readlink(path)).is_relative_to(folder)
    ]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("killed", "method"), [*((killed, "fork") for killed in KILLED), ("the agent", "forkserver")])
def test_nothing_is_left(stage: Stage, monkeypatch: pytest.MonkeyPatch, killed: str, method: str) -> None:
    folder = stage.path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    stage.write(kills=WORKLOAD)
    generations = KILLED[killed]
    if method == "forkserver" and generations:
        generations += 1
    config = () if generations is None else ("--aorta-config", f"generations={generations}")
    elastic = ("--aorta-elastic", "max_restarts=1", "--aorta-elastic", f"start_method={method}")
    stage.run("kills.py", *config, *elastic, "--aorta-timeout", "50")
    stage.wait_until(lambda: not stage.left_running())
    status = {"the agent": "workload_failed", "the zygote": "infrastructure_failed"}.get(killed, "ok")
    assert stage.trial("Kills/trial_0.json")["exit_status"] == status
    assert left_in(folder) == []


WAITS = """
import os
import time

class Waits:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        while not os.path.exists("next"):
            time.sleep(0.05)
        return {"passed": True}
"""

#: Ways of a run to have something in the temporary directory of its own: a launcher prefix whose zygote is not there
#: yet, and the decisions that several processes share.
SHARED = {
    "prefix": ("--aorta-environment", "behind"),
    "decisions": ("-n", "1", "--aorta-stop=decided", "--aorta-trials", "40"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["prefix", pytest.param("decisions", marks=pytest.mark.long)])
def test_the_next_run_removes_what_a_killed_one_has_left(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    folder = stage.path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    stage.write(waits=WAITS)
    stage.write_file("wait.sh", '#!/bin/sh\ntouch waits; [ -e next ] || exec sleep 1000; exec "$@"').chmod(0o755)
    behind = {"launcher": str(stage.path / "wait.sh")}
    registry = stage.write_registry(environments={"behind": behind})
    process = stage.start("waits.py", "--aorta-registry-file", registry, *SHARED[way])
    stage.wait_until(lambda: len(left_in(folder)) > (way == "decisions"))
    if way == "prefix":
        stage.wait_until((stage.path / "waits").exists)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

    def is_alone() -> bool:
        if way == "prefix":  # which has not come to its command, and notices nothing; it may just become ``sleep``
            kill_all(stage.processes())
        return not stage.left_running()

    stage.wait_until(is_alone)

    (stage.path / "next").touch()
    stage.run("waits.py", "--aorta-trials", "1").assert_outcomes(passed=1)
    assert left_in(folder) == []
