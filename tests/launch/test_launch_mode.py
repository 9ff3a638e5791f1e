"""How the ranks of a workload are launched, and what is refused with which words; where the nodes of a run meet.

The variables of SLURM are recorded from a real one, and tried there by tests/acceptance/test_slurm.py.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.plans import SPEC

from pytest_aorta.launch.child.rendezvous import NodeExchange, connect_nodes
from pytest_aorta.launch.diagnosis.evidence import AttemptEvidence, RankEvidence
from pytest_aorta.launch.launch_mode import (
    LaunchModeError,
    LaunchPlan,
    NodeStore,
    check_step,
    check_tasks,
    endpoint,
    listen,
    own_rank,
    resolve_launch,
    under_launcher,
    world_size,
)
from pytest_aorta.trials.execution import ElasticOptions, Execution

SINGLE = ("single_process", 1)


def distributed(minimum: int) -> tuple[str, int]:
    return "distributed", minimum


def rank_of(size: int | str, rank: int = 0) -> dict[str, str]:
    """The environment of one rank among ``size``."""
    return {"WORLD_SIZE": str(size), "RANK": str(rank)}


def resolve(description: tuple[str, int], environ: Mapping[str, str], **fields: Any) -> LaunchPlan:
    return resolve_launch(replace(SPEC, execution=Execution(**fields)), *description, environ)


def test_what_starts_the_ranks() -> None:
    cases: list[tuple[tuple[str, int], dict[str, str], dict[str, Any], LaunchPlan]] = [
        (SINGLE, {}, {}, LaunchPlan("single")),
        (SINGLE, {}, {"nproc": 1}, LaunchPlan("single")),
        (SINGLE, {"WORLD_SIZE": "1"}, {}, LaunchPlan("single")),
        (SINGLE, rank_of(1), {}, LaunchPlan("single")),
        (distributed(1), rank_of(1), {}, LaunchPlan("external", 1)),
        (distributed(2), rank_of(8, rank=7), {}, LaunchPlan("external", 8)),
        (distributed(2), rank_of(2), {"isolation": "spawn"}, LaunchPlan("external", 2)),
        (distributed(2), rank_of(2), {"isolation": "none"}, LaunchPlan("external", 2)),
        (distributed(2), rank_of(2), {"launcher": "elastic"}, LaunchPlan("elastic", 2)),
        (distributed(2), rank_of(2), {"launcher": "torchrun"}, LaunchPlan("torchrun", 2)),
        (distributed(2), {}, {}, LaunchPlan("elastic", 2)),
        (distributed(2), {}, {"nproc": 4}, LaunchPlan("elastic", 4)),
        (distributed(2), {}, {"isolation": "spawn"}, LaunchPlan("elastic", 2)),
        (distributed(2), {}, {"launcher": "torchrun", "nproc": 3}, LaunchPlan("torchrun", 3)),
    ]
    for description, environ, fields, launch in cases:
        assert resolve(description, environ, **fields) == launch


TOO_FEW = r"^workload w requires WORLD_SIZE >= 8 \(got 2\); launch with torchrun --nproc_per_node=8 -m pytest"


def test_what_cannot_be_launched_is_refused_with_what_to_type() -> None:
    cases: list[tuple[tuple[str, int], dict[str, str], dict[str, Any], str]] = [
        (
            distributed(2),
            {"WORLD_SIZE": "2"},
            {},
            r"^WORLD_SIZE=2 is set, but RANK is not: no launcher has started this process as a rank of w; unset ",
        ),
        (SINGLE, rank_of(2), {}, r"^workload w is single_process; do not wrap with torchrun$"),
        (SINGLE, {}, {"nproc": 2}, r"w is single_process; --aorta-nproc 2 does not apply to it$"),
        (distributed(8), rank_of(2), {}, TOO_FEW + r" --aorta-workload w \.\.\.$"),
        (distributed(4), {}, {"nproc": 2}, r"w requires WORLD_SIZE >= 4 \(got --aorta-nproc 2\)$"),
        (distributed(2), {}, {"isolation": "none"}, r"w is distributed; --aorta-isolation none .* torchrun --nproc_p"),
        (distributed(2), {}, {"launcher": "external"}, r"requires WORLD_SIZE >= 2 \(got 1\); launch with torchrun"),
        (distributed(1), {}, {"launcher": "external"}, r"external: pytest is not a rank, .* launch with torchrun"),
        (distributed(1), {"WORLD_SIZE": "1"}, {"launcher": "external"}, r"RANK and WORLD_SIZE are not set"),
    ]
    for description, environ, fields, message in cases:
        with pytest.raises(LaunchModeError, match=message):
            resolve(description, environ, **fields)


def test_a_world_size_that_is_no_positive_integer_is_refused() -> None:
    for text in ["two", "", "1.5", "0", "-1"]:
        with pytest.raises(
            LaunchModeError, match=rf"^WORLD_SIZE='{text}' in the environment is not a positive integer$"
        ):
            resolve(SINGLE, rank_of(text))


def test_what_the_variables_of_a_launcher_say() -> None:
    cases: list[tuple[dict[str, str], int, int, bool]] = [
        ({}, 1, 0, False),
        ({"WORLD_SIZE": " 4 "}, 4, 0, False),
        ({"RANK": "3"}, 1, 3, False),
        ({"RANK": "first"}, 1, 0, False),
        (rank_of(2, 1), 2, 1, True),
    ]
    for environ, size, rank, under in cases:
        assert (world_size(environ), own_rank(environ), under_launcher(environ)) == (size, rank, under)


# The nodes of a run.


@pytest.mark.parametrize(
    ("host", "address", "found"),
    [
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("a-name-of-any-other-address-of-this-host", "0.0.0.0", "0.0.0.0"),
        ("a-name-of-a-loopback-address", "127.0.1.1", "::"),
        ("an-address-of-another-host", "192.0.2.1", "::"),
    ],
)
def test_a_store_listens_where_all_nodes_mean_the_same_address(
    host: str, address: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda _: address)
    with listen(host, 0) as listening:
        assert listening.getsockname()[0] in (found, found.replace("::", "0.0.0.0"))


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[NodeStore, ElasticOptions]]:
    """A store, and the options with which a node meets there."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    store = NodeStore("localhost", port)
    yield store, ElasticOptions(nnodes=(2, 2), node_rank=0, rdzv_endpoint=f"127.0.0.1:{port}")
    store.close()


