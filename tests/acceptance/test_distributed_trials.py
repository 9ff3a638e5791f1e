"""Trials in whose ranks pytest runs, under torchrun; more in tests/faults/test_rank_fault_table.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stage import Stage, counts, text

pytestmark = pytest.mark.slow

FAULTS = Path(__file__).parents[1] / "support" / "rank_faults.py"

#: What rank 1 does: exit status; phase and kind of the failure.
EXPECTED = {
    "no_fault": ("ok", None),
    "segfaults": ("workload_failed", ("run", "signal")),
    "lingers": ("timeout", ("run", "timeout")),
    "returns_false": ("workload_failed", ("run", "result")),
    "setup_raises": ("infrastructure_failed", ("setup", "exception")),
}


def test_each_trial_has_one_file_on_one_terminal_and_names_the_rank(stage: Stage) -> None:
    stage.copy(FAULTS)
    options = ("--aorta-trials", str(len(EXPECTED)), "--aorta-config", f"script={'.'.join(EXPECTED)}")
    done = stage.torchrun(3, "rank_faults.py::RankFaults", *options, "--aorta-timeout", "20")
    stage.close()
    assert stage.files() == [f"RankFaults/trial_{index}.json" for index in range(len(EXPECTED))]
    assert (done.ret, counts(done)) == (1, {"failed": 3, "passed": 1, "errors": 1})
    assert text(done).count("test session starts") == 1
    assert "workload_failed in run: rank 1: ended by SIGSEGV in run()" in done.stdout.str()
    assert not [path for path in stage.everything() if path.endswith((".steps", ".events"))]

    trials = dict(zip(EXPECTED, stage.trials().values(), strict=True))
    folder = stage.results / "RankFaults"
    for part, trial in trials.items():
        status, cause = EXPECTED[part]
        failure = trial["failure"]
        assert (trial["exit_status"], failure and (failure["phase"], failure["kind"])) == (status, cause), failure
        assert trial["result"]["passed"] is (cause is None)
        assert [rank["rank"] for rank in trial["ranks"]] == [0, 1, 2]
        for rank in trial["ranks"]:
            assert (folder / rank["stderr"]).exists()
            assert part == "setup_raises" or f"rank {rank['rank']} begins\n" in (folder / rank["stdout"]).read_text()
        if cause is not None:
            second = trial["ranks"][1]
            assert (failure["rank"], failure["message"][:8]) == (1, "rank 1: ")
            assert (second["failure"]["phase"], second["failure"]["kind"], second["collateral"]) == (*cause, False)
            details = trial["result"]["failure_details"]
            assert (1, *cause) in [(each.get("rank"), each["phase"], each["kind"]) for each in details]
    passed = [(rank["passed"], rank["exit_code"], rank["failure"]) for rank in trials["no_fault"]["ranks"]]
    assert passed == [(True, 0, None)] * 3
    for part in ("returns_false", "lingers"):
        assert [rank["passed"] for rank in trials[part]["ranks"][:2]] == [True, False if part[0] == "r" else None]
    for part in ("no_fault", "lingers"):  # what rank 0 has found is kept
        assert trials[part]["result"]["metrics"]["total"] == 3.0**4
    for part in ("segfaults", "lingers"):
        assert "in run(), after step 637 of 1000" in trials[part]["failure"]["message"]
    segfault = trials["segfaults"]["ranks"][1]
    assert (segfault["signal"], segfault["exit_code"]) == ("SIGSEGV", None)
    assert "Fatal Python error: Segmentation fault" in (folder / segfault["stderr"]).read_text()
    assert "rank_faults.py" in (folder / "trial_2.rank_1/stacks.log").read_text()


def test_a_rank_whose_import_never_ends_is_named_and_the_others_do_not_wait_for_it(stage: Stage) -> None:
    stage.write(
        imports="""
            import os, time
            if os.environ["RANK"] == "1":
                time.sleep(3600)

            class Imports:
                launch_mode = "distributed"
                def __init__(self, config): pass
                def setup(self): pass
                def run(self): return {"passed": True}
        """
    )
    done = stage.torchrun(2, "imports.py::Imports", "--aorta-trials", "2", "--aorta-timeout", "20")
    stage.close()
    for trial in stage.trials().values():
        failure = trial["failure"]
        assert (failure["rank"], failure["kind"]) == (1, "timeout"), failure
        assert trial["phases_sec"]["launch"] < 60
    assert counts(done) == {"errors": 2}


def test_trials_of_fsdp_are_the_same_under_every_launcher(tmp_path: Path) -> None:
    stages = {launcher: Stage(tmp_path / launcher) for launcher in ("elastic", "external")}
    options = ("--aorta-workload", "fsdp", "--aorta-trials", "2", "--aorta-steps", "8")
    for launcher, stage in stages.items():
        done = stage.torchrun(2, *options) if launcher == "external" else stage.run(*options)
        assert (done.ret, counts(done)) == (0, {"passed": 2}), text(done)
        assert stage.files() == ["fsdp/trial_0.json", "fsdp/trial_1.json"]
        stage.close()
    first, *others = [trial for stage in stages.values() for trial in stage.trials().values()]
    assert len(first["result"]["step_times_ms"]) == first["result"]["total_iterations"] > 0
    for trial in others:
        assert list(trial) == list(first)
        assert list(trial["result"]["metrics"]) == list(first["result"]["metrics"])
        assert trial["result"]["metrics"]["losses"] == first["result"]["metrics"]["losses"]
        assert trial["result"]["metrics"]["weights_checksum"] == first["result"]["metrics"]["weights_checksum"]
        assert trial["env"]["process"]["torch_threads"] == first["env"]["process"]["torch_threads"]
        assert [sorted(record) for record in trial["ranks"]] == [sorted(record) for record in first["ranks"]]
    # Each trial has a rendezvous of its own.
    assert len({trial["env"]["env_vars"]["MASTER_PORT"] for trial in others[1:]}) == 2
