"""The failure of an agent is reported in its own words, with the option that mends it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, RankEvidence, TrialEvidence
from pytest_aorta.launch.diagnosis.judge import agent_failure, judge


def evidence(error: dict[str, str] | None = None, returncode: int | None = None, ranks: int = 0) -> TrialEvidence:
    started = [RankEvidence(rank, started=True) for rank in range(ranks)]
    return TrialEvidence("elastic", ranks=started, agent=AgentEnd("the agent", returncode, error))


def port_in_use() -> None:
    import torch.distributed as dist

    with socket.create_server(("127.0.0.1", 0)) as taken:
        dist.TCPStore("127.0.0.1", taken.getsockname()[1], is_master=True)  # type: ignore[attr-defined]


def no_other_node() -> None:
    from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

    raise RendezvousTimeoutError


def node_0_has_gone() -> None:
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    raise RendezvousConnectionError("The connection to the C10d store has failed. See inner exception for details.")


@pytest.mark.parametrize(
    ("fails", "option"),
    [
        (port_in_use, "rdzv_endpoint="),
        (no_other_node, "nnodes=MIN:MAX"),
        (node_0_has_gone, "rdzv_endpoint="),
    ],
)
def test_an_error_names_the_option_that_mends_it(fails: Callable[[], Any], option: str) -> None:
    with pytest.raises(Exception) as raised:
        fails()
    found = judge(evidence(describe_exception(raised.value))).failure

    assert found is not None
    assert found.message.startswith(f"the agent failed: {raised.value}")
    assert option in found.message
    assert (found.phase, found.type) == ("launch", type(raised.value).__qualname__)


def test_a_rank_that_is_stuck_in_the_kernel_is_an_error_of_the_agent() -> None:
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerState

    from pytest_aorta.launch.child.elastic import reason_of

    assert reason_of(RunResult(WorkerState.SUCCEEDED)) is None
    for state in (WorkerState.UNHEALTHY, WorkerState.FAILED):
        found = agent_failure(evidence(reason_of(RunResult(state))))
        assert found is not None
        assert "uninterruptible sleep" in found.message
        assert "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT" in found.message


def test_an_agent_that_fails_before_it_has_started_its_ranks_is_the_cause() -> None:
    found = judge(evidence({"type": "RuntimeError", "message": "no more processes"}, ranks=2))

    assert found.failure is not None
    assert found.failure.message == "the agent failed: no more processes"
    assert found.failure.rank is None
    for record in found.ranks:
        assert record.failure is not None
        assert record.failure.message == "the agent ended before this rank did"
        assert (record.blame, record.exit_code) == ("collateral", None)
