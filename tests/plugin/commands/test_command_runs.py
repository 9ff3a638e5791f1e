"""A run of commands is a run: resumed, replayed, side by side, in other environments, as ranks."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import pytest
from support.stage import Stage, make_venv

PYTHON = shlex.quote(sys.executable)

DRAWS = """
import sys
print("seed", sys.argv[1])
"""

RANKS = r"""
import os, sys, time
import torch, torch.distributed as dist
how = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(1, 5):
    value = torch.ones(1)
    dist.all_reduce(value)
    print(f"step {step}/4 loss {rank}.{step} size {value.item()}", flush=True)
    if step == 3 and rank == 1:
        if how == "says":
            print("NaN in gradient")
        if how == "raises":
            raise ValueError("rank one")
        if how == "hangs":
            time.sleep(1000)
        if how == "again" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(9)
    dist.barrier()
dist.destroy_process_group()
"""

METRIC = ("--aorta-metric", r"step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>\S+) size (?P<size>\S+)")


def command(words: str) -> tuple[str, str]:
    return "--aorta-command", f"{PYTHON} {words}"


def started(stage: Stage) -> dict[str, str]:
    return {path: trial["started_at"] for path, trial in stage.trials().items()}


def test_resume_runs_only_what_has_changed(stage: Stage) -> None:
    script = "import helper, json; print(json.load(open('cfg.json')))"
    stage.write(train=script, helper="")
    stage.write_file("cfg.json", "{}")
    run = (*command("train.py cfg.json"), "--aorta-resume")
    stage.run_here(*run).assert_outcomes(passed=1)
    first = started(stage)
    stage.run_here(*run).assert_outcomes(passed=1)
    assert started(stage) == first

    for name, content in (("train.py", f"{script}\n# changed"), ("cfg.json", "[]"), ("helper.py", "x = 1")):
        stage.write_file(name, content)
        stage.run_here(*run).assert_outcomes(passed=1)
        now = started(stage)
        assert now != first, name
        first = now
    stage.run_here(*run, "--aorta-fail-on", "never").assert_outcomes(passed=1)
    assert started(stage) != first


def test_a_replay_runs_the_same_command_with_the_same_seed(stage: Stage) -> None:
    stage.write(draws=DRAWS)
    stage.run_here(*command("draws.py {seed}"), "--aorta-trials", "2", "--aorta-metric", r"seed (?P<drawn>\d+)")
    one, two = (trial["result"]["metrics"] for trial in stage.trials().values())
    assert one["drawn"] == one["seed"] != two["seed"]
    assert 0 <= one["seed"] < 2**31

    stage.run_here("--aorta-replay", "results/command-draws/trial_1.json").assert_outcomes(passed=1)
    replayed = stage.trial("replay/command-draws/local-none/trial_1.json")
    assert replayed["result"]["metrics"] == two
    assert replayed["replay_of"]["differences"] == []


@pytest.mark.parametrize("way", [("--aorta-slots", "2"), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_trials_of_commands_run_side_by_side(stage: Stage, way: tuple[str, str]) -> None:
    stage.write(
        meets="""
        import pathlib, sys, time
        pathlib.Path("here", sys.argv[1]).touch()
        while len(list(pathlib.Path("here").iterdir())) < 2:
            time.sleep(0.01)
        """
    )
    (stage.path / "here").mkdir()
    result = stage.run(*command("meets.py {trial}"), "--aorta-trials", "2", *way)
    result.assert_outcomes(passed=2)
    assert stage.left_running() == []


def test_no_process_of_a_trial_has_imported_torch_for_it(stage: Stage) -> None:
    stage.write(passes="pass")
    stage.run_here(*command("passes.py"))
    (trial,) = stage.trials().values()
    assert "torch" not in trial["env"]["end"].get("imported", {})
    assert trial["preloaded"] == []


@pytest.mark.slow
@pytest.mark.long
def test_output_or_steps_keep_the_stall_limit_away(stage: Stage) -> None:
    stage.write(
        prints="""
        import time
        for i in range(60):
            print("line", i)
            time.sleep(0.25)
        """
    )
    limit = ("-o", "aorta_stall_timeout=10")
    stage.run_here(*command("prints.py"), *limit).assert_outcomes(passed=1)
    stage.run_here(*command("prints.py"), "--aorta-metric", r"line (?P<step>\d+)", *limit).assert_outcomes(passed=1)
    stage.run_here(*command("prints.py"), "--aorta-metric", r"step (?P<step>\d+)", *limit).assert_outcomes(failed=1)
    (trial,) = stage.trials().values()
    assert trial["failure"]["kind"] == "stall"


@pytest.mark.slow
def test_a_command_runs_in_its_environment(stage: Stage) -> None:
    make_venv(stage.path / "venv", with_ours=True)
    stage.write(where="import os, sys; print('prefix', sys.prefix); print('launched', os.environ.get('LAUNCHED'))")
    stage.write_registry(
        environments={
            "own": {"venv": str(stage.path / "venv")},
            "behind": {"launcher": ["env", "LAUNCHED=yes"]},
        }
    )
    stage.run(
        *("--aorta-command", "python where.py", "--aorta-registry-file", "registry.json"),
        *("--aorta-environment", "own", "--aorta-environment", "behind"),
        *("--aorta-metric", r"prefix (?P<prefix>\S+)", "--aorta-metric", r"launched (?P<launched>\S+)"),
    ).assert_outcomes(passed=2)
    found = {trial["cell"]: trial["result"]["metrics"] for trial in stage.trials().values()}
    assert found["own-none"]["prefix"] == str(stage.path / "venv")
    assert found["behind-none"]["launched"] == "yes"


@pytest.fixture
def ranks(stage: Stage) -> Stage:
    stage.write(ranks=RANKS)
    return stage


def run_ranks(stage: Stage, how: str, *options: str) -> dict[str, Any]:
    stage.run_here(*command(f"ranks.py {how}"), "--aorta-nproc", "2", *METRIC, *options)
    return stage.trial("command-ranks/trial_0.json")


@pytest.mark.slow
@pytest.mark.long
def test_what_any_rank_says_or_does_fails_the_trial(ranks: Stage) -> None:
    trial = run_ranks(ranks, "says", "--aorta-fail-on", "NaN")
    assert trial["exit_status"] == "workload_failed"
    assert trial["failure"]["message"] == "rank 1: its output matches 'NaN' at step 3: NaN in gradient"
    assert trial["result"]["failure_details"][0] == {"message": "NaN in gradient", "step": 3, "rank": 1}

    trial = run_ranks(ranks, "raises")
    assert (trial["failure"]["type"], trial["failure"]["message"]) == ("ValueError", "rank 1: rank one")
    assert [rank["blame"] for rank in trial["ranks"]] == ["collateral", "cause"]

    trial = run_ranks(ranks, "again", "--aorta-elastic", "max_restarts=1")
    assert (trial["exit_status"], trial["elastic"]["restarts"]) == ("ok", 1)

    trial = run_ranks(ranks, "passes", "--aorta-pass-on", "1.4 size")
    assert trial["exit_status"] == "ok"


@pytest.mark.slow
@pytest.mark.long
def test_of_ranks_that_hang_it_is_known_how_far_each_came(ranks: Stage) -> None:
    trial = run_ranks(ranks, "hangs", "--aorta-timeout", "30")
    assert trial["exit_status"] == "timeout"
    assert "after step 3 of 4" in trial["failure"]["message"]
    assert "rank 1 is missing: ranks.py line 16; rank 0: barrier in ranks.py" in trial["failure"]["message"]
    ranks.wait_until_alone()
