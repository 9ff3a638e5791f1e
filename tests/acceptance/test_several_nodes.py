"""Trials of several nodes, each with a pytest and an agent: here as processes of one host."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from support.processes import PATIENCE, free_port
from support.stage import Stage
from support.workloads import GLOO

from pytest_aorta.launch.launch_mode import LaunchModeError, endpoint, node_rank
from pytest_aorta.trials.execution import ElasticOptions

WORKLOAD = (
    GLOO
    + """

class Sums(Gloo):
    def run(self):
        total = self.sum_of_ranks()
        self.work()
        metrics = {"total": total, "rank": dist.get_rank(), "size": dist.get_world_size()}
        return {"passed": True, "metrics": metrics}

    def work(self):
        pass


class WaitsForFour(Sums):
    def work(self):
        while dist.get_world_size() < 4:
            dist.barrier()
            open("alone", "w").close()
            time.sleep(0.02)


class WaitsWhileThereAreFour(Sums):
    def work(self):
        # On a busy machine, one node may begin without the other one, and take it in later.
        while dist.get_world_size() == 4 or not os.path.exists("together"):
            dist.barrier()
            if dist.get_world_size() == 4 and dist.get_rank() == 0:
                open("together", "w").close()
            time.sleep(0.02)
"""
)


@pytest.fixture
def sums(stage: Stage) -> Stage:
    stage.write(sums=WORKLOAD)
    return stage


def options(node: int, nnodes: str, where: str, *more: str) -> list[str]:
    elastic = [f"nnodes={nnodes}", f"node_rank={node}", f"rdzv_endpoint={where}", *more]
    return [
        *("--aorta-timeout", "100", "--aorta-results-dir", "results"),
        *(text for each in elastic for text in ("--aorta-elastic", each)),
    ]


@pytest.mark.slow
def test_the_trial_goes_on_without_a_node_that_was_killed(sums: Stage) -> None:
    where = f"localhost:{free_port()}"
    arguments = ("sums.py::WaitsWhileThereAreFour", "--aorta-nproc", "2")
    other = sums.start(*arguments, *options(1, "1:2", where, "max_restarts=3"))
    first = sums.start(*arguments, *options(0, "1:2", where, "max_restarts=3"))
    sums.wait_until((sums.path / "together").exists)
    other.send_signal(signal.SIGKILL)
    other.communicate(timeout=PATIENCE)
    said, _ = first.communicate(timeout=PATIENCE)

    assert first.returncode == 0, said.decode()
    assert b"ok only after a restart of the ranks" in said
    trial = sums.trial("WaitsWhileThereAreFour/trial_0.json")
    assert trial["exit_status"] == "ok"
    assert trial["result"]["metrics"] == {"total": 3.0, "rank": 0, "size": 2}
    sizes = [state["world_size"] for state in trial["elastic"]["states"] if state["state"] == "HEALTHY"]
    assert 4 in sizes
    assert sizes[-1] == 2
    assert trial["elastic"]["restarts"] >= 1
    assert "2 ranks instead of 4" in str(trial["result"]["failure_details"])
    assert len(trial["ranks"]) == 2
    sums.wait_until(lambda: not sums.left_running())


FAULTS = Path(__file__).parents[1] / "support" / "rank_faults.py"


def play(stage: Stage, part: str, config: str, limit: int, *elastic: str) -> tuple[tuple[int, int], dict[str, Any]]:
    """The exit statuses of pytest on two nodes with two ranks each, and the record."""
    stage.copy(FAULTS)
    given = ("rank_faults.py::RankFaults", "--aorta-nproc", "2", "--aorta-config", f"script={part}")
    where = f"localhost:{free_port()}"
    nodes = [
        stage.start(*given, "--aorta-config", config, *options(node, "2", where, *elastic), f"--aorta-timeout={limit}")
        for node in (1, 0)
    ]
    other, first = (node.communicate(timeout=PATIENCE) and node.returncode for node in nodes)
    return (first, other), stage.trial("RankFaults/trial_0.json")


def of_the_second_node(trial: dict[str, Any]) -> list[dict[str, Any]]:
    """Records of its ranks: which these are is for c10d to decide."""
    assert [(rank["rank"], rank["local_rank"]) for rank in trial["ranks"]] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    return [rank for rank in trial["ranks"] if "/trial_0/" not in f"/{rank['stdout']}"]


@pytest.mark.slow
@pytest.mark.long
def test_a_rank_of_the_second_node_that_raises(stage: Stage) -> None:
    ends, trial = play(stage, "raises", "at=second_node", 40)
    assert ends == (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.TESTS_FAILED)
    raised = of_the_second_node(trial)[1]
    assert (trial["exit_status"], trial["failure"]["rank"]) == ("workload_failed", raised["rank"])
    assert "rank 1 has a bug" in trial["failure"]["message"]
    assert raised["blame"] == "cause"


@pytest.mark.slow
@pytest.mark.long
def test_a_first_node_that_is_not_done_knows_that_the_second_one_is(stage: Stage) -> None:
    ends, trial = play(stage, "first_node_lingers", "at=1", 25, "exit_barrier_timeout=2")
    assert ends == (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.OK)
    assert trial["exit_status"] == "timeout"
    assert [(rank["passed"], rank["blame"]) for rank in of_the_second_node(trial)] == [(True, None)] * 2


@pytest.mark.slow
@pytest.mark.long
def test_hosts_of_the_runtime_are_nodes(sums: Stage) -> None:
    options = ("--aorta-host", "2*popen", "--aorta-elastic", "nnodes=2", "--aorta-nproc", "1", "--aorta-timeout", "50")
    sums.run_here("sums.py::Sums", "--aorta-trials", "2", *options).assert_outcomes(passed=2)
    assert sums.files() == ["Sums/trial_0.json", "Sums/trial_1.json"]
    for trial in sums.trials().values():
        assert (trial["exit_status"], trial["result"]["metrics"]["total"]) == ("ok", 3.0)
        assert [rank["rank"] for rank in trial["ranks"]] == [0, 1]
    assert (sums.results / "Sums" / "trial_1.node_1" / "stdout.log").exists()
    assert sums.left_running() == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((*options(0, "2", "localhost:1"), "-n", "2"), "--aorta-elastic nnodes: * one at a time, without -n"),
        (
            ("--aorta-elastic", "nnodes=2"),
            "nnodes=2:2: the nodes have to know where they meet; run pytest with srun, *",
        ),
    ],
)
def test_side_by_side_or_without_a_place_to_meet_nothing_starts(sums: Stage, more: tuple[str, ...], said: str) -> None:
    result = sums.run_here("sums.py", *more)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])


def test_a_step_of_slurm_says_who_is_who_and_where_they_meet() -> None:
    several = ElasticOptions(nnodes=(1, 3))
    step = {"SLURM_JOB_ID": "12345", "SLURM_NODEID": "2", "SLURM_STEP_NODELIST": "gpu[07-09],login"}

    assert node_rank(several, step) == 2
    assert endpoint(several, step) == ("gpu07", 22345)
    assert endpoint(several, {**step, "SLURM_STEP_NODELIST": "a,b"}) == ("a", 22345)
    assert node_rank(ElasticOptions(), step) == 0
    # What is given wins.
    given = ElasticOptions(nnodes=(2, 2), node_rank=1, rdzv_endpoint="head:4000")
    assert (node_rank(given, step), endpoint(given, step)) == (1, ("head", 4000))
    with pytest.raises(LaunchModeError, match="run pytest with srun, or give --aorta-elastic rdzv_endpoint=HOST:PORT"):
        endpoint(several, {})
