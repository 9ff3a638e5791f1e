"""Runs whose processes are killed at random, and resumed until every trial has its result.

``AORTA_STORM_ROUNDS`` sets the number of rounds, ``AORTA_STORM_SEED`` repeats a storm: a test that fails prints it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from support.processes import MARK
from support.stage import Stage

from pytest_aorta import TrialResult
from pytest_aorta.trials.outcome import is_lost, shared_event
from pytest_aorta.workspace.trial_store import read_record

TRIALS = 20

ROUNDS = int(os.environ.get("AORTA_STORM_ROUNDS", "20"))

pytestmark = pytest.mark.slow

#: Tests that the rounds are spread over.
PARTS = 10

#: Seconds after which something hangs; nothing that works takes as long.
PATIENCE = 120.0

#: Resumed runs of a round, of which all but the last two may be hit as well.
ATTEMPTS = 6

WAYS = ((), ("-n", "2"), ("--aorta-slots", "2"))

#: Of a trial, its log tells which one it is. The time since boot at which it was started makes its pid its own.
QUICK = """
import os, random, re, time

class Quick:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        index = re.search(r"trial_(\\d+)/", os.readlink("/proc/self/fd/1"))[1]
        with open("/proc/self/stat") as file:
            started = file.read().rpartition(")")[2].split()[19]
        fd = os.open("ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, f"{index} {os.getpid()} {started}\\n".encode())
        time.sleep(random.uniform(0.02, 0.05))
        return {"passed": True}
"""


@dataclass
class Round:
    """One storm in a folder of its own."""

    folder: Path
    target: tuple[str, ...]
    mark: str
    rng: random.Random
    seen: set[psutil.Process] = field(default_factory=set)
    told: list[str] = field(default_factory=list)

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def ledger(self) -> list[tuple[int, int, str]]:
        """Trial, pid and start of everything that has run."""
        file = self.folder / "ledger"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(index), int(pid), started) for index, pid, started in map(str.split, lines)]

    def runs(self) -> Counter[int]:
        """How often each trial has run."""
        return Counter(index for index, _, _ in self.ledger())

    def records(self) -> dict[int, TrialResult]:
        """Every trial file that is there, and every one must be complete."""
        found = {}
        for path in sorted(self.results.glob("*/trial_*.json")):
            record = read_record(path)
            assert record is not None, f"{path} is torn"
            index = int(path.stem.removeprefix("trial_"))
            assert record.trial_index == index
            found[index] = record
        return found

    def good(self) -> dict[int, bytes]:
        """The files of the trials that need not be run any more."""
        return {
            index: next(self.results.glob(f"*/trial_{index}.json")).read_bytes()
            for index, record in self.records().items()
            if not is_lost(record.to_dict())
        }

    def begins_anew(self) -> bool:
        """Whether a trial was lost for a reason of its own, so that all of the cell run again."""
        found = [record.to_dict() for record in self.records().values()]
        return any(is_lost(record) and shared_event(record) is None for record in found)

    def pytest(self, *options: str, hit: bool) -> None:
        """Run pytest, and kill one of its processes; it ends in any case, and nothing of it is left."""
        way = self.rng.choice(WAYS)
        command = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]
        command += [*self.target, "--aorta-trials", str(TRIALS), *way, *options]
        self.told.append(" ".join(["pytest", *way, *options]))
        with (self.folder / "output").open("ab") as output:
            path = os.pathsep.join([str(self.folder.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            root = psutil.Process(process.pid)
            due = self._moment() if hit else (lambda: False)
            give_up = time.monotonic() + PATIENCE
            while process.poll() is None:
                assert time.monotonic() < give_up, f"pytest has not ended: {[root, *_descendants(root)]}"
                family = [root, *_descendants(root)]
                self.seen.update(family)
                if due():
                    due = lambda: False  # noqa: E731
                    self._kill(family)
                time.sleep(0.01)
        self._wait_for_the_end()

    def _moment(self) -> Callable[[], bool]:
        """When to strike: some time after the start, or after some trial has begun."""
        start = time.monotonic()
        pause = self.rng.uniform(0.0, 2.0)
        if self.rng.random() < 0.3:
            return lambda: time.monotonic() > start + pause
        count = len(self.ledger()) + self.rng.randrange(TRIALS)
        after = self.rng.uniform(0.0, 0.05)
        since: list[float] = []

        def due() -> bool:
            if not since and len(self.ledger()) > count:
                since.append(time.monotonic())
            return bool(since) and time.monotonic() >= since[0] + after

        return due

    def _kill(self, family: list[psutil.Process]) -> None:
        """Kill a process of a kind that is chosen first: there are many more trials than anything else."""
        kinds: dict[str, list[psutil.Process]] = {}
        for process in family:
            with contextlib.suppress(psutil.Error):
                kinds.setdefault(_kind(process, family), []).append(process)
        if not kinds:  # it has ended at this very moment
            return
        kind = self.rng.choice(sorted(kinds))
        with contextlib.suppress(psutil.Error):
            self.rng.choice(kinds[kind]).kill()
            self.told.append(f"killed {kind} after {len(self.ledger())} trials")

    def _wait_for_the_end(self) -> None:
        give_up = time.monotonic() + PATIENCE
        while left := [*self._left()]:
            assert time.monotonic() < give_up, f"still running: {left}"
            time.sleep(0.02)

    def _left(self) -> Iterator[str]:
        """Processes of this round: seen ones, those of the ledger, and those that bear the mark of the stage."""
        for process in list(self.seen):
            if _is_over(process):
                self.seen.discard(process)
            else:
                yield f"{process} {_text(process)}"
        for index, pid, started in self.ledger():
            if _start_of(pid) == started:
                yield f"trial {index}, pid {pid}"
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.pid != os.getpid():
                    yield f"{process} {_text(process)}"


def _descendants(root: psutil.Process) -> list[psutil.Process]:
    try:
        return list(root.children(recursive=True))
    except psutil.Error:
        return []


def _is_zygote_or_fork(process: psutil.Process) -> bool:
    return any("zygote_main" in argument for argument in process.cmdline())


def _kind(process: psutil.Process, family: list[psutil.Process]) -> str:
    """What a process of a run is, as far as can be seen from outside."""
    if process == family[0]:
        return "pytest"
    parent = process.parent()
    if _is_zygote_or_fork(process):
        if parent is None or not _is_zygote_or_fork(parent):
            return "zygote"
        return "branch" if process.children() else "trial"  # one that runs, or stands by
    return "xdist worker" if parent == family[0] and "exec(eval(" in _text(process) else "other"


def _text(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "?"


def _is_over(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _start_of(pid: int) -> str | None:
    """When a process was started, in ticks since boot; ``None`` when it is over."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[19] if fields[0] != "Z" else None


def storm(it: Round) -> None:
    """Hit one run, and resume it until it is complete."""
    it.pytest(hit=True)
    for attempt in range(ATTEMPTS):
        good, runs, anew = it.good(), it.runs(), it.begins_anew()
        if len(good) == TRIALS:
            break
        it.pytest("--aorta-resume", hit=attempt < ATTEMPTS - 2 and it.rng.random() < 0.3)
        now, then = it.good(), it.runs()
        if not anew:
            assert {index: now.get(index) for index in good} == good, "a good result has changed"
            assert {index: then[index] for index in good} == {index: runs[index] for index in good}, "one has run again"
    records = it.records()
    assert sorted(records) == list(range(TRIALS))
    assert sorted(it.good()) == sorted(records)
    assert len(list(it.results.glob("*/trial_*.json"))) == TRIALS
    assert list(it.results.glob("*/.trial_*")) == []
    assert {index for index, record in records.items() if record.exit_status == "ok"} <= set(it.runs())


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))])
def test_every_trial_gets_its_result(stage: Stage, part: int) -> None:
    seed = os.environ.get("AORTA_STORM_SEED") or str(random.SystemRandom().randrange(10**9))
    stage.write(quick=QUICK)
    stage.register(quick="quick:Quick")
    for number in range(part, ROUNDS, PARTS):
        rng = random.Random(f"{seed}/{number}")
        target = rng.choice([("--aorta-workload", "quick"), (str(stage.path / "quick.py"),)])
        folder = stage.path / f"round_{number}"
        folder.mkdir()
        it = Round(folder, target, stage.mark, rng)
        try:
            storm(it)
        except BaseException:
            print(f"AORTA_STORM_SEED={seed}, round {number}:", *it.told, sep="\n  ")
            print(*re.split(r"(?m)^(?==+ test session)", (folder / "output").read_text(errors="replace"))[-2:])
            raise
