"""The private names of torch that launches depend on; a test says what breaks without a name.

Those of the agent and of ``MultiprocessContext`` (``_worker_group``, ``_remaining_restarts``, ``_restart_workers``,
``_stop_workers``; ``_start``, ``_poll``, ``_close``, ``envs``, ``_pc``, ``_ret_vals``, ``_worker_finished_event``) are
shown by acceptance/test_elastic.py: without them, states, attempts and exits are not recorded, and a rank that ignores
SIGTERM has a minute to live. So are ``_WorkerServer`` and ``/handler/fr_trace_json``, without which no record of a hang
names a collective. Without ``master_listen_fd``, which test_rendezvous.py shows, a store listens on all interfaces.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes import PATIENCE
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from pytest_aorta.launch.child.recorder import ReportingAgent


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
    words = [sys.executable, "-c", WRAPPED, str(tmp_path)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=PATIENCE)
    assert json.loads(done.stdout.splitlines()[-1]) == [["begin", 0, {"0": 0}], ["started", [0]], ["ended", 0, False]]


ENDED = """
import os, signal, subprocess
from torch.distributed.elastic.multiprocessing.subprocess_handler import get_subprocess_handler
from pytest_aorta.launch.child.recorder import use_popen

class Late(subprocess.Popen):
    def poll(self):
        return None

use_popen(Late)
handler = get_subprocess_handler(entrypoint="true", args=(), env={}, stdout=None, stderr=None, local_rank_id=0)
os.waitpid(handler.proc.pid, 0)
handler.close(signal.SIGTERM)
handler.proc.returncode = 0
"""


@pytest.mark.slow
def test_a_rank_that_has_ended_before_its_agent_knows_is_asked_to_end_without_an_error() -> None:
    """``SubprocessHandler.close`` sends a signal to the group of a process, which may be gone."""
    subprocess.run([sys.executable, "-c", ENDED], check=True, timeout=PATIENCE)


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
