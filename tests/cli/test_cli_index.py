"""The index says what a scan from scratch says, whatever has happened; one that is damaged is named."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from support.projects import COMMANDS, command, complete, project, short_status
from support.records import record

from pytest_aorta.workflow.known import Journal, Workspace
from pytest_aorta.workflow.recipe import read_recipe
from pytest_aorta.workflow.requests import trial_completion

EXPECTED = {"one": [3, 0, 0, 0, 2, 0], "two": [0, 0, 0, 0, 3, 2]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with five directories, three of them complete; its index is known."""
    here = project(tmp_path / "project", COMMANDS, 5)
    monkeypatch.chdir(here)
    complete(here, "one", 3)
    assert command("scan").exit_code == 0
    assert short_status() == EXPECTED
    return here


def test_a_damaged_index_is_named_once_and_made_again(folder: Path) -> None:
    file = folder / ".aorta" / "index.sqlite"
    for text in ("", '{"version": 7}'):
        file.write_text(text)
        assert command("status", "--short").stderr.splitlines() == [
            f"warning: {file} is damaged, or of another version; results and products are looked for on disk, failed "
            "commands are forgotten"
        ]
        assert short_status() == EXPECTED
        assert command("status").stderr == ""
    file.write_text("")
    assert command("scan").stdout == "index: 3 new or changed\n"
    assert command("status").stderr == ""
    file.unlink()
    file.mkdir()  # it cannot be written, and is answered from the disk
    for _ in range(2):
        assert "cannot be read: Is a directory" in command("status").stderr
        assert short_status() == EXPECTED


def test_a_damaged_journal_is_named_once_and_what_it_may_have_said_is_looked_for(folder: Path) -> None:
    complete(folder, "one", 4)
    journal = folder / ".aorta" / "staged" / "1-hostile\x1b[31m.jsonl"
    journal.parent.mkdir(exist_ok=True)
    journal.write_bytes(b"\xff\n" * 3)
    result = command("status", "--short")
    assert "hostile" in result.stderr
    assert "\x1b" not in result.stderr
    assert "has 3 lines that cannot be read" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert short_status() == {"one": [4, 0, 0, 0, 1, 0], "two": [0, 0, 0, 0, 4, 1]}
    assert command("status").stderr == ""


RECIPE = (
    COMMANDS
    + """
[[action]]
name = "matrix"
workload = "gemm"
trials = 3
mitigations = ["none", "tf32_off"]
"""
)

ACTIONS = st.sampled_from(["one", "two", "three"])
DIRECTORIES = st.integers(0, 4)
CELLS = st.sampled_from(["local-none", "local-tf32_off"])
STATUSES = st.sampled_from(["ok", "workload_failed", "timeout", "infrastructure_failed"])


class Killed(BaseException):
    """Stands for SIGKILL: nothing that follows happens."""


