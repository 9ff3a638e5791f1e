"""Trials in whose ranks pytest runs, under torchrun; other launchers are in tests/faults/test_rank_fault_table.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage, counts, text

pytestmark = pytest.mark.slow

FAULTS = Path(__file__).parents[1] / "support" / "rank_faults.py"

#: What is to be found, by what rank 1 does: exit status; phase and kind of the failure; a field that says more.
EXPECTED: dict[str, tuple[str, tuple[str, str] | None, tuple[str, Any] | None]] = {
    "no_fault": ("ok", None, None),
    "segfaults": ("workload_failed", ("run", "signal"), ("signal", "SIGSEGV")),
    "leaves": ("workload_failed", ("run", "exit_code"), ("exit_code", 0)),
    "lingers": ("timeout", ("run", "timeout"), None),
    "raises": ("workload_failed", ("run", "exception"), ("type", "ValueError")),
    "returns_false": ("workload_failed", ("run", "result"), None),
    "sleeps": ("timeout", ("run", "timeout"), None),
    "setup_raises": ("infrastructure_failed", ("setup", "exception"), ("type", "RuntimeError")),
}
PARTS = list(EXPECTED)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stage, pytest.RunResult]:
    """All parts, played in a run of which torchrun has started the ranks."""
    stage = Stage(tmp_path_factory.mktemp("external") / "stage")
    stage.copy(FAULTS)
    script = ("--aorta-trials", str(len(PARTS)), "--aorta-config", f"script={'.'.join(PARTS)}", "--aorta-timeout", "6")
    done = stage.torchrun(3, "rank_faults.py::RankFaults", *script)
    stage.close()
    return stage, done


def test_one_file_per_trial_and_one_terminal(played: tuple[Stage, pytest.RunResult]) -> None:
    stage, done = played
    assert stage.files() == [f"RankFaults/trial_{index}.json" for index in range(len(PARTS))]
    assert done.ret == 1
    assert counts(done) == {"failed": len(PARTS) - 2, "passed": 1, "errors": 1}
    assert text(done).count("test session starts") == 1
    assert "workload_failed in run: ValueError: rank 1: rank 1 has a bug" in done.stdout.str()
    assert "workload_failed in run: rank 1: ended by SIGSEGV in run()" in done.stdout.str()
    assert not [path for path in stage.everything() if path.endswith((".steps", ".events"))]


@pytest.mark.parametrize("part", PARTS)
def test_status_cause_ranks_and_result(played: tuple[Stage, pytest.RunResult], part: str) -> None:
    stage, _ = played
    folder = stage.results / "RankFaults"
    trial = stage.trial(f"RankFaults/trial_{PARTS.index(part)}.json")
    status, cause, more = EXPECTED[part]
    failure, result, ranks = trial["failure"], trial["result"], trial["ranks"]
    first, second, _ = ranks
    assert (trial["exit_status"], failure and (failure["phase"], failure["kind"])) == (status, cause), failure
    assert result["passed"] is (cause is None)
    if cause is None:
        assert [(rank["passed"], rank["exit_code"], rank["failure"]) for rank in ranks] == [(True, 0, None)] * 3
        assert result["failure_details"] == []
    else:
        if part != "sleeps":  # one rank may be ended before the other, which notices
            assert (failure["rank"], failure["message"][:8]) == (1, "rank 1: ")
            details = [(each.get("rank"), each["phase"], each["kind"]) for each in result["failure_details"]]
            assert (1, *cause) in details
        assert (second["failure"]["phase"], second["failure"]["kind"], second["collateral"]) == (*cause, False)
        assert result["failure_count"] >= 1
    if more is not None:
        assert failure[more[0]] == more[1]
    if part in ("returns_false", "lingers"):
        assert (first["passed"], first["failure"]) == (True, None)
        assert second["passed"] is (False if part == "returns_false" else None)
    if part in ("segfaults", "leaves", "raises", "sleeps"):
        assert result["elapsed_sec"] is result["total_iterations"] is None
    if part in ("no_fault", "lingers"):  # what rank 0 has found is kept
        assert result["metrics"]["total"] == 3.0**4
    if part in ("segfaults", "leaves", "lingers"):
        for said in (failure, second["failure"]):
            assert "in run(), after step 637 of 1000" in said["message"]
    if part == "lingers":  # every rank has a folder of its own
        assert "rank_faults.py" in (folder / "trial_3.rank_1/stacks.log").read_text()
    for number, rank in enumerate(ranks):
        assert rank["rank"] == number
        if part != "setup_raises":
            assert f"rank {number} begins\n" in (folder / rank["stdout"]).read_text()
        assert (folder / rank["stderr"]).exists()
    if part == "segfaults":
        assert (second["signal"], second["exit_code"]) == ("SIGSEGV", None)
        assert "Fatal Python error: Segmentation fault" in (folder / second["stderr"]).read_text()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Stage]]:
    """Two trials of ``fsdp``, run by every launcher."""
    stages = {}
    for launcher in ("elastic", "external"):
        stage = stages[launcher] = Stage(tmp_path_factory.mktemp(f"fsdp_{launcher}") / "stage")
        options = ("--aorta-workload", "fsdp", "--aorta-trials", "2", "--aorta-steps", "8")
        done = stage.torchrun(2, *options) if launcher == "external" else stage.run(*options)
        assert (done.ret, counts(done)) == (0, {"passed": 2}), text(done)
    yield stages
    for stage in stages.values():
        stage.close()


def test_trials_of_fsdp_are_the_same_under_every_launcher(trained: dict[str, Stage]) -> None:
    trials = [trial for stage in trained.values() for trial in stage.trials().values()]
    assert [trial["exit_status"] for trial in trials] == ["ok"] * 4
    first = trials[0]
    for trial in trials[1:]:
        assert list(trial) == list(first)
        assert list(trial["result"]["metrics"]) == list(first["result"]["metrics"])
        assert trial["result"]["metrics"]["losses"] == first["result"]["metrics"]["losses"]
        assert trial["result"]["metrics"]["weights_checksum"] == first["result"]["metrics"]["weights_checksum"]
        assert trial["env"]["process"]["torch_threads"] == first["env"]["process"]["torch_threads"]
        assert [sorted(record) for record in trial["ranks"]] == [sorted(record) for record in first["ranks"]]


def test_a_run_of_a_distributed_workload_writes_one_file_per_trial(trained: dict[str, Stage]) -> None:
    stage = trained["elastic"]
    assert stage.files() == ["fsdp/trial_0.json", "fsdp/trial_1.json"]
    for index, trial in enumerate(stage.trials().values()):
        assert (trial["trial_id"], trial["workload"], trial["exit_status"]) == (f"fsdp_d0_m0_t{index}", "fsdp", "ok")
        assert (trial["execution_env"]["name"], trial["mitigations_applied"]) == ("local", ["none"])
        assert trial["result"]["passed"]
        assert len(trial["result"]["step_times_ms"]) == trial["result"]["total_iterations"] > 0
    ranks = [f"attempt_0/rank_{rank}.{name}.log" for rank in (0, 1) for name in ("stderr", "stdout")]
    logs = [path.removeprefix("fsdp/trial_0/") for path in stage.everything() if path.startswith("fsdp/trial_0/")]
    assert logs == [*ranks, "stderr.log", "stdout.log"]


def test_every_trial_has_a_rendezvous_of_its_own(trained: dict[str, Stage]) -> None:
    ports = [trial["env"]["env_vars"]["MASTER_PORT"] for trial in trained["external"].trials().values()]
    assert len(set(ports)) == 2, ports
