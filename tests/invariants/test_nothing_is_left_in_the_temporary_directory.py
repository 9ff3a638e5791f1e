"""Whatever is killed, nothing of the runner, torch's agent or multiprocessing stays in the temporary directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
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

#: How many generations above a rank, with the launcher auto; acceptance/test_killing.py kills pytest.
KILLED = {"nothing": None, "a rank": 0, "the agent": 1, "the zygote": 2}


def left_in(folder: Path) -> list[str]:
    leading = [path for path in Path("/tmp").glob("aorta-tmp-*") if path.is_symlink()]
    return [path.name for path in folder.iterdir()] + [
        str(path) for path in leading if Path(os.readlink(path)).is_relative_to(folder)
    ]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("killed", KILLED)
def test_nothing_is_left(stage: Stage, monkeypatch: pytest.MonkeyPatch, killed: str) -> None:
    folder = stage.path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    stage.write(kills=WORKLOAD)
    generations = KILLED[killed]
    config = () if generations is None else ("--aorta-config", f"generations={generations}")
    stage.run("kills.py", *config, "--aorta-elastic", "max_restarts=1", "--aorta-timeout", "50")
    stage.wait_until(lambda: not stage.left_running())
    status = {"the agent": "workload_failed", "the zygote": "infrastructure_failed"}.get(killed, "ok")
    assert stage.trial("Kills/trial_0.json")["exit_status"] == status
    assert left_in(folder) == []
