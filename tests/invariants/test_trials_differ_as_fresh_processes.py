"""Trials of a cell differ as fresh processes do, and are equal where those are."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.stage import Stage

from pytest_aorta.runtime import TaskRef, Worker
from pytest_aorta.runtime import worker as worker_module

HERE = Path(__file__).parent

TRIALS = 5
SLOTS = 10

#: Of ten draws, how many are different: the reference are fresh interpreters.
Differing = dict[str, bool]


@pytest.fixture(scope="module")
def fresh() -> Differing:
    command = [sys.executable, str(HERE / "generator_workload.py")]
    return differing([json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(2)])


def differing(draws: list[dict[str, str]]) -> Differing:
    """Which draws are all different; those that are neither all different nor all equal fail the test."""
    counts = {name: len({each[name] for each in draws}) for name in draws[0]}
    mixed = {name: count for name, count in counts.items() if count not in (1, len(draws))}
    assert not mixed
    return {name: count > 1 for name, count in counts.items()}


@pytest.fixture(autouse=True)
def _workloads(stage: Stage) -> None:
    for name in ("generator_workload.py", "seeded_workload.py"):
        shutil.copy(HERE / name, stage.path)


@pytest.mark.slow
def test_the_reference_tells_generators_from_constants(fresh: Differing) -> None:
    assert fresh["torch.rand"]
    assert fresh["numpy.random.rand"]
    assert not fresh["torch.Generator()"]
    assert not fresh["seeded on purpose"]
    assert sum(fresh.values()) >= 20


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="fork"),
        pytest.param(("--aorta-isolation", "none"), id="none"),
        pytest.param(("--aorta-slots", "2"), id="slots", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_trials_differ_as_fresh_processes_do(stage: Stage, fresh: Differing, options: tuple[str, ...]) -> None:
    arguments = ("generator_workload.py::Draws", "seeded_workload.py", "--aorta-trials", str(TRIALS), *options)
    stage.run(*arguments).assert_outcomes(passed=2 * TRIALS)
    found = [stage.trial(f"Draws/trial_{index}.json") for index in range(TRIALS)]
    goes_on = {"libc rand": True} if "none" in options else {}  # in one process, also where no library seeds it
    assert differing([record["result"]["metrics"] for record in found]) == {**fresh, **goes_on}
    assert len({record["seeds"]["seed"] for record in found}) == TRIALS
    assert all(record["seeds"]["kept"] == [] for record in found)
    # What a workload seeds at its import stays.
    found = [stage.trial(f"SeededAtImport/trial_{index}.json") for index in range(TRIALS)]
    for name in ("random.random", "numpy.random.rand", "torch.rand"):
        assert len({record["result"]["metrics"][name] for record in found}) == 1
    assert all(record["seeds"]["kept"] == ["numpy.random", "random", "torch"] for record in found)
    assert all(record["seeds"]["generators"] == {} for record in found)


@pytest.mark.slow
def test_slots_differ_as_fresh_processes_do(fresh: Differing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setattr(worker_module, "expects_tensors", lambda: True)
    with Worker(3, num_sub_workers=SLOTS) as worker:
        handle = worker.register(lambda: __import__("generator_workload").draws())
        refs: list[TaskRef] = []
        worker.run(lambda orch, args, config: refs.append(orch.submit_sub_group(handle, [None] * SLOTS)))
        members = refs[0].wait().members
    assert len(members) == SLOTS
    assert differing([member.payload for member in members]) == fresh


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["auto", pytest.param("torchrun", marks=pytest.mark.long)])
def test_ranks_differ_as_fresh_processes_do(stage: Stage, fresh: Differing, launcher: str) -> None:
    arguments = ["--aorta-launcher", launcher, "--aorta-trials", "2", "--aorta-timeout", "100"]
    stage.run("generator_workload.py::RankDraws", *arguments).assert_outcomes(passed=2)
    ranks = [rank for record in stage.trials().values() for rank in record["ranks"]]
    assert len(ranks) == 4
    assert differing([rank["result"]["metrics"] for rank in ranks]) == fresh
    assert len({rank["seeds"]["seed"] for rank in ranks}) == 4


@pytest.mark.slow
def test_equal_seeds_give_equal_trials_in_every_cell(stage: Stage) -> None:
    cells = ("--aorta-mitigations", "none", "--aorta-mitigations", "omp_1")
    stage.run("generator_workload.py::Draws", "--aorta-trials", "3", "--aorta-seed", "7", *cells).assert_outcomes(
        passed=6
    )
    drawn = {path: trial["result"]["metrics"]["torch.rand"] for path, trial in stage.trials().items()}
    none = [value for path, value in drawn.items() if "local-none" in path]
    assert none == [value for path, value in drawn.items() if "local-omp_1" in path]
    assert len(set(none)) == 3


#: torch with a stand-in for a GPU that is initialised later, as ``torch.cuda._lazy_init`` does it.
GPU = """
import os, sys, torch
from pytest_aorta.trials.seeding import ProcessSeeds

torch.version.cuda = "13.0"
seeds = ProcessSeeds(1)
if "at import" in sys.argv:
    torch.cuda.manual_seed_all(9)
for seed in (2, 3):
    if os.fork() == 0:
        seeds.restart(seed)
        if "in run" in sys.argv:
            torch.cuda.manual_seed_all(9)
        torch.cuda.default_generators = (torch.Generator(),)
        torch.cuda.random.device_count = lambda: 1
        for call, _ in (*torch.cuda._queued_calls, *filter(None, torch.cuda._lazy_seed_tracker.get_calls())):
            call()
        given, found = seeds.given["torch"], torch.cuda.default_generators[0].initial_seed()
        print("its own" if found == given == torch.initial_seed() else found, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("seeded", "found"), [("never", "its own"), ("at import", "9"), ("in run", "9")])
def test_a_gpu_has_the_seed_of_the_trial_until_the_workload_seeds_it(seeded: str, found: str) -> None:
    done = subprocess.run([sys.executable, "-c", GPU, seeded], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [found, found]
