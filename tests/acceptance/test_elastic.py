"""Distributed trials on torch's elastic agent: states, options, restarts, and their records."""

from __future__ import annotations

import re
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from support.processes import free_port
from support.stage import Stage
from support.workloads import GLOO

from pytest_aorta.trials.records import GroupState

WORKLOAD = (
    GLOO
    + """
import signal


class Sums(Gloo):
    def run(self):
        self.rank, self.attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        print(f"rank {self.rank} prints")
        total = self.sum_of_ranks()
        self.work()
        dist.barrier()
        names = ("ROLE_NAME", "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT")
        names += ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE")
        shown = {name: os.environ.get(name) for name in names}
        return {"passed": True, "metrics": {"total": total, "rank": self.rank, "variables": shown}}

    def work(self):
        pass


class FailsOnce(Sums):
    def work(self):
        if self.rank == 1 and self.attempt == 0:
            raise ValueError("the first time")


class FailsAlways(Sums):
    def work(self):
        if self.rank == 1:
            raise ValueError(f"attempt {self.attempt}")


class IgnoresSigterm(Sums):
    def work(self):
        if self.rank == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        dist.barrier()
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)


class KillsItsAgent(Sums):
    def work(self):
        dist.barrier()
        if self.rank == 1:
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)


class WaitsInCpp(Sums):
    # Rank 0 in a backward pass, which waits for the others' gradients where no Python stack shows it.

    def work(self):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        if self.rank == 1:
            self.sleep()
        model(torch.ones(2)).sum().backward()

    def sleep(self):
        time.sleep(1000)


class Judges(Sums):
    result_scope = "rank_local"

    def run(self):
        rank = dist.get_rank()
        details = [{"step": step} for step in range(rank)]
        return {
            "passed": rank == 0,
            "failure_count": rank,
            "first_failure_iteration": 7 - rank if rank else None,
            "failure_details": details,
            "metrics": {"rank": rank},
        }
"""
)


@pytest.fixture
def sums(stage: Stage) -> Stage:
    stage.write(sums=WORKLOAD)
    return stage


def run(stage: Stage, name: str, *options: str) -> dict[str, Any]:
    stage.run(f"sums.py::{name}", "--aorta-timeout", "50", *options)
    assert stage.left_running() == []
    return stage.trial(f"{name}/trial_0.json")


def elastic(*options: str) -> tuple[str, ...]:
    return tuple(text for each in options for text in ("--aorta-elastic", each))


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stage, pytest.RunResult]:
    """One run of trials that pass, that fail once or always, and that kill their agent."""
    stage = Stage(tmp_path_factory.mktemp("sums"))
    stage.write(sums=WORKLOAD)
    names = [f"sums.py::{name}" for name in ("FailsOnce", "FailsAlways", "KillsItsAgent", "Sums")]
    # Forks of the agent, which one of them kills: with ``auto``, their parents are zygotes of their own.
    options = ("-o", "aorta_grace=0", "--aorta-timeout", "50", "--aorta-isolation", "fork")
    result = stage.run(*names, *options, *elastic("max_restarts=1"))
    assert stage.left_running() == []
    return stage, result


