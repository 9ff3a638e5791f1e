"""Options of the agent that cannot act, and rendezvous that cannot work, are refused before the first trial."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.plan import PlanError, check_variables
from pytest_aorta.settings import RequestError
from pytest_aorta.trial_runner import check_elastic
from pytest_aorta.trials.execution import Execution, elastic_options

#: One value for each option, not its default.
OTHERS = {
    "max_restarts": 3,
    "monitor_interval": 0.5,
    "nnodes": "1:2",
    "node_rank": 1,
    "rdzv_backend": "static",
    "rdzv_endpoint": "localhost:2379",
    "rdzv_id": "mine",
    "start_method": "spawn",
    "redirects": "1",
    "tee": "1",
    "exit_barrier_timeout": 5,
    "role": "trainer",
    "master_addr": "127.0.0.1",
    "master_port": 1234,
    "local_addr": "127.0.0.1",
}


def check(launcher: Any, **options: Any) -> None:
    execution = Execution(launcher=launcher, elastic=elastic_options(options))
    check_elastic(execution, lambda name, value: f"--aorta-{name} {value}")


@pytest.mark.parametrize("name", OTHERS)
def test_no_option_acts_where_another_launcher_is_the_agent(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(RequestError, match=rf"--aorta-elastic {name}=.*: pytest is a rank, .* to that launcher"):
        check("external", **{name: OTHERS[name]})
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RequestError, match=rf"{name}=.*: pytest is a rank"):
        check("auto", **{name: OTHERS[name]})
    check("external")


#: Nothing that torchrun does depends on these.
NO_USE = {"exit_barrier_timeout", "node_rank", "start_method", "master_addr", "master_port"}


def test_what_torchrun_has_no_use_for() -> None:
    for name in sorted(OTHERS.keys() - {"nnodes", "rdzv_backend"}):
        check("auto", **{name: OTHERS[name]})
        if name not in NO_USE:
            check("torchrun", **{name: OTHERS[name]})
            return
        with pytest.raises(RequestError, match=rf"--aorta-elastic {name}=.*: torchrun "):
            check("torchrun", **{name: OTHERS[name]})


def test_a_rendezvous_has_an_endpoint_or_a_master() -> None:
    check("torchrun", rdzv_backend="static", master_addr="127.0.0.1", master_port=1234)
    for backend in ("c10d", "static"):
        check("auto", rdzv_backend=backend, rdzv_endpoint="node0:29500", nnodes=2)


@pytest.mark.parametrize("text", ["0", "65536", "http"])
def test_a_port_is_one(text: str) -> None:
    with pytest.raises(ValueError, match="a port from 1 to 65535"):
        elastic_options({"master_port": text})


def torch_source(path: str) -> str:
    """Source files of torch's agents, without an import of torch."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.submodule_search_locations is not None
    root = Path(found.submodule_search_locations[0])
    return "\n".join(file.read_text() for file in root.glob(path))


def test_what_torchs_agent_sets_for_ranks_is_refused_as_a_variable_and_what_it_reads_is_not() -> None:
    agent = torch_source("distributed/elastic/agent/server/local_elastic_agent.py")
    given = re.search(r"worker_env = \{(.*?)\n {12}\}", agent, re.DOTALL)
    assert given is not None
    of_ranks = set(re.findall(r'"((?:TORCHELASTIC_)?[A-Z_]+)":', given[1])) | {"TORCHELASTIC_ERROR_FILE"}
    of_ranks -= {"ROLE_NAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}  # whose other values break no rendezvous
    assert {"RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID"} < of_ranks
    read = set(re.findall(r"TORCHELASTIC_[A-Z_]+", torch_source("distributed/elastic/**/*.py"))) - of_ranks
    assert {"TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_HEALTH_CHECK_PORT"} < read

    for name in of_ranks:
        with pytest.raises(PlanError, match=f"{name} is set by the launcher of the ranks"):
            check_variables("--aorta-extra-env", {name: "1"})
    check_variables("--aorta-extra-env", dict.fromkeys(read, "1"))