class Workspaces(RuleBasedStateMachine):
    """Runs that journal what they make, in several processes, and commands that read the index."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory()
        self.folder = project(Path(self.temporary.name) / "p", RECIPE, 4)
        self.before = Path.cwd()
        os.chdir(self.folder)
        self.journals = [Journal(self.folder / ".aorta") for _ in range(2)]
        self.failed: set[tuple[str, str]] = set()
        #: Which run has failed at what; another one tries it again only when that one has ended.
        self.tried: dict[tuple[str, str], int] = {}

    def teardown(self) -> None:
        for journal in self.journals:
            journal.close()
        os.chdir(self.before)
        self.temporary.cleanup()

    @rule(action=ACTIONS, number=DIRECTORIES, writer=st.integers(0, 1), works=st.booleans())
    def run_command(self, action: str, number: int, writer: int, works: bool) -> None:
        """A run makes a product, or fails, which is noted."""
        name, product = f"dir{number}", self.folder / "workspace" / f"dir{number}" / action
        if not product.parent.exists() or product.exists():
            return  # what is complete is not run
        if self.tried.setdefault((action, name), writer) != writer:
            return
        if works:
            product.touch()
        self.journals[writer].add(action, name, "completed" if works else "failed")
        (self.failed.discard if works else self.failed.add)((action, name))

    @rule(cell=CELLS, trial=st.integers(0, 4), status=STATUSES, request=st.sampled_from("ab"))
    def run_trial(self, cell: str, trial: int, status: str, request: str) -> None:
        """A run writes a trial file, and notes it; pytest's main process does both, so there is one writer."""
        written = record(cell=cell, trial_index=trial, exit_status=status, fingerprint_parts={"workload": request})
        file = self.folder / "workspace" / "matrix" / "gemm" / cell / f"trial_{trial}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(written))
        completion = trial_completion(written)
        assert completion is not None
        self.journals[0].add("matrix", *completion)

    @rule(writer=st.integers(0, 1))
    def end_a_run(self, writer: int) -> None:
        """Or kill it: the kernel drops its lock, all lines are there."""
        self.journals[writer].close()
        self.tried = {key: each for key, each in self.tried.items() if each != writer}
        self.journals[writer] = Journal(self.folder / ".aorta")

    @rule()
    def kill_a_run_that_writes(self) -> None:
        """Its last line is torn; what it was about is on disk, and found by the scan that follows."""
        self.journals[1].add("one", "dir0", None)
        assert self.journals[1]._fd is not None
        os.ftruncate(self.journals[1]._fd, os.fstat(self.journals[1]._fd).st_size - 5)
        self.end_a_run(1)

    @rule(words=st.sampled_from([["status"], ["show", "directories", "-a", "*o*"], ["scan"], ["scan", "--prune"]]))
    def read(self, words: list[str]) -> None:
        """A command folds the journals that have ended."""
        assert command(*words).exit_code == 0

    @rule(after=st.integers(0, 3))
    def kill_a_reader(self, after: int) -> None:
        """When it has replaced the cache, and removed some of the journals, or none."""
        left = [after]

        def unlink(self: Path, missing_ok: bool = False) -> None:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            os.unlink(self)

        with mock.patch.object(Path, "unlink", unlink):
            try:
                self.workspace()
            except Killed:
                pass

    @rule(number=DIRECTORIES)
    def add_or_remove_a_directory(self, number: int) -> None:
        """And forget what was completed in it."""
        directory = self.folder / "workspace" / f"dir{number}"
        if directory.exists():
            shutil.rmtree(directory)
            for writer in (0, 1):  # what runs that go on have noted stays
                self.end_a_run(writer)
            assert command("scan", "--prune").exit_code == 0
            self.failed = {key for key in self.failed if key[1] != directory.name}
        else:
            directory.mkdir()
            (directory / "v.json").write_text('{"v": 1, "half": 0}')

    @rule()
    def damage_the_index(self) -> None:
        """Its status is made again, but for failed commands."""
        for journal in (0, 1):
            self.end_a_run(journal)
        self.workspace()
        if (self.folder / ".aorta" / "index.sqlite").exists():
            (self.folder / ".aorta" / "index.sqlite").write_bytes(b"\x00")
            assert "is damaged" in command("status").stderr
            self.failed.clear()

    def workspace(self) -> Workspace:
        """As the next process reads it."""
        return Workspace.from_cache(read_recipe(self.folder / "aorta.toml"))

    @invariant()
    def the_index_is_what_a_scan_finds(self) -> None:
        """And the failed commands, which leave nothing on disk."""
        known = self.workspace().known.completed
        found = {(action, unit): each for action, units in known.items() for unit, each in units.items()}
        failed = {key for key, each in found.items() if each is not None and each[0] == "failed"}
        assert failed == self.failed
        assert {key: each for key, each in found.items() if key not in failed} == self.on_disk()

    def on_disk(self) -> dict[tuple[str, str], object]:
        """By looking at every file, without the code under test."""
        workspace = self.folder / "workspace"
        expected: dict[tuple[str, str], object] = {}
        for action in ("one", "two", "three"):
            for file in workspace.glob(f"dir*/{action}"):
                expected[action, file.parent.name] = ("completed", "")
        for file in workspace.glob("matrix/gemm/*/trial_*.json"):
            completion = trial_completion(json.loads(file.read_text()))
            assert completion is not None
            expected["matrix", completion[0]] = (completion[1], completion[2].key)
        return expected


@pytest.mark.parametrize(
    "examples", [3, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.long])], ids=["few", "many"]
)
def test_the_index_is_what_a_scan_from_scratch_finds(examples: int) -> None:
    run_state_machine_as_test(
        Workspaces,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
