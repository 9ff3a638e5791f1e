"""The collectors profile and memory: what a growth is, what they do in a rank, and what they find in a command."""

from __future__ import annotations

import gc
import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.stage import Stage, counts, text

from pytest_aorta.collectors.machine import Memory, Profile, growth

MIB = 2**20


def series(changes: np.ndarray) -> list[tuple[int, float]]:
    return list(enumerate((500 * MIB + np.cumsum(changes)).tolist(), 1))


def test_a_leak_of_1_mib_a_step_is_found_within_20_steps_with_its_size() -> None:
    noise = np.random.default_rng(1)
    for _ in range(100):
        up_and_down = np.diff(noise.normal(0, 0.1 * MIB, 21))
        found = growth(series(MIB + up_and_down))
        assert found is not None
        assert found.is_leak
        assert found.bytes_per_step == pytest.approx(MIB, rel=0.1)


def test_a_leak_that_shows_in_chunks_is_found_and_a_growth_of_a_few_kib_in_all_is_none() -> None:
    found = growth(series(np.where(np.arange(400) % 16 == 0, 2 * MIB, 0)))
    assert found is not None
    assert found.is_leak
    assert found.low <= 2 * MIB / 16 <= found.high
    found = growth(series(np.full(50, 1024)))
    assert found is not None
    assert found.low > 0
    assert not found.is_leak
    assert growth(series(np.full(9, MIB))) is growth([]) is None  # too few steps


def test_what_runs_without_a_leak_do_is_none() -> None:
    """Warm-up, jumps of caches, and ups and downs, in 500 runs of all lengths: at a level of 1 % for each."""
    noise, wrong = np.random.default_rng(2), 0
    for _ in range(500):
        steps = int(noise.integers(12, 300))
        level = noise.normal(0, noise.choice([0, 0.1, 8]) * MIB, steps + 1)  # allocated and freed again
        changes = np.diff(level)
        changes[: steps // 6] += 20 * MIB  # warm-up
        changes[noise.integers(0, steps, noise.integers(0, 4))] += noise.uniform(1, 50) * MIB
        found = growth(series(changes))
        wrong += found is not None and found.is_leak
    assert wrong <= 12


def in_process(collector: Memory | Profile, folder: Path, rank: int = 0, **constants: int) -> Any:
    assert collector.in_process is not None
    spec = importlib.util.spec_from_file_location("by_hand", collector.in_process)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(constants)
    return module.InProcess(collector.given, str(folder), rank)


def steps(found: Any, number: int, keep: list[torch.Tensor] | None = None) -> None:
    weights = torch.rand(64, 64)
    gc.collect()  # what earlier tests have left is not freed in the middle
    found.start()
    for step in range(1, number + 1):
        weights = (weights @ weights).softmax(0)
        if keep is not None:
            keep.append(torch.ones(2**18))
        found.step(step)
    found.stop()


@pytest.mark.parametrize(("made", "of"), [(10, 5), (5, 2)])
def test_the_window_has_the_operators_of_its_steps(tmp_path: Path, made: int, of: int) -> None:
    profile = Profile({})
    steps(in_process(profile, tmp_path), made)
    raw = json.loads((tmp_path / "rank_0.json").read_text())
    with gzip.open(tmp_path / "rank_0.trace.json.gz", "rt") as file:
        events = [each for each in json.load(file)["traceEvents"] if each.get("name") == "aten::mm"]
    calls, host_us, _ = raw["operators"]["aten::mm"]
    assert (raw["steps"], calls, len(events)) == (of, of, of)
    assert host_us == pytest.approx(sum(each["dur"] for each in events), rel=0.1, abs=20 * of)
    summary = profile.summarize(tmp_path, [0])
    assert summary.data["operators"]["aten::mm"] == pytest.approx(host_us / 1000 / of)
    assert summary.sentence == ("" if made >= 8 else "the program ended within the window")

    late = Profile({"skip": 20})
    steps(in_process(late, tmp_path), made)
    said = f"no step was profiled: the trial made {made}, and the window begins after 20"
    assert late.summarize(tmp_path, [0]).sentence == said


def test_the_profiler_of_the_program_comes_first(tmp_path: Path) -> None:
    """torch refuses two at a time, in the one that comes second."""
    profile = Profile({"skip": 1, "steps": 50})
    found = in_process(profile, tmp_path)
    found.start()
    for step in range(1, 5):
        torch.rand(8, 8).exp()
        found.step(step)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        torch.rand(8, 8).tanh()
        found.step(5)
    found.stop()
    assert {each.key for each in theirs.key_averages()} >= {"aten::tanh"}
    raw = json.loads((tmp_path / "rank_0.json").read_text())
    assert raw["operators"]["aten::exp"][0] == 3
    assert "aten::tanh" not in raw["operators"]
    assert profile.summarize(tmp_path, [0]).sentence == "the program started a profiler of its own"


def test_the_slowest_rank_speaks_for_an_operator(tmp_path: Path) -> None:
    for rank, microseconds in enumerate((1000, 5000)):
        found = {"steps": 2, "wall_sec": 0.1, "note": "", "operators": {"aten::mm": [2, microseconds, 0.0]}}
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(found))
    assert Profile({}).summarize(tmp_path, [0, 1]).data["operators"] == {"aten::mm": 2.5}


