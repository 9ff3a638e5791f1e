"""Results directories that vanish, fill up, or cannot be written to."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import PATIENCE
from support.stage import Stage

#: The second of three trials does something to the disk.
WORKLOAD = """
import os, re, shutil

class {name}:
    def __init__(self, config):
        self.folder = os.path.dirname(os.readlink("/proc/self/fd/1"))

    def setup(self):
        pass

    def run(self):
        if self.folder.endswith("trial_1"):
            self.misbehave()
        return {{"passed": True}}

    def misbehave(self):
        {body}
"""


def test_deleted_results(stage: Stage) -> None:
    body = "shutil.rmtree(os.path.dirname(os.path.dirname(self.folder)))"
    stage.write(deletes=WORKLOAD.format(name="Deletes", body=body))
    stage.run("deletes.py", "--aorta-trials", "3").assert_outcomes(passed=3)
    assert stage.statuses() == {"Deletes/trial_1.json": "ok", "Deletes/trial_2.json": "ok"}


def test_deleted_folder_of_a_trial_that_was_launched_ahead(stage: Stage) -> None:
    """The process that stands by finds no place for its log."""
    body = "shutil.rmtree(os.path.dirname(self.folder), ignore_errors=True)"  # others write there, too
    stage.write(deletes=WORKLOAD.format(name="Deletes", body=body))
    result = stage.run("deletes.py", "--aorta-trials", "20", "--aorta-slots", "2")
    assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    assert set(stage.statuses().values()) <= {"ok", "infrastructure_failed"}
    assert "Deletes/trial_19.json" in stage.files()
    assert stage.left_running() == []


def test_results_that_cannot_be_written_are_refused_before_the_first_trial(stage: Stage) -> None:
    stage.write(passes=WORKLOAD.format(name="Passes", body="pass"))
    result = stage.run("passes.py", "--aorta-results-dir", "/proc/aorta")  # where root cannot write either
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --aorta-results-dir /proc/aorta: cannot write there: *"])


def can_mount() -> bool:
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="this user may not mount file systems, not even in a namespace of its own")
def test_full_disk(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, and everything is said."""
    body = "open(f'{self.folder}/big', 'wb', buffering=0).write(bytes(2**20))"  # as much as fits; the trials pass
    stage.write(fills=WORKLOAD.format(name="Fills", body=body))
    (stage.path / "small").mkdir()
    (stage.path / "rescued").mkdir()
    monkeypatch.setenv("TMPDIR", str(stage.path / "rescued"))
    arguments = ["fills.py", "--aorta-trials", "3", "--aorta-results-dir", "small", "-p", "no:hypothesispytest"]
    script = 'mount -t tmpfs -o size=256k none small && "$@"; code=$?; cp -r small results; exit $code'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", sys.executable, "-m", "pytest", *arguments]
    done = subprocess.run(command, cwd=stage.path, capture_output=True, text=True, timeout=PATIENCE)

    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert stage.trial("Fills/trial_0.json")["exit_status"] == "ok"
    told = re.findall(
        r"^not written: .*/small/Fills/(trial_\d).json: \[Errno 28\] .*; kept in (.*)$", done.stdout, re.M
    )
    assert [name for name, _ in told] == ["trial_1", "trial_2"]
    for name, path in told:
        assert Path(path).is_relative_to(stage.path / "rescued"), name
        assert '"exit_status"' in Path(path).read_text()
    assert stage.files() == ["Fills/trial_0.json"]
    assert not [path for path in stage.everything() if path.endswith(".tmp")]
    assert stage.left_running() == []
