"""SLURM on this machine comes and goes as a whole: tests/support/slurm.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support import slurm
from support.processes import wait_until
from support.slurm import Slurm

SCRIPT = str(slurm.__file__)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that is not there yet; paths of sockets are short."""
    if reason := slurm.missing():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="aorta-slurm-") as parent:
        folder = Path(parent, "cluster")
        yield folder
        if folder.exists():
            slurm.stop_server(folder)


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=110)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Daemons of a cluster, and what waits for its jobs."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and str(folder) in process.environ().get("SLURM_CONF", ""):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_it_is_started_and_stopped_by_hand(folder: Path) -> None:
    started = script("start", str(folder))
    assert (started.returncode, started.stdout) == (0, f"export SLURM_CONF={folder}/slurm.conf\n")
    cluster = Slurm(folder)
    assert cluster.states() == {"n0": "idle", "n1": "idle"}
    assert sorted(cluster.command("srun", "-N", "2", "hostname").splitlines()) == ["n0", "n1"]
    cluster.command("sbatch", "-N", "2", "-o", "/dev/null", "--wrap", "srun sleep 1000")
    with subprocess.Popen(["srun", "-N", "2", "sleep", "1000"], env={**os.environ, **cluster.variables}) as waiting:
        assert script("stop", str(folder)).returncode == 0
        assert waiting.wait(60) != 0
    assert not folder.exists()
    assert processes_of(folder) == []
    again = script("stop", str(folder))
    assert (again.returncode, again.stderr) == (1, f"slurm.py: no SLURM of this script runs in {folder}\n")


@pytest.mark.slow
def test_it_does_not_outlive_the_tests(folder: Path) -> None:
    """Also when these are killed."""
    code = f"""
        import sys, time
        from pathlib import Path
        sys.path.insert(0, {str(Path(SCRIPT).parents[1])!r})
        from support.slurm import Slurm, start_server
        start_server(Path({str(folder)!r}))
        Slurm(Path({str(folder)!r})).command("sbatch", "-N", "2", "-o", "/dev/null", "--wrap", "srun sleep 1000")
        print("started", flush=True)
        time.sleep(1000)
    """
    command = [sys.executable, "-c", "if True:" + code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == "started\n"
        tests.send_signal(signal.SIGKILL)
    wait_until(lambda: not folder.exists() and not processes_of(folder))
