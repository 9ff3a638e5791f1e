"""Private folders for temporary files: where they lie, how long they stay, and who removes them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pytest_aorta.launch.host.folders import TemporaryFolders
from pytest_aorta.trials.execution import KEPT_DAYS

KILLED = """
import os, pathlib, signal, sys
from pytest_aorta.launch.host.folders import TemporaryFolders
folders = TemporaryFolders()
for keep in (False, True):
    path = folders.make(sys.argv[1], "trial")
    (path / "checkpoint").touch()
    if keep:
        folders.remove(path, keep=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_in(base: Path) -> Path:
    """The TMPDIR of a run that has ended."""
    folders = TemporaryFolders()
    path = folders.make(str(base), "trial").resolve()
    folders.close()
    return path


@pytest.mark.parametrize("name", ["short", "long" * 30])
def test_a_folder_is_new_private_and_below_the_one_that_it_replaces(tmp_path: Path, name: str) -> None:
    """And a socket fits."""
    base = tmp_path / name
    base.mkdir()
    folders = TemporaryFolders()
    made = [folders.make(str(base), "trial") for _ in range(3)]
    assert len({*made}) == 3
    for path in made:
        assert path.resolve().is_relative_to(base)
        assert list(path.iterdir()) == []
        assert path.resolve().parent.stat().st_mode & 0o077 == path.stat().st_mode & 0o077 == 0
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{made[0]}/{'x' * 40}")
    assert not folders.remove(made[1], keep=True)  # it is empty
    assert not made[1].exists()
    folders.close()
    assert list(base.iterdir()) == []
    assert not os.path.lexists(made[0].parent)


def test_a_tmpdir_that_cannot_be_used_is_replaced_as_python_does(tmp_path: Path) -> None:
    assert run_in(tmp_path / "missing").parents[1] == Path(tempfile.gettempdir())


def test_the_next_run_on_the_host_removes_what_a_killed_one_has_left_and_leaves_what_is_kept(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (root,) = tmp_path.glob("aorta-tmp-*")

    def left() -> list[str]:
        return sorted(path.name for path in root.iterdir() if path.is_dir())

    (lock,) = root.glob(".lock.*")
    host = lock.read_text()
    lock.write_text("another-host\nanother-boot")
    run_in(tmp_path)
    assert left() == ["0", "1"]

    lock.write_text(host)
    run_in(tmp_path)
    assert left() == ["1"]
    assert (root / "1.kept").stat().st_mtime > time.time() + (KEPT_DAYS * 24 - 1) * 3600

    passed = time.time() - 1
    os.utime(root / "1.kept", (passed, passed))
    run_in(tmp_path)
    assert not root.exists()


def test_what_a_living_run_uses_stays_and_so_does_what_is_not_of_a_run(tmp_path: Path) -> None:
    living = TemporaryFolders()
    path = living.make(str(tmp_path), "trial")
    foreign = tmp_path / "aorta-tmp-of-a-user"
    foreign.mkdir()
    (foreign / "data").touch()

    run_in(tmp_path)

    assert path.exists()
    assert (foreign / "data").exists()
    living.close()
    assert list(tmp_path.iterdir()) == [foreign]


def test_ranks_of_one_launcher_share_and_the_last_one_cleans_up(tmp_path: Path) -> None:
    ranks = [TemporaryFolders(launcher=os.getppid()) for _ in range(2)]
    first, second = ([rank.make(str(tmp_path), "trial_0"), rank.make(str(tmp_path), "trial_0")] for rank in ranks)
    assert first == second
    assert first[0] != first[1]  # a trial that is run again
    assert ranks[0].make(str(tmp_path), "trial_1") not in first
    ranks[0].close()
    assert first[0].exists()
    ranks[1].close()
    assert list(tmp_path.iterdir()) == []
