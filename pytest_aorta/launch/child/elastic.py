"""Ranks of a workload, and torch's elastic agent in the trial's process, which starts them unless torchrun does.

The agent replaces signal handlers and edits ``os.environ``, which affects only this process. Importing this module
imports torch's agent, so zygotes of distributed workloads do it once for all their trials.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SignalException, Std, to_map

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.launch.child.attempt_files import (
    ATTEMPT,
    AttemptRecorder,
    EventLogRelay,
    EventLogWriter,
    Readiness,
    attempt_evidence,
    attempt_folder,
    event_log,
    keep_evidence,
    read_rank,
    recorder_socket,
    save_collectives,
)
from pytest_aorta.launch.child.bootstrap.sitecustomize import serve_recorder
from pytest_aorta.launch.child.rendezvous import close_stores, rendezvous
from pytest_aorta.launch.child.torch_compat import (
    MONITOR_INTERVAL,
    ReportingAgent,
    use_recorder,
)
from pytest_aorta.launch.child.workload_main import load, prepare, run_workload, use_seed
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, Launcher, RankEvidence, TrialEvidence
from pytest_aorta.launch.diagnosis.judge import attempt_event, is_about_a_missing_rank, judge, ranks_event
from pytest_aorta.launch.launch_mode import TrialPayload
from pytest_aorta.launch.nodes import is_multi_node, node_rank
from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime.process_tree import reasons_against_forking, request_stacks
from pytest_aorta.runtime.zygote_main import arm
from pytest_aorta.trials.execution import ElasticOptions, elastic_options
from pytest_aorta.trials.lifecycle import failure_of
from pytest_aorta.trials.records import AttemptReason, Event, GroupState, Send
from pytest_aorta.trials.seeding import rank_seed
from pytest_aorta.trials.steps import step_file

if TYPE_CHECKING:
    from pytest_aorta.launch.child.several_nodes import NodeExchange


class WorkloadRecorder(AttemptRecorder):
    """Looks into the event logs of the ranks of a workload as well."""

    def __init__(self, payload: TrialPayload, launcher: Launcher) -> None:
        super().__init__(Path(payload["folder"]))
        self._launcher: Launcher = launcher
        self._source = payload["source"]
        self._sockets = Path(payload["sockets"])

    def evidence(self, agent: AgentEnd | None = None) -> TrialEvidence:
        return attempt_evidence(self.folder, max(0, self.attempt), self._launcher, self._source, agent=agent)

    def stop(self) -> None:
        """Have stacks and flight recorders taken where they can say for which rank the others have waited."""
        super().stop()
        if is_about_a_missing_rank(self.evidence()):
            self.take_stacks()

    def take_stacks(self) -> None:
        """Of the ranks that run, and what their flight recorders have."""
        for rank in self.running:
            save_collectives(self.attempt_folder, rank, self._sockets)
        request_stacks(self.running.values())

    def has_left(self, local_rank: int) -> bool:
        seen = read_rank(RankEvidence(self.ranks[local_rank]), self.attempt_folder).seen()
        return not (seen.finished or seen.result is not None or seen.failures)


def run_rank(payload: TrialPayload, attempt: int, *, prepared: bool = True, relay: Send | None = None) -> bool:
    """Run the trial as the rank that ``RANK`` says; whether setup and run succeeded."""
    folder, rank = attempt_folder(Path(payload["folder"]), attempt), int(os.environ["RANK"])
    folder.mkdir(parents=True, exist_ok=True)
    arm(str(folder / f"rank_{rank}.stacks.log"))
    seed = rank_seed(payload["seed"], rank, attempt)
    log = EventLogWriter(event_log(folder, rank), relay=relay if os.environ["LOCAL_RANK"] == "0" else None)
    if not prepared:
        _import(payload, seed, log.send)
    use_seed(seed)
    sockets = Path(payload["sockets"])
    with contextlib.suppress(OSError):
        serve_recorder(str(recorder_socket(folder, rank, sockets)))

    def on_error(error: BaseException) -> None:
        _write_error_file(error)
        save_collectives(folder, rank, sockets)

    return run_workload(payload, log.send, step_file(folder, rank), on_error=on_error)


def _import(payload: TrialPayload, seed: int, send: Send) -> None:
    send({"type": "begin", "phase": "import"})
    end: Event = {"type": "end", "phase": "import", "sec": 0.0}
    start = time.monotonic()
    try:
        load(payload, seed)
    except BaseException as error:
        end["failure"] = failure_of(error, "import")
        _write_error_file(error)
        raise
    finally:
        end["sec"] = time.monotonic() - start
        send(end)
    prepare(payload)


def _write_error_file(error: BaseException) -> None:
    # At once, as the agent may end this rank; from the file it learns which rank failed first.
    if isinstance(error, Exception):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


class RankLogs(LogsSpecs):
    """Logs of the ranks at names that are known in advance, with a folder for each attempt.

    torch numbers attempts by restarts, and writes over the logs of an attempt that a membership change has ended.
    """

    def __init__(self, folder: Path, redirects: str, tee: str) -> None:
        self._streams = Std.from_str(redirects), Std.from_str(tee)
        super().__init__(str(folder), redirects=self._streams[0], tee=self._streams[1])
        self._folder = folder
        #: Number of the attempt that runs, from 0; -1 before the first.
        self.attempt = -1

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self.attempt += 1
        folder = attempt_folder(self._folder, self.attempt)
        folder.mkdir(parents=True, exist_ok=True)
        redirects, tee = (to_map(streams, len(envs)) for streams in self._streams)
        destination = LogsDest()
        for local_rank, env in envs.items():
            base = folder / f"rank_{env['RANK']}"
            to_file = redirects[local_rank] | tee[local_rank]
            destination.stdouts[local_rank] = f"{base}.stdout.log" if Std.OUT in to_file else ""
            destination.stderrs[local_rank] = f"{base}.stderr.log" if Std.ERR in to_file else ""
            if Std.OUT in tee[local_rank]:
                destination.tee_stdouts[local_rank] = f"{base}.stdout.log"
            if Std.ERR in tee[local_rank]:
                destination.tee_stderrs[local_rank] = f"{base}.stderr.log"
            destination.error_files[local_rank] = env["TORCHELASTIC_ERROR_FILE"] = f"{base}.error.json"
            env[ATTEMPT] = str(self.attempt)
        return destination


class _Recorder(WorkloadRecorder):
    """Sends the events of fresh interpreters, whose first rank has no channel, and what other nodes ask for."""

    def __init__(self, payload: TrialPayload, send: Send, exchange: NodeExchange | None, *, forks: bool) -> None:
        super().__init__(payload, "elastic")
        self._send = send
        self._exchange = exchange
        self._relay = None if forks else EventLogRelay(send)
        self._readiness = None if forks else Readiness(self.folder, send)

    def forward(self) -> None:
        if self._readiness is not None:
            self._readiness.look()
        if self._relay is not None and self.ranks:
            self._relay.forward(event_log(self.attempt_folder, self.ranks[0]))

    def watch(self) -> None:
        self.forward()
        if self._exchange is not None and self._exchange.is_asked(self.group):  # by node 0, whose ranks have ended
            self.take_stacks()
            self._exchange.answer(self.evidence(), still_running=True)

    def on_state(self, state: GroupState) -> None:
        self._send({"type": "group", "group": state})

    def on_restart(self, reason: AttemptReason) -> None:
        self.forward()
        trial = self.evidence()
        if self._exchange is not None:
            trial = self._exchange.share(trial, last=False)
        keep_evidence(self.folder, trial)
        self._send(attempt_event(trial, reason))


def run_elastic(payload: TrialPayload, send: Send) -> None:
    """Start the ranks, wait for them, report how they ended."""
    folder = Path(payload["folder"])
    nproc = payload["nproc"]
    options = _safe_to_start(elastic_options(payload["elastic"]))
    # As torchrun does, so that a trial is the same under both, unless the variable is set.
    single_threaded = nproc > 1 and "OMP_NUM_THREADS" not in os.environ
    if single_threaded:
        os.environ["OMP_NUM_THREADS"] = "1"
    forked = options.start_method == "fork"
    logs = RankLogs(folder, options.redirects, options.tee)
    exchange = None
    if is_multi_node(options):
        from pytest_aorta.launch.child.several_nodes import NodeExchange

        exchange = NodeExchange(options, payload["trial_id"])
    recorder = _Recorder(payload, send, exchange, forks=forked)
    use_recorder(recorder, max(1.0, payload["grace"]))
    error: dict[str, str] | None = None
    try:
        spec = WorkerSpec(
            role=options.role,
            local_world_size=nproc,
            rdzv_handler=rendezvous(options, payload["trial_id"]),
            entrypoint=rank_main if forked else fresh_rank_main,
            args=(payload, send, single_threaded, os.getpid()) if forked else (payload, os.getpid()),
            max_restarts=options.max_restarts,
            monitor_interval=options.monitor_interval or MONITOR_INTERVAL,
            master_addr=options.master_addr,
            master_port=options.master_port,
            local_addr=options.local_addr,
        )
        barrier = options.exit_barrier_timeout
        agent = ReportingAgent(spec, logs, start_method=options.start_method, exit_barrier_timeout=barrier)
        error = reason_of(agent.run(options.role))
        recorder.forward()
    except SignalException as stop:
        close_stores()
        # The trial is being ended, and its ranks have ended.
        signal.signal(stop.sigval, signal.SIG_DFL)
        os.kill(os.getpid(), stop.sigval)
        raise
    except Exception as raised:
        traceback.print_exc()
        error = describe_exception(raised)
    close_stores()
    trial = recorder.evidence(None if error is None else AgentEnd("the agent", error=error))
    if recorder.attempt >= 0 and exchange is not None:
        trial = exchange.share(trial)
    found = judge(trial)
    # Node 0 may have to read it when the store has gone.
    if found.failure is not None or found.cleanup is not None or node_rank(options) != 0:
        keep_evidence(folder, trial)
    send(ranks_event(found))


def _safe_to_start(options: ElasticOptions) -> ElasticOptions:
    if options.start_method == "fork" and (reasons := reasons_against_forking()):
        print(
            f"importing the workload {', '.join(reasons)}: its ranks start as with start_method=spawn", file=sys.stderr
        )
        return replace(options, start_method="spawn")
    return options


def reason_of(result: RunResult | None) -> dict[str, str] | None:
    """Why an agent has ended, as an error, where no rank has failed and none is done."""
    if result is None:
        return {"type": "RendezvousGracefulExitError", "message": "its rendezvous was closed before it could take part"}
    if result.state is WorkerState.UNHEALTHY or (result.state is WorkerState.FAILED and not result.failures):
        return {"type": "UnhealthyRanks", "message": "a rank is stuck in uninterruptible sleep (D-state)"}
    return None


def rank_main(payload: TrialPayload, send: Send, single_threaded: bool, agent: int) -> None:
    """A rank in a process that the agent forked."""
    process_tree.die_with_parent(agent)
    # As in the fresh interpreters that torchrun starts; the agent's handlers raise exceptions.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if single_threaded:
        # The variable came too late for the OpenMP library, which the zygote has loaded already.
        torch.set_num_threads(1)
    if not run_rank(payload, int(os.environ.pop(ATTEMPT)), relay=send):
        os._exit(1)


def fresh_rank_main(payload: TrialPayload, agent: int) -> None:
    # A fork server is the parent of its ranks.
    process_tree.die_with_parent(os.getppid() if payload["elastic"]["start_method"] == "forkserver" else agent)
    if not run_rank(payload, int(os.environ.pop(ATTEMPT)), prepared=False):
        os._exit(1)
