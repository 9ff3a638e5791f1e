"""Where ranks meet, what reaches torch's agent as a variable, and what is refused at the start."""

from __future__ import annotations

import pytest
from support.processes import free_port
from support.stage import Stage
from support.workloads import GLOO

WORKLOAD = (
    GLOO
    + """

class Sums(Gloo):
    def run(self):
        names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
        return {"passed": self.sum_of_ranks() == 3.0, "metrics": {name: os.environ.get(name) for name in names}}
"""
)


@pytest.fixture
def sums(stage: Stage) -> Stage:
    stage.write(sums=WORKLOAD)
    return stage


def given(**options: object) -> list[str]:
    return [text for name, value in options.items() for text in ("--aorta-elastic", f"{name}={value}")]


def found(stage: Stage, *options: str) -> dict[str, str]:
    """Run one trial, which passes; what its rank 0 found."""
    stage.run("sums.py::Sums", "--aorta-timeout", "50", *options).assert_outcomes(passed=1)
    metrics: dict[str, str] = stage.trial("Sums/trial_0.json")["result"]["metrics"]
    return metrics


@pytest.mark.slow
def test_rank_0_keeps_its_store_where_it_is_asked_to(sums: Stage) -> None:
    port = free_port()
    variables = found(sums, *given(master_addr="127.0.0.1", master_port=port, local_addr="127.0.0.1"))
    assert variables == {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