def assert_life_is_recorded(trial: dict[str, Any], launcher: str) -> None:
    assert trial["exit_status"] == "ok"
    group = trial["elastic"]
    assert group["launcher"] == launcher
    states = group["states"]
    assert [state["state"] for state in states] == ["INIT", "HEALTHY", "SUCCEEDED"]
    assert [state["world_size"] for state in states] == [None, 2, 2]
    assert [state["at"] for state in states] == sorted(state["at"] for state in states)
    assert (group["restarts"], group["attempts"]) == (0, [])
    first, second = trial["ranks"]
    assert [(rank["rank"], rank["local_rank"]) for rank in (first, second)] == [(0, 0), (1, 1)]
    assert first["host"] == second["host"] == trial["host"]
    assert first["pid"] != second["pid"] > 1
    assert [rank["result"]["metrics"]["rank"] for rank in (first, second)] == [0, 1]
    assert [rank["result"]["metrics"]["total"] for rank in (first, second)] == [3.0, 3.0]
    assert trial["result"]["metrics"]["rank"] == 0
    # Nothing is left of what they were asked through.
    for rank in (first, second):
        assert not list(Path(tempfile.gettempdir()).glob(f"pytest-aorta-*-rank-{rank['pid']}.sock"))
    found = group["launcher_variables"]
    assert found.items() >= {"OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "ROLE_RANK": "0"}.items()
    assert found.keys() >= {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "ROLE_WORLD_SIZE", "LOCAL_RANK"}
    assert not [name for name in found if not re.match("[A-Z_]*(RANK|SIZE|NAME|ADDR|PORT|THREADS)|TORCH", name)]


def assert_agent_was_killed(trial: dict[str, Any], who: str) -> None:
    assert trial["exit_status"] == "workload_failed"
    assert [trial["failure"][name] for name in ("phase", "kind", "signal")] == ["run", "signal", "SIGKILL"]
    assert trial["failure"]["message"].startswith(f"{who} was ended by SIGKILL")
    assert "tmp" not in trial["artifacts"]  # a folder that torchrun has made would be kept
    messages = [rank["failure"]["message"] for rank in trial["ranks"]]
    assert messages == [f"{who} ended before this rank did"] * 2
    assert [rank["collateral"] for rank in trial["ranks"]] == [True, True]
    assert None not in [rank["pid"] for rank in trial["ranks"]]


@pytest.mark.slow
def test_the_life_of_the_worker_group_and_the_result_of_each_rank_are_recorded(
    restarted: tuple[Stage, pytest.RunResult],
) -> None:
    assert_life_is_recorded(restarted[0].trial("Sums/trial_0.json"), "elastic")


def test_no_rank_outlives_its_agent(restarted: tuple[Stage, pytest.RunResult]) -> None:
    assert_agent_was_killed(restarted[0].trial("KillsItsAgent/trial_0.json"), "the agent")


@pytest.mark.slow
@pytest.mark.long
def test_both_are_so_under_torchrun(sums: Stage) -> None:
    options = ("--aorta-launcher", "torchrun", "-o", "aorta_grace=0", "--aorta-timeout", "50")
    sums.run("sums.py::Sums", "sums.py::KillsItsAgent", *options)
    assert sums.left_running() == []
    assert_life_is_recorded(sums.trial("Sums/trial_0.json"), "torchrun")
    assert_agent_was_killed(sums.trial("KillsItsAgent/trial_0.json"), "torchrun")


def test_a_rank_that_fails_once_is_started_again(restarted: tuple[Stage, pytest.RunResult]) -> None:
    stage, result = restarted
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["1 trial of FailsOnce local-none ok only after a restart of the ranks"])
    trial = stage.trial("FailsOnce/trial_0.json")
    assert (trial["exit_status"], trial["failure"]) == ("ok", None)
    assert trial["result"]["metrics"]["total"] == 3.0
    group = trial["elastic"]
    assert group["restarts"] == 1
    expected = ["INIT", "HEALTHY", "FAILED", "STOPPED", "HEALTHY", "SUCCEEDED"]
    assert [state["state"] for state in group["states"]] == expected
    [attempt] = group["attempts"]
    assert (attempt["attempt"], attempt["failure"]["rank"]) == (0, 1)
    assert attempt["failure"]["message"] == "rank 1: the first time"
    # The first to end has the other one ended, if that has not done so itself by then.
    assert {rank["exit_code"] or rank["signal"] for rank in attempt["ranks"]} <= {1, "SIGTERM", None}
    assert "the first time" in str(attempt["ranks"][1]["error_file"])
    kept = [artifact for artifact in trial["artifacts"] if "stdout" in artifact]
    logs = [(stage.results / "FailsOnce" / trial["artifacts"][artifact]).read_text() for artifact in kept]
    # Some versions of torch have gloo print a line of its own.
    assert {"rank 0 prints", "rank 1 prints"} <= {line for log in logs for line in log.splitlines()}
    for number in (0, 1):
        assert [artifact for artifact in kept if f"attempt_{number}/" in artifact] != []
    # Of one that fails always, the last attempt is the trial's.
    trial = stage.trial("FailsAlways/trial_0.json")
    assert (trial["exit_status"], trial["failure"]["message"]) == ("workload_failed", "rank 1: attempt 1")
    assert [attempt["failure"]["message"] for attempt in trial["elastic"]["attempts"]] == ["rank 1: attempt 0"]
    assert trial["elastic"]["states"][-1]["state"] == "FAILED"


