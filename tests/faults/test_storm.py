"""Runs whose processes are killed at random, and resumed until every trial has its result.

``AORTA_STORM_ROUNDS`` sets the number of rounds, ``AORTA_STORM_SEED`` has another storm, or repeats one.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.processes import kill_all, wait_until
from support.stage import PYTEST, Stage

from pytest_aorta import TrialResult
from pytest_aorta.trials.losses import is_lost, shared_event
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

#: Of a trial, its log tells which one it is.
QUICK = """
import os, random, re, time

class Quick:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        index = re.search(r"trial_(\\d+)/", os.readlink("/proc/self/fd/1"))[1]
        fd = os.open("ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, f"{index}\\n".encode())
        time.sleep(random.uniform(0.02, 0.05))
        return {"passed": True}
"""


class Round(Stage):
    """One storm in a folder of its own."""

    def __init__(self, folder: Path, target: tuple[str, ...], rng: random.Random) -> None:
        super().__init__(folder)
        self.target = target
        self.rng = rng
        self.told: list[str] = []

    def ledger(self) -> list[int]:
        """Every trial that has run, as often as it has."""
        file = self.path / "ledger"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

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
        self.told.append(" ".join(["pytest", *way, *options]))
        path = os.pathsep.join([str(self.path.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = (*PYTEST, "-p", "no:cacheprovider", *self.target, "--aorta-trials", str(TRIALS), *way, *options)
        with (self.path / "output").open("ab") as output:
            process = self.start_command(*command, env={"PYTHONPATH": path}, stdout=output, stderr=output)
            root = psutil.Process(process.pid)
            due = self._moment() if hit else (lambda: False)
            give_up = time.monotonic() + PATIENCE
            while process.poll() is None:
                assert time.monotonic() < give_up, f"pytest has not ended: {self.left_running()}"
                if due():
                    due = lambda: False  # noqa: E731
                    self._kill(root)
                time.sleep(0.01)
        wait_until(lambda: not self.processes(), "the end of all processes")

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

    def _kill(self, root: psutil.Process) -> None:
        """Kill a process of a kind that is chosen first: there are many more trials than anything else."""
        kinds: dict[str, list[psutil.Process]] = {}
        with contextlib.suppress(psutil.Error):
            for process in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    kinds.setdefault(_kind(process, root), []).append(process)
        if not kinds:  # it has ended at this very moment
            return
        kind = self.rng.choice(sorted(kinds))
        with contextlib.suppress(psutil.Error):
            self.rng.choice(kinds[kind]).kill()
            self.told.append(f"killed {kind} after {len(self.ledger())} trials")


def _kind(process: psutil.Process, root: psutil.Process) -> str:
    """What a process of a run is, as far as can be seen from outside."""

    def is_zygote_or_fork(it: psutil.Process) -> bool:
        return any("zygote_main" in argument for argument in it.cmdline())

    if process == root:
        return "pytest"
    parent = process.parent()
    if is_zygote_or_fork(process):
        return "trial" if parent is not None and is_zygote_or_fork(parent) else "zygote"
    return "xdist worker" if parent == root and "exec(eval(" in " ".join(process.cmdline()) else "other"


def storm(it: Round) -> None:
    """Hit one run, and resume it until it is complete."""
    it.pytest(hit=True)
    for attempt in range(ATTEMPTS):
        good, runs, anew = it.good(), Counter(it.ledger()), it.begins_anew()
        if len(good) == TRIALS:
            break
        it.pytest("--aorta-resume", hit=attempt < ATTEMPTS - 2 and it.rng.random() < 0.3)
        now, then = it.good(), Counter(it.ledger())
        if not anew:
            assert {index: now.get(index) for index in good} == good, "a good result has changed"
            assert {index: then[index] for index in good} == {index: runs[index] for index in good}, "one has run again"
    records = it.records()
    assert sorted(records) == list(range(TRIALS))
    assert sorted(it.good()) == sorted(records)
    assert len(list(it.results.glob("*/trial_*.json"))) == TRIALS
    assert list(it.results.glob("*/.trial_*")) == []
    assert {index for index, record in records.items() if record.exit_status == "ok"} <= set(it.ledger())


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))])
def test_every_trial_gets_its_result(stage: Stage, part: int) -> None:
    seed = os.environ.get("AORTA_STORM_SEED", "1")
    stage.write(quick=QUICK)
    stage.register(quick="quick:Quick")
    for number in range(part, ROUNDS, PARTS):
        rng = random.Random(f"{seed}/{number}")
        target = rng.choice([("--aorta-workload", "quick"), (str(stage.path / "quick.py"),)])
        folder = stage.path / f"round_{number}"
        it = Round(folder, target, rng)
        try:
            storm(it)
        except BaseException:
            kill_all(it.processes())
            print(f"AORTA_STORM_SEED={seed}, round {number}:", *it.told, sep="\n  ")
            print(*re.split(r"(?m)^(?==+ test session)", (folder / "output").read_text(errors="replace"))[-2:])
            raise