@pytest.mark.slow
def test_it_says_which_nodes_have_come_to_a_trial(served: tuple[NodeStore, ElasticOptions]) -> None:
    store, options = served
    connect_nodes(options, "here", 30.0).set("here/1", socket.gethostname())
    assert store.nodes_of("here", 3) == {1: socket.gethostname()}
    assert store.nodes_of("another trial", 3) == {}


def test_records_of_another_program_are_not_read(
    served: tuple[NodeStore, ElasticOptions], capfd: pytest.CaptureFixture[str]
) -> None:
    trial = AttemptEvidence(
        "elastic", group="group", ranks=[RankEvidence(rank, started=rank == 0) for rank in range(2)]
    )
    connect_nodes(served[1], "records", 30.0).set("group/1", '[{"rank": "one"}]')
    exchange = NodeExchange(served[1], "records")
    assert exchange.share(trial) == trial
    assert "the other nodes cannot be asked" in capfd.readouterr().err


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchModeError, match=f"cannot meet at port {port} of this host: Address already in use"):
            NodeStore("localhost", port)


#: What a task of ``srun -N 2 --ntasks-per-node 1`` in a job of two nodes sees, and what the job's script sees of it.
STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "gpu[1-2]",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
}
SCRIPT = {name: value for name, value in STEP.items() if "STEP" not in name} | {"SLURM_NODEID": "0"}


def test_nodes_that_would_never_meet() -> None:
    cases: list[tuple[tuple[int, int], dict[str, str], str]] = [
        (
            (2, 2),
            SCRIPT,
            r"nnodes=2: pytest was started by the script of SLURM job 12, on one node only",
        ),
        ((3, 3), STEP, r"nnodes=3: step 12\.0 of SLURM has SLURM_STEP_NUM_NODES=2; use srun -N 3 --ntasks-per-node 1"),
        ((3, 4), STEP, r"nnodes=3:4: step 12\.0 of SLURM has SLURM_STEP_NUM_NODES=2"),
        ((2, 2), {**STEP, "SLURM_STEP_NUM_NODES": "3"}, r"SLURM_STEP_NUM_NODES=3; use srun -N 2"),
        (
            (2, 2),
            {**STEP, "SLURM_STEP_NUM_TASKS": "8"},
            r"SLURM_STEP_NUM_TASKS=8 on 2 nodes, but one pytest",
        ),
    ]
    for nnodes, environ, said in cases:
        with pytest.raises(LaunchModeError, match=said):
            check_step(ElasticOptions(nnodes=nnodes), environ)
        for right in ((2, 2), (1, 2), (2, 4)):
            check_step(ElasticOptions(nnodes=right), STEP)
        # The user knows better; and there is nothing to know without SLURM, or of one node.
        check_step(ElasticOptions(nnodes=nnodes, node_rank=0), environ)
        check_step(ElasticOptions(), environ)
        check_step(ElasticOptions(nnodes=nnodes), {})


#: What the second task of ``srun -n 2`` sees.
TASK = {**STEP, "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "gpu1", "SLURM_STEP_NUM_NODES": "1"}


def test_tasks_that_would_all_run_the_same_trials() -> None:
    for task in ("0", "1"):
        environ = {**TASK, "SLURM_PROCID": task}
        with pytest.raises(LaunchModeError, match=r"step 12\.0 of SLURM has SLURM_STEP_NUM_TASKS=2, .* into results;"):
            check_tasks(Path("results"), ElasticOptions(), environ)
    # Those that are nodes of one trial share a results directory.
    check_tasks(Path("results"), ElasticOptions(nnodes=(2, 2)), {**STEP, "SLURM_PROCID": "1"})


def test_tasks_that_do_not_share_a_results_directory() -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({}, "results"),
        (SCRIPT, "results"),
        ({**TASK, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, "results"),
        (TASK, "/data/results-1"),  # a directory, or a folder, of its own
        (TASK, "/data/1/results"),
        ({**TASK, "RANK": "1", "WORLD_SIZE": "2"}, "results"),
        ({**TASK, "SLURM_PROCID": "0", "SLURM_PTY_PORT": "45933"}, "results"),  # typed in a terminal
    ]
    for environ, results in cases:
        check_tasks(Path(results), ElasticOptions(), environ)


def test_steps_that_share_a_node_meet_at_ports_of_their_own() -> None:
    several = ElasticOptions(nnodes=(2, 2))
    ports = {
        endpoint(
            several, {**STEP, "SLURM_STEP_NODELIST": "gpu1,gpu2", "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
        )[1]
        for job in range(1000, 1100)
        for step in range(20)
    }
    assert len(ports) == 100 * 20
    assert min(ports) >= 20000
    assert max(ports) < 30000
