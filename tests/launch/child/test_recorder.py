"""The private names of torch that launches depend on; a test says what breaks without a name.

Those of the agent and of ``MultiprocessContext`` (``_worker_group``, ``_remaining_restarts``, ``_restart_workers``,
``_stop_workers``; ``_start``, ``_poll``, ``_close``, ``envs``, ``_pc``, ``_ret_vals``, ``_worker_finished_event``) are
shown by acceptance/test_elastic.py: without them, states, attempts and exits are not recorded, and a rank that ignores
SIGTERM has a minute to live.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from pytest_aorta.launch.child.recorder import ReportingAgent


def printed_by(*command: str) -> Any:
    # Less than the minute that torch would wait for a rank that ignores SIGTERM.
    done = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True, timeout=50)
    return json.loads(done.stdout.splitlines()[-1])


def test_torchrun_takes_its_agent_from_the_module_of_the_launcher() -> None:
    """``launcher.api.LocalElasticAgent``: else states under torchrun are not recorded."""
    from torch.distributed.launcher import api

    assert api.LocalElasticAgent is LocalElasticAgent  # type: ignore[attr-defined]
    assert "LocalElasticAgent" in api.launch_agent.__code__.co_names
    assert issubclass(ReportingAgent, LocalElasticAgent)


WRAPPED = """
import json, sys
from torch.distributed.run import main
from pytest_aorta.launch.child.recorder import RankRecorder, use_recorder
from pytest_aorta.trials.execution import DEFAULTS

calls = []

class Recorder(RankRecorder):
    def reify(self, envs):
        logs = super().reify(envs)
        calls.append(["begin", self.attempt, self.ranks])
        return logs
    def started(self, pids):
        super().started(pids)
        calls.append(["started", sorted(pids)])
    def look(self, codes, *, stopped):
        if 0 in self.running and codes[0] is not None:
            calls.append(["ended", codes[0], stopped])
        return super().look(codes, stopped=stopped)

payload = {"folder": sys.argv[1], "sockets": sys.argv[1], "source": None, "grace": 1.0}
use_recorder(Recorder(payload, "script", DEFAULTS, lambda event: None))
main(["--nproc-per-node", "1", "--monitor-interval", "0.02", "--no-python", "true"])
print(json.dumps(calls))
"""


@pytest.mark.slow
def test_the_hooks_of_ranks_that_are_programs(tmp_path: Path) -> None:
    """``SubprocessContext``, its ``_start``, ``_poll``, ``_close``, ``envs`` and ``subprocess_handlers``: else the ends
    of ranks under torchrun are not recorded, and a rank that ignores SIGTERM has a minute to live."""
    calls = printed_by("-c", WRAPPED, str(tmp_path))
    assert calls == [["begin", 0, {"0": 0}], ["started", [0]], ["ended", 0, False]]


def test_attempts_need_not_share_a_store() -> None:
    """``TORCH_DISABLE_SHARE_RDZV_TCP_STORE``: else the ranks of a restart read the addresses of dead ones."""
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    shared: Any = DynamicRendezvousHandler.use_agent_store
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in shared.fget.__code__.co_consts


def test_ranks_need_not_use_the_store_of_their_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """``TORCHELASTIC_USE_AGENT_STORE``: else trials under ``torchrun -m pytest`` share one store."""
    from torch.distributed.rendezvous import _torchelastic_use_agent_store

    for value in (True, False):
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", str(value))
        assert _torchelastic_use_agent_store() is value


SERVED = """
import json, os, pathlib, tempfile, torch
import torch.distributed as dist
from pytest_aorta.launch.child.bootstrap.sitecustomize import ask_recorder, serve_recorder
from pytest_aorta.launch.diagnosis.collectives import read_collectives

path = pathlib.Path(tempfile.mkdtemp(), "socket")
serve_recorder(str(path))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
trace = json.loads(ask_recorder(str(path)))
last = (read_collectives(trace) or [None])[-1]
path.unlink()
print(json.dumps([sorted(trace), last and str(last)]))
"""


@pytest.mark.slow
def test_the_worker_server_serves_the_flight_recorder() -> None:
    """``_WorkerServer`` and ``/handler/fr_trace_json``: else no record of a hang names a collective."""
    keys, last = printed_by("-c", SERVED)

    if "entries" not in keys:
        assert "nccl_comm_state" in keys
        pytest.skip(f"torch {torch.__version__} records collectives of NCCL only")
    assert last == "gloo:all_reduce number 1"


SERVING = """
import json, os, socket, torch.distributed as dist
from pytest_aorta.launch.child.rendezvous import serve_store

listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
store = serve_store(listening)
client = dist.TCPStore("127.0.0.1", port, is_master=False)
client.set("key", "value")
print(json.dumps([store.port == port, store.get("key").decode(), listening.fileno()]))
"""


@pytest.mark.slow
def test_a_store_can_serve_on_a_socket_that_listens() -> None:
    """``master_listen_fd``: else a store listens on all interfaces, and libc looks up the names of its peers."""
    assert printed_by("-c", SERVING) == [True, "value", -1]