@pytest.mark.slow
def test_what_fails_in_run_while_rank_0_is_in_its_setup_fails_the_call(stage: Stage) -> None:
    ahead = """
import os
import time
from pytest_aorta import Workload


class Ahead(Workload):
    launch_mode = "distributed"
    min_world_size = 2

    def setup(self):
        time.sleep(600 * (os.environ["RANK"] == "0"))

    def run(self):
        os._exit(3)
"""
    stage.write(ahead=ahead)
    stage.run("ahead.py", "-o", "aorta_grace=0", "--aorta-timeout", "50").assert_outcomes(failed=1)
    assert stage.trial("Ahead/trial_0.json")["exit_status"] == "workload_failed"
    stage.run("ahead.py", "--aorta-resume").assert_outcomes(failed=1)


@pytest.mark.slow
def test_a_rank_that_ignores_sigterm_is_not_waited_for(sums: Stage) -> None:
    """torch would wait for 30 seconds, whatever its arguments are; the deadline is earlier."""
    options = ("-o", "aorta_grace=1", "--aorta-elastic", "max_restarts=0", "--aorta-timeout", "25")
    trial = run(sums, "IgnoresSigterm", *options)
    assert (trial["exit_status"], trial["failure"]["signal"]) == ("workload_failed", "SIGKILL")
    assert [rank["collateral"] for rank in trial["ranks"]] == [True, False]


@pytest.mark.slow
@pytest.mark.skipif(Version(version("torch")) < Version("2.10"), reason="this torch serves collectives of NCCL only")
def test_the_flight_recorder_tells_who_is_missing_where_stacks_do_not(sums: Stage) -> None:
    # What the model imports in run() would count as no progress.
    sums.write(waits="import torch.distributed.tensor\nfrom sums import WaitsInCpp as WaitsInCpp\n")
    sums.register(waits="waits:WaitsInCpp")
    sums.run_here("--aorta-workload", "waits", "-o", "aorta_stall_timeout=12").assert_outcomes(failed=1)
    trial = sums.trial("waits/trial_0.json")
    failure = trial["failure"]
    assert (trial["exit_status"], failure["rank"]) == ("timeout", 1)
    assert "rank 1 is missing: sleep() at sums.py line" in failure["message"]
    waits, sleeps = (int(rank["collective"].rpartition(" ")[2]) for rank in trial["ranks"])
    assert waits == sleeps + 1
    assert [rank["collateral"] for rank in trial["ranks"]] == [True, False]
    recorded = trial["artifacts"]["attempt_0/rank_0.collectives"]
    assert '"profiling_name"' in (sums.results / "waits" / recorded).read_text()
    # The servers that were asked say nothing in the ranks' logs.
    assert "WorkerServer" not in (sums.results / "waits" / trial["ranks"][0]["stderr"]).read_text()


OPTIONS = {
    "role": "trainer",
    "rdzv_id": "mine",
    "max_restarts": "3",
    "monitor_interval": "0.05",
    "exit_barrier_timeout": "7",
    "rdzv_backend": "c10d",
    "rdzv_endpoint": "localhost:0",
}