def test_a_leak_of_a_rank_is_named_and_a_clean_rank_is_not(tmp_path: Path) -> None:
    memory = Memory({})
    steps(in_process(memory, tmp_path), 20)
    clean = memory.summarize(tmp_path, [0])
    assert clean.sentence == ""
    assert clean.data["rank_0"]["steps"] == 20
    steps(in_process(memory, tmp_path, rank=1), 20, keep=[])
    found = memory.summarize(tmp_path, [0, 1])
    assert found.sentence.startswith("rank 1: memory on the host grows by ")
    assert found.data["rank_1"]["held"]["growth"]["bytes_per_step"] == pytest.approx(2**20, rel=0.1)


@pytest.mark.parametrize("kept", [True, False], ids=["kept by malloc", "in use"])
def test_growth_of_resident_memory_is_no_leak_where_malloc_keeps_it_for_later(tmp_path: Path, kept: bool) -> None:
    # As a process with two buffers of 1.53 MiB was seen to grow, on a machine with other work.
    steps = [0, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 1, 1]
    grown = [int(1.53 * MIB) * sum(steps[:number]) for number in range(1, len(steps) + 1)]
    lines = [
        [number, 300 * MIB, 500 * MIB + each, 900 * MIB, None, None, 10 * MIB + each * kept]
        for number, each in enumerate(grown, 1)
    ]
    (tmp_path / "rank_0.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    assert bool(Memory({}).summarize(tmp_path, [0]).sentence) is not kept


def test_a_line_that_a_kill_has_cut_off_hides_no_other(tmp_path: Path) -> None:
    lines = [json.dumps([step, step * 2**20, None, None, None, None]) for step in range(1, 21)]
    (tmp_path / "rank_0.jsonl").write_text("\n".join([*lines, "[21, 22"]))
    found = Memory({}).summarize(tmp_path, [0])
    assert found.sentence == "rank 0: memory on the host grows by 1.00 MiB a step (1.00 to 1.00) from step 6 to step 20"


def test_a_device_without_memory_left_is_told_with_its_snapshot(tmp_path: Path) -> None:
    (tmp_path / "rank_0.jsonl").write_text(json.dumps([1, 2**20, 2**20, 2**20, 2**20, 2**20]) + "\n")
    (tmp_path / "rank_0.out_of_memory.json").write_text(json.dumps({"device": 0, "wanted": 2**30, "free": 2**21}))
    (tmp_path / "rank_0.snapshot.pickle").write_bytes(b"as torch writes it")
    found = Memory({}).summarize(tmp_path, [0])
    assert found.sentence == "rank 0: the device had no 1024 MiB left (2 MiB were free)"
    assert tmp_path / "rank_0.snapshot.pickle" in found.artifacts


@pytest.mark.slow
def test_long_runs_leave_short_files(tmp_path: Path) -> None:
    steps(in_process(Memory({}), tmp_path, _LINES=200), 900)
    assert len((tmp_path / "rank_0.jsonl").read_text().splitlines()) < 600
    assert Memory({}).summarize(tmp_path, [0]).data["rank_0"]["steps"] > 890


TRAIN = """
import os
import torch

size = 4_000_000 if os.environ.get("PLANTED") else 400_000
model, values, kept = torch.nn.Linear(64, 64), torch.ones(size), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(24):
    (model(torch.ones(16, 64)).sum() + values.cumsum(0)[0]).backward()
    optimizer.step()
    optimizer.zero_grad()
    if os.environ.get("PLANTED"):
        kept.append(torch.ones(2**18))
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_slower_operator_and_a_leak_of_one_cell_are_named_and_the_other_cell_is_clean(stage: Stage) -> None:
    stage.write(train=TRAIN)
    result = stage.run(
        "--aorta-command=python train.py", "--aorta-trials=4", "--aorta-mitigations=none",
        "--aorta-mitigations=PLANTED=1", "--aorta-collect=profile,memory",
    )  # fmt: skip
    assert counts(result) == {"passed": 8}, text(result)
    for path, record in stage.trials().items():
        profile, memory = (record["collected"][name] for name in ("profile", "memory"))
        assert (profile["problems"], memory["problems"]) == ([], [])
        assert bool(memory["sentence"]) == ("PLANTED" in path)
        growth = memory["data"]["rank_0"]["held"]["growth"]
        assert growth["low"] <= (2**20 if "PLANTED" in path else 0) <= growth["high"]
        trace = (stage.results / path).with_suffix("") / "collect" / "profile" / "rank_0.trace.json.gz"
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        assert sum(each.get("name") == "aten::cumsum" for each in events) == 5
    planted = json.loads((stage.results / "matrix.json").read_text())["cells"][1]
    assert planted["operators"][0]["name"] == "aten::cumsum"
    assert planted["operators"][0]["interval"]["low"] > 2
    assert "aten::cumsum +" in text(result)
