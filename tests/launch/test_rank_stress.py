"""Many ranks that start at once on a busy host: none may hang.

``AORTA_STRESS_TRIALS`` sets how many trials are run, of each kind.
"""

from __future__ import annotations

import os
import shutil
import socket
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


@pytest.fixture
def slow_look_ups(stage: Stage) -> Iterator[tuple[str, ...]]:
    """A command to run another one with: libc holds its lock for milliseconds each time that it looks up a name.

    The lock guards what libc has read of /etc/resolv.conf, which is large here, and newer at every look.
    """
    files = {
        "hosts": f"127.0.0.1 localhost\n::ffff:127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n",
        "nsswitch.conf": "hosts: files\n",
        "resolv.conf": "# a comment\n" * 80_000,
    }
    for name, text in files.items():
        (stage.path / name).write_text(text)
    binds = " && ".join(f"mount --bind {stage.path}/{name} /etc/{name}" for name in files)
    command = ("unshare", "-m", "sh", "-c", f'{binds} && exec "$@"', "sh")
    touch = "import os, sys, time\nwhile True:\n    os.utime(sys.argv[1]); time.sleep(0.001)"
    toucher = subprocess.Popen([sys.executable, "-c", touch, str(stage.path / "resolv.conf")])
    yield command
    toucher.kill()
    toucher.wait()


RESTARTS = ["--aorta-elastic", "max_restarts=1", "--aorta-extra-env", "FAIL_FIRST=1"]


def run_trials(stage: Stage, trials: int, options: list[str], prefix: tuple[str, ...] = ()) -> None:
    stage.write(meet=MEET)
    # The first that hangs ends the run.
    arguments = ("meet.py", "-x", "--aorta-trials", str(trials), "--aorta-timeout", "120", "--tb=line", *options)
    process = stage.start_command(*prefix, sys.executable, "-m", "pytest", *arguments, stdout=subprocess.PIPE)
    text = process.communicate(timeout=300 + 12 * trials)[0].decode()
    assert f"{trials} passed" in text, text


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("busy_host")
@pytest.mark.parametrize(
    ("trials", "options"),
    [
        pytest.param(TRIALS or 120, ["--aorta-nproc", "12"], id="twelve ranks"),
        pytest.param(TRIALS or 40, ["--aorta-nproc", "3", *RESTARTS], id="restarts"),
    ],
)
def test_no_trial_hangs(stage: Stage, trials: int, options: list[str]) -> None:
    run_trials(stage, trials, options)


def can_use_namespaces() -> bool:
    if os.getuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_use_namespaces(), reason="needs a mount namespace of its own (root)")
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("busy_host")
@pytest.mark.parametrize("options", [["--aorta-nproc", "12"], ["--aorta-nproc", "8", *RESTARTS]], ids=["", "restarts"])
def test_no_rank_waits_for_the_lock_of_a_look_up(
    stage: Stage, slow_look_ups: tuple[str, ...], options: list[str]
) -> None:
    """Every second trial hangs here if ranks are forked from a process in which a thread looks up names."""
    run_trials(stage, TRIALS or 20, options, slow_look_ups)