@pytest.mark.slow
def test_the_options_reach_the_ranks_and_local_results_are_put_together(sums: Stage) -> None:
    options = elastic(*(f"{key}={value}" for key, value in OPTIONS.items()))
    sums.run("sums.py::Sums", "sums.py::Judges", "--aorta-nproc", "3", *options, "--aorta-timeout", "50")
    assert sums.left_running() == []
    trial = sums.trial("Sums/trial_0.json")
    assert (trial["exit_status"], trial["result"]["metrics"]["total"], len(trial["ranks"])) == ("ok", 6.0, 3)
    variables = trial["result"]["metrics"]["variables"]
    assert (variables["ROLE_NAME"], variables["TORCHELASTIC_RUN_ID"]) == ("trainer", "mine")
    assert variables["TORCHELASTIC_MAX_RESTARTS"] == "3"
    assert trial["elastic"]["options"].items() >= {"monitor_interval": 0.05, "exit_barrier_timeout": 7.0}.items()

    trial = sums.trial("Judges/trial_0.json")
    assert trial["exit_status"] == "workload_failed"
    result = trial["result"]
    assert (result["passed"], result["failure_count"], result["first_failure_iteration"]) == (False, 3, 5)
    assert result["failure_details"] == [
        {"rank": 1, "step": 0},
        {"rank": 2, "step": 0},
        {"rank": 2, "step": 1},
    ]
    assert result["metrics"] == {"rank": 0}
    # Its first failure was at iteration 5, that of rank 1 at 6.
    assert (trial["failure"]["kind"], trial["failure"]["rank"]) == ("result", 2)


@pytest.mark.slow
def test_fresh_interpreters(sums: Stage) -> None:
    trial = run(sums, "Sums", "--aorta-elastic", "start_method=spawn")
    assert (trial["exit_status"], trial["result"]["metrics"]["total"]) == ("ok", 3.0)
    assert [rank["result"]["passed"] for rank in trial["ranks"]] == [True, True]
    assert trial["phases_sec"].keys() >= {"setup", "run", "cleanup"}


@pytest.mark.slow
def test_redirects_and_tee_of_single_ranks_and_a_variable_that_wins_over_the_launchers(sums: Stage) -> None:
    trial = run(sums, "Sums", *elastic("redirects=1:3", "tee=1:1"), "--aorta-extra-env", "OMP_NUM_THREADS=3")
    logs = sorted(name for name in trial["artifacts"] if "rank" in name)
    assert logs == ["attempt_0/rank_1.stderr", "attempt_0/rank_1.stdout"]
    own = (sums.results / "Sums" / "trial_0" / "stdout.log").read_text()
    assert "rank 0 prints" in own
    assert re.search(r"^\[default1\]:rank 1 prints", own, re.MULTILINE)
    assert trial["result"]["metrics"]["variables"]["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in trial["elastic"]["launcher_variables"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "places",
    [
        ("master_addr=127.0.0.1", "master_port={port}", "local_addr=127.0.0.1"),
        ("rdzv_backend=static", "rdzv_endpoint=127.0.0.1:{port}"),
    ],
    ids=" ".join,
)
def test_rank_0_keeps_its_store_where_it_is_asked_to(sums: Stage, places: tuple[str, ...]) -> None:
    port = free_port()
    trial = run(sums, "Sums", *elastic(*(place.format(port=port) for place in places)))
    assert trial["exit_status"] == "ok"
    expected = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    assert trial["result"]["metrics"]["variables"].items() >= expected.items()


def test_every_state_can_be_recorded() -> None:
    names = ["INIT", "HEALTHY", "UNHEALTHY", "STOPPED", "SUCCEEDED", "FAILED", "UNKNOWN"]
    torch_api = pytest.importorskip("torch.distributed.elastic.agent.server.api")
    assert {state.name for state in torch_api.WorkerState} == set(names)
    for name in names:
        assert GroupState(state=name, at=1.0, attempt=0).state == name  # type: ignore[arg-type]


def test_every_row_of_the_documentation_names_a_test() -> None:
    docs = Path(__file__).parents[2] / "docs" / "guides" / "distributed.md"
    named = set(re.findall(r"\| `(test_\w+)` \|$", docs.read_text(), re.MULTILINE))
    sources = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert named
    assert {name for name in named if f"def {name}(" not in sources} == set()
