"""One test for each private name of torch that launches depend on; it says what breaks without that name."""

from __future__ import annotations

import inspect
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import PContext, SubprocessContext

from pytest_aorta.launch.child.torch_compat import ReportingAgent

OBSERVER = Path(__file__).with_name("agent_observer.py")


def printed_by(*command: str) -> Any:
    # Less than the minute that torch would wait for a rank that ignores SIGTERM.
    done = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True, timeout=50)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the hooks of an agent saw that has run two attempts with two ranks."""
    return printed_by(str(OBSERVER), str(tmp_path_factory.mktemp("agent")))


def test_the_worker_group_can_be_replaced(agent: Any) -> None:
    """``_worker_group``, and its attribute ``state``: else no state is recorded."""
    assert agent["states"] == ["INIT", "HEALTHY", "FAILED", "STOPPED", "HEALTHY", "SUCCEEDED"]


def test_the_workers_are_known(agent: Any) -> None:
    """``_worker_group.workers``: else records have no global ranks."""
    assert agent["ranks"] == [0, 1]
    assert agent["world_sizes"] == [2, 2]


def test_restarts_are_counted(agent: Any) -> None:
    """``_remaining_restarts``: else the states of an agent under torchrun have no attempt."""
    assert agent["restarts"] == 1


def test_starts_are_hooked(agent: Any) -> None:
    """``_start_workers``: else the logs of a restart overwrite those of the attempt before."""
    assert agent["starts"] == 2


def test_looks_are_hooked(agent: Any) -> None:
    """``_monitor_workers``: else the events of a spawned rank come at the end only."""
    assert agent["looks"]


def test_restarts_are_hooked(agent: Any) -> None:
    """``_restart_workers`` and ``_stop_workers``: else no attempt but the last is recorded."""
    assert agent["reasons"] == ["failure"]
    assert callable(LocalElasticAgent._stop_workers)


def test_the_processes_of_ranks_are_known(agent: Any) -> None:
    """``_pcontext._pc.processes``: else only one failed rank of an attempt has an exit code."""
    assert all(look["context"] and look["processes"] == [True, True] for look in agent["looks"])
    assert agent["exit_codes"] == [0, 0]


def test_a_rank_may_end_without_a_return_value(agent: Any) -> None:
    """``_ret_vals`` and ``_return_values``: else an agent waits without end for a rank that called ``sys.exit(0)``."""
    assert all(look["values"] and look["queues"] == [True, True] for look in agent["looks"])


def test_no_rank_outlives_the_stop_timeout(agent: Any) -> None:
    """``PContext.close`` and ``_join_procs_with_timeout``: else a rank that ignores SIGTERM has a minute to live."""
    assert callable(PContext.close)
    assert all(look["join"] for look in agent["looks"])
    assert agent["stopped"] == 1


def test_the_watchdog_of_an_agent_is_known() -> None:
    """``_setup_local_watchdog``, ``_worker_watchdog``, ``_log_watchdog_event``, ``_reap_worker``: else a rank that the
    watchdog ends has no reason, and the agent ends with it."""
    from torch.distributed.elastic.timer.file_based_local_timer import FileTimerServer

    assert {"envs"} <= inspect.signature(LocalElasticAgent._setup_local_watchdog).parameters.keys()
    assert "_worker_watchdog" in LocalElasticAgent._setup_local_watchdog.__code__.co_names
    assert "_log_watchdog_event" in LocalElasticAgent._setup_local_watchdog.__code__.co_names
    assert len(inspect.signature(FileTimerServer._reap_worker).parameters) == 3
    assert "kill worker process" in FileTimerServer._run_watchdog.__code__.co_consts


def test_failed_ranks_are_logged_by_the_logger_with_the_filter() -> None:
    """The logger of ``elastic.multiprocessing.api``: else a failed rank costs the import of torch's compiler."""
    from torch.distributed.elastic.multiprocessing import api

    assert api.logger is logging.getLogger("torch.distributed.elastic.multiprocessing.api")


def test_torchrun_takes_its_agent_from_the_module_of_the_launcher() -> None:
    """``launcher.api.LocalElasticAgent``: else states under torchrun are not recorded."""
    from torch.distributed.launcher import api

    assert api.LocalElasticAgent is LocalElasticAgent  # type: ignore[attr-defined]
    assert "LocalElasticAgent" in api.launch_agent.__code__.co_names
    assert issubclass(ReportingAgent, LocalElasticAgent)


def test_torchrun_takes_its_context_from_the_package_of_multiprocessing() -> None:
    """``elastic.multiprocessing.SubprocessContext``: else ends of a script's ranks are not recorded."""
    from torch.distributed.elastic import multiprocessing as elastic_multiprocessing

    assert elastic_multiprocessing.SubprocessContext is SubprocessContext
    assert "SubprocessContext" in elastic_multiprocessing.start_processes.__code__.co_names


WRAPPED = """
import json, sys
from torch.distributed.run import main
from pytest_aorta.launch.child.torch_compat import HookedContext, use_in_torchrun

calls = []

class Context(HookedContext):
    stop_timeout = 1.0
    def on_start(self, attempt): calls.append(["start", attempt])
    def on_started(self): calls.append(["started", sorted(self.processes())])
    def on_look(self, *, stopped): calls.append(["look", stopped, [p.poll() for p in self.processes().values()]])

use_in_torchrun(Context)
main(["--nproc-per-node", "1", "--monitor-interval", "0.02", "--no-python", "true"])
print(json.dumps(calls))
"""


def test_the_hooked_methods_of_contexts_are_called() -> None:
    """``SubprocessContext._start``, ``_poll``, ``_close``, ``envs`` and ``subprocess_handlers``: else the ends of a
    script's ranks are not recorded, and a rank that ignores SIGTERM has a minute to live."""
    calls = printed_by("-c", WRAPPED)

    assert calls[:2] == [["start", 0], ["started", [0]]]
    assert calls[-1] == ["look", True, [0]]
    assert ["look", False, [0]] in calls


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
from pytest_aorta.launch.child.torch_compat import start_worker_server
from pytest_aorta.launch.diagnosis.traces import last_collective, request_trace, socket_path

folder = pathlib.Path(tempfile.gettempdir())
path = socket_path(os.getpid(), folder)
start_worker_server(path)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
trace = request_trace(os.getpid(), folder)
last = last_collective(trace)
path.unlink()
print(json.dumps([sorted(trace), last and str(last)]))
"""


def test_the_worker_server_serves_the_flight_recorder() -> None:
    """``_WorkerServer`` and ``/handler/fr_trace_json``: else no record of a hang names a collective."""
    keys, last = printed_by("-c", SERVED)

    if "entries" not in keys:
        assert "nccl_comm_state" in keys
        pytest.skip(f"torch {torch.__version__} records collectives of NCCL only")
    assert last == "gloo:all_reduce number 1"


SERVING = """
import json, os, socket, torch.distributed as dist
from pytest_aorta.launch.child.torch_compat import serve_store

listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
store = serve_store(listening)
client = dist.TCPStore("127.0.0.1", port, is_master=False)
client.set("key", "value")
print(json.dumps([store.port == port, store.get("key").decode(), listening.fileno()]))
"""


def test_a_store_can_serve_on_a_socket_that_listens() -> None:
    """``master_listen_fd``: else a store listens on all interfaces, and libc looks up the names of its peers."""
    assert printed_by("-c", SERVING) == [True, "value", -1]
