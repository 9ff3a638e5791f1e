"""Starts the ranks of a trial by torch's elastic agent, or by torchrun, in the trial's process.

Ranks of a workload send events; ranks of a script or command do not. The agent replaces signal handlers and edits
``os.environ``, which affects only this process. Importing this module imports torch's agent, so a zygote imports it
once for all its trials. torchrun starts a rank as ``python -m pytest_aorta.launch.child.elastic ORDER``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, get_error_handler

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.launch.child.bootstrap import bootstrap_variables
from pytest_aorta.launch.child.bootstrap.ranks import last_collectives, serve_recorder, wait_in
from pytest_aorta.launch.child.command import Lines, command_result
from pytest_aorta.launch.child.rank_files import (
    attempt_folder,
    clear,
    collectives_file,
    drop_collectives,
    keep_evidence,
    log_event,
    log_wait,
    save_collectives,
)
from pytest_aorta.launch.child.recorder import (
    ATTEMPT,
    MONITOR_INTERVAL,
    RankRecorder,
    ReportingAgent,
    use_popen,
    use_recorder,
)
from pytest_aorta.launch.child.rendezvous import NodeExchange, close_stores, open_store, rendezvous
from pytest_aorta.launch.child.workload_main import load, prepare_workload, run_workload, snapshot, use_seed
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, AttemptEvidence
from pytest_aorta.launch.diagnosis.judge import judge, ranks_event
from pytest_aorta.launch.launch_mode import LOOPBACK, ChildArgument, free_port, is_multi_node, node_rank
from pytest_aorta.runtime.channel import Channel
from pytest_aorta.runtime.process_tree import die_with_parent, reasons_against_forking
from pytest_aorta.runtime.zygote import LentFork
from pytest_aorta.runtime.zygote_main import arm
from pytest_aorta.trials.command_line import (
    COMMAND_TARGET,
    command_words,
    fill_in,
    located,
    module_path,
    placeholders_in,
    program_not_found,
    runnable,
)
from pytest_aorta.trials.execution import DEFAULTS, TRIAL_SEED, ElasticOptions, enter, take_place
from pytest_aorta.trials.lifecycle import failure_of
from pytest_aorta.trials.loading import load_class, resolve_config
from pytest_aorta.trials.output import SEED, OutputFindings, OutputRules
from pytest_aorta.trials.records import Event, Failure, ResultRecord, Send
from pytest_aorta.trials.seeding import rank_seed
from pytest_aorta.trials.steps import StepCounter, step_file
from pytest_aorta.trials.workload import read_result

# A rank of a workload.


def run_rank(payload: ChildArgument, *, prepared: bool = True, relay: Send | None = None) -> None:
    """Run the trial as rank ``RANK``; exits with 1 unless setup and run succeed."""
    attempt, rank = int(os.environ.pop(ATTEMPT)), int(os.environ["RANK"])
    trial, sockets = Path(payload["folder"]), Path(payload["sockets"])
    folder, socket = attempt_folder(trial, attempt), f"attempt_{attempt}.{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    arm(str(folder / f"rank_{rank}.stacks.log"))
    seed = rank_seed(payload["seed"], rank, attempt)
    is_first = os.environ["LOCAL_RANK"] == "0"

    def send(event: Event) -> None:
        log_event(folder, rank, event)
        if is_first and relay is not None:
            relay(event)

    def on_error(error: BaseException) -> None:
        # At once, as the agent may end this rank; from the file it learns which rank failed first.
        if isinstance(error, Exception):
            get_error_handler().record_exception(error)
        log_wait(folder, rank, wait_in([frame for frame, _ in traceback.walk_tb(error.__traceback__)]))
        save_collectives(trial, sockets, socket)

    if not prepared:
        send({"type": "begin", "phase": "import"})
        end: Event = {"type": "end", "phase": "import", "sec": 0.0}
        start = time.monotonic()
        try:
            load(payload, seed)
        except BaseException as error:
            end["failure"] = failure_of(error, "import")
            on_error(error)
            raise
        finally:
            end["sec"] = time.monotonic() - start
            send(end)
        prepare_workload(payload)
    use_seed(seed)
    with contextlib.suppress(OSError):
        serve_recorder(str(sockets / socket))
    if not run_workload(payload, send, step_file(folder, rank), on_error=on_error):
        os._exit(1)
    with contextlib.suppress(Exception):
        if trace := last_collectives():
            collectives_file(folder, rank).write_bytes(trace)
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:  # the workload has closed it: torch would also fail to flush it, and end the rank with 1
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        except (AttributeError, ValueError):
            pass


def rank_main(payload: ChildArgument, send: Send, single_threaded: bool, agent: int) -> None:
    """Run a rank in a process that the agent has forked."""
    die_with_parent(agent)
    # As in the fresh interpreters that torchrun starts; the agent's handlers raise exceptions.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if single_threaded:
        # The variable came too late for the OpenMP library, which the zygote has loaded already.
        torch.set_num_threads(1)
    run_rank(payload, relay=send)


def run_zygote_rank(payload: ChildArgument) -> None:
    """Run a rank in a fork of its own zygote."""
    environ = payload["rank_environ"]
    os.environ.clear()
    os.environ.update(environ)
    take_place({})
    if payload["cwd"] is not None:
        enter(payload["cwd"])
    if payload["memory"] is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (payload["memory"], payload["memory"]))
    if environ.get("OMP_NUM_THREADS") == "1":  # the variable comes too late for the OpenMP library
        torch.set_num_threads(1)
    run_rank(payload)


def fresh_rank_main(payload: ChildArgument, agent: int) -> None:
    # A fork server is the parent of its ranks.
    die_with_parent(os.getppid() if payload["elastic"]["start_method"] == "forkserver" else agent)
    run_rank(payload, prepared=False)


# In the trial's process, the agent of a workload's ranks.

#: Zygotes of the local ranks, lent by the process that started this one; empty if the agent forks the ranks here.
lent_zygotes: list[Channel] = []


class ZygoteRanks:
    """Replaces ``subprocess.Popen`` in torch's agent: forks each rank from the zygote that was lent for it."""

    def __init__(self, payload: ChildArgument, send: Send) -> None:
        self._payload, self._send = payload, send
        self._started: list[LentFork] = []

    def __call__(
        self, args: Sequence[str], env: Mapping[str, str], stdout: IO[str] | None, stderr: IO[str] | None, **given: Any
    ) -> LentFork:
        rank = int(env["LOCAL_RANK"])
        folder = self._payload["folder"]
        logs = {"stdout": f"{folder}/stdout.log", "stderr": f"{folder}/stderr.log"}
        for name, stream in (("stdout", stdout), ("stderr", stderr)):
            if stream is not None:
                logs[name] = os.path.realpath(f"/proc/self/fd/{stream.fileno()}")
        forked = LentFork(lent_zygotes[rank], {**self._payload, "rank_environ": dict(env)}, **logs)
        self._started.append(forked)
        self.tell()
        return forked

    def tell(self) -> None:
        """Send the host the processes of the ranks, and the processes that they have left behind."""
        running = [forked.pid for forked in self._started if forked.returncode is None]
        left = [name for forked in self._started for name in forked.swept]
        self._send({"type": "rank_pids", "pids": running, "left": left})


def run_elastic(payload: ChildArgument, send: Send) -> None:
    """Start the ranks, wait for them, report how they ended."""
    nproc, options = payload["nproc"], ElasticOptions(**payload["elastic"])
    if options.start_method == "fork" and (reasons := reasons_against_forking()):
        said = f"importing the workload {', '.join(reasons)}: its ranks start as with start_method=spawn"
        print(said, file=sys.stderr)
        options = replace(options, start_method="spawn")
    # As torchrun does, so that a trial is the same under both, unless the variable is set.
    single_threaded = nproc > 1 and "OMP_NUM_THREADS" not in os.environ
    if single_threaded:
        os.environ["OMP_NUM_THREADS"] = "1"
    forked = options.start_method == "fork" and not lent_zygotes
    of_zygotes = ZygoteRanks(payload, send) if lent_zygotes else None
    if of_zygotes is not None:
        use_popen(of_zygotes)
    exchange = NodeExchange(options, payload["trial_id"]) if is_multi_node(options) else None
    recorder = RankRecorder(payload, "elastic", options, send, relays=not forked, exchange=exchange)

    def run_agent() -> dict[str, str] | None:
        spec = WorkerSpec(
            role=options.role,
            local_world_size=nproc,
            rdzv_handler=rendezvous(options, payload["trial_id"]),
            entrypoint="rank" if lent_zygotes else rank_main if forked else fresh_rank_main,
            args=()
            if lent_zygotes
            else (payload, send, single_threaded, os.getpid())
            if forked
            else (payload, os.getpid()),
            max_restarts=options.max_restarts,
            monitor_interval=options.monitor_interval or MONITOR_INTERVAL,
            master_addr=options.master_addr,
            master_port=options.master_port,
            local_addr=options.local_addr,
        )
        barrier = options.exit_barrier_timeout
        agent = ReportingAgent(spec, recorder, start_method=options.start_method, exit_barrier_timeout=barrier)
        return reason_of(agent.run(options.role))

    error = _follow(recorder, run_agent)
    if of_zygotes is not None:
        of_zygotes.tell()
    trial = recorder.evidence(None if error is None else AgentEnd("the agent", error=error))
    if recorder.attempt >= 0 and exchange is not None:
        trial = exchange.share(trial)
    # Node 0 may have to read it when the store has gone.
    _report(recorder.folder, trial, send, keep=node_rank(options) != 0)


def reason_of(result: RunResult | None) -> dict[str, str] | None:
    """The error with which an agent has ended, if no rank has failed and none is done."""
    if result is None:
        return {"type": "RendezvousGracefulExitError", "message": "its rendezvous was closed before it could take part"}
    if result.state is WorkerState.UNHEALTHY or (result.state is WorkerState.FAILED and not result.failures):
        return {"type": "UnhealthyRanks", "message": "a rank is stuck in uninterruptible sleep (D-state)"}
    return None


def _follow(recorder: RankRecorder, run_agent: Callable[[], dict[str, str] | None]) -> dict[str, str] | None:
    """Run an agent to its end; returns the error that has ended it, or ``None``."""
    use_recorder(recorder)
    try:
        error = run_agent()
    except ChildFailedError as failed:
        print(failed, file=sys.stderr)
        error = None
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
    recorder.forward()
    return error


def _report(folder: Path, trial: AttemptEvidence, send: Send, *, keep: bool = False) -> None:
    judgement = judge(trial)
    if judgement.failure is not None or judgement.cleanup is not None or keep:
        keep_evidence(folder, trial)
    else:
        drop_collectives(folder)
    send(ranks_event(judgement))


# torchrun.


def run_torchrun(payload: ChildArgument, send: Send) -> None:
    """Run a workload in ranks that torchrun starts; each runs this module."""
    order = Path(payload["folder"], "torchrun.json")
    order.write_text(json.dumps({"payload": payload, "agent": os.getpid(), "sys_path": sys.path}))
    options = ElasticOptions(**payload["elastic"])
    recorder = RankRecorder(payload, "torchrun", options, send)
    trial, _ = _run_torchrun(recorder, payload, options, ["-m", "pytest_aorta.launch.child.elastic", str(order)])
    order.unlink(missing_ok=True)
    _report(recorder.folder, trial, send)


def run_script(payload: ChildArgument, send: Send) -> None:
    script = payload["overrides"]
    program = ["--module", "--", script["module"]] if "module" in script else ["--", script["script"]]
    send({"type": "env", "env": snapshot(payload["watched"])})
    os.chdir(script["cwd"])
    _run_program(payload, send, [*program, *script["arguments"]], sys_path=sys.path)


def run_command_ranks(payload: ChildArgument, send: Send) -> None:
    send({"type": "env", "env": snapshot(payload["watched"])})
    config = resolve_config(load_class(COMMAND_TARGET), payload["overrides"], payload["steps"]).value
    words, path = command_words(config.command), os.environ.get("PATH", os.defpath)
    start = located(fill_in(words, os.environ))
    if (problem := program_not_found(start, path)) is not None:
        failure = Failure("setup", "exception", problem, "CommandNotFound")
        send({"type": "begin", "phase": "setup"})
        send({"type": "end", "phase": "setup", "sec": 0.0, "failure": failure})
        send({"type": "lived", "at": time.time()})
        return
    start = runnable(start, path)
    seed = int(os.environ[TRIAL_SEED]) if SEED in placeholders_in(words) else None
    if config.unbuffered:
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
    os.environ.update(module_path(start, os.environ))
    _run_program(
        payload, send, ["--no-python", "--", *start], CommandOutput(payload, send, OutputRules.of(config), seed)
    )


def _run_program(
    payload: ChildArgument,
    send: Send,
    words: Sequence[str],
    output: CommandOutput | None = None,
    sys_path: Sequence[str] = (),
) -> None:
    """Run a program in ranks that send no events, and report how they ended.

    ``words``: program and arguments of the ranks, which torchrun gets behind ``--``, because it would take arguments
    such as ``--log`` for its own. ``output`` reads what the ranks print; without it, torchrun's exit code is the
    result. ``sys_path``: folders to add to the ``sys.path`` of Python programs.
    """
    folder, sockets = payload["folder"], payload["sockets"]
    interval = 0.02 if output is None else 0.005
    options = replace(DEFAULTS, max_restarts=payload["elastic"]["max_restarts"], monitor_interval=interval)
    recorder = RankRecorder(payload, "script", options, send, watch=None if output is None else output.look)
    os.environ.update(bootstrap_variables(os.environ, folder=folder, sockets=sockets, sys_path=sys_path))
    # Of an outer torchrun, whose rank's failure this one's are not.
    os.environ.pop("TORCHELASTIC_ERROR_FILE", None)
    trial, code = _run_torchrun(recorder, payload, options, words)
    clear(recorder.folder)
    judgement = judge(trial)
    if recorder.ready is not None and (judgement.failure is None or judgement.failure.confidence is not None):
        end: Event = {"type": "end", "phase": "run", "sec": time.monotonic() - recorder.ready, "at": time.time()}
        if output is None:
            end["result"] = ResultRecord(code == 0, metrics={"returncode": code})
        else:
            end["result"], end["failure"] = output.result(recorder.attempt, code)
        send(end)
    _report(recorder.folder, trial, send)
    send({"type": "lived", "at": time.time()})


def _run_torchrun(
    recorder: RankRecorder, payload: ChildArgument, options: ElasticOptions, words: Sequence[str]
) -> tuple[AttemptEvidence, int]:
    """Run torchrun to its end; returns the evidence, and torchrun's exit code."""
    # torchrun would give the ranks of all attempts one store, in which those of a restart find the addresses of dead
    # ranks, and mostly connect to these until they give up (pytorch/pytorch#135712).
    if options.max_restarts:
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    code = 0

    def run_agent() -> None:
        nonlocal code
        code = 1
        arguments = torchrun.parse_args([*_torchrun_options(options, payload), *words])  # type: ignore[no-untyped-call]
        torchrun.run(arguments)  # type: ignore[no-untyped-call]
        code = 0

    error = _follow(recorder, run_agent)
    return recorder.evidence(AgentEnd("torchrun", code, error)), code


def _torchrun_options(options: ElasticOptions, payload: ChildArgument) -> list[str]:
    spelled: dict[str, object] = {
        "nproc-per-node": payload["nproc"],
        "nnodes": ":".join(map(str, options.nnodes)),
        "rdzv-id": options.rdzv_id or payload["trial_id"],
        "rdzv-backend": options.rdzv_backend or "c10d",
        "rdzv-endpoint": options.rdzv_endpoint,
        "log-dir": os.devnull,  # the recorder has places for logs; without it, torchrun makes a folder for them
    }
    for name in ("max_restarts", "monitor_interval", "role", "master_addr", "master_port", "local_addr"):
        spelled[name.replace("_", "-")] = getattr(options, name)
    if options.rdzv_endpoint is None and options.rdzv_backend == "static":
        spelled["master-port"] = options.master_port or free_port()
    elif options.rdzv_endpoint is None and options.rdzv_backend in (None, "c10d"):
        # torchrun's own store would listen on all interfaces.
        spelled["rdzv-endpoint"], spelled["local-addr"] = f"{LOOPBACK}:{open_store(forks=False)}", LOOPBACK
        spelled["rdzv-conf"] = "is_host=0"
    return [text for name, value in spelled.items() if value is not None for text in (f"--{name}", str(value))]


#: Bytes of a log that are read at once.
_LOG_CHUNK = 2**20

#: Seconds between two events that say nothing new, at least.
_INTERVAL = 0.1


class CommandOutput:
    """Reads what the ranks of a command print from their logs while they run."""

    def __init__(self, payload: ChildArgument, send: Send, rules: OutputRules, seed: int | None) -> None:
        self._folder, self._nproc = Path(payload["folder"]), payload["nproc"]
        self._send, self._seed = send, seed
        self._attempt, self._found = -1, OutputFindings(rules)
        self._steps: list[StepCounter] = []
        self._logs: dict[Path, tuple[int, BinaryIO, Lines]] = {}
        self._started = time.perf_counter()
        self._said: tuple[float, int | None] = (0.0, None)

    def look(self, attempt: int) -> None:
        folder, ranks = attempt_folder(self._folder, attempt), range(self._nproc)
        if attempt != self._attempt:
            self._close()
            self._attempt, self._found = attempt, OutputFindings(self._found.rules)
            self._steps = [StepCounter(step_file(folder, rank)) for rank in ranks]
        for rank, name in itertools.product(ranks, ("stdout", "stderr")):
            path = folder / f"rank_{rank}.{name}.log"
            if path not in self._logs and path.exists():
                self._logs[path] = rank, path.open("rb"), Lines()
        output, is_new = self._found, False
        for rank, file, lines in self._logs.values():
            while chunk := file.read(_LOG_CHUNK):
                is_new = True
                self._take(rank, lines.feed(chunk))
        now, (sent_at, sent) = time.monotonic(), self._said
        if now - sent_at < _INTERVAL:
            return
        if output.step is not None and output.step != sent:
            self._said = now, output.step
            self._send({"type": "progress", "step": output.step, "total": output.total})
        elif is_new and not output.rules.has_steps:
            self._said = now, sent
            self._send({"type": "alive"})

    def _take(self, rank: int, lines: list[str]) -> None:
        at = time.perf_counter()
        for line in lines:
            self._found.take(line, at, rank)
        step, total = self._found.steps_of(rank)
        if step is not None:
            self._steps[rank].set(step, total)

    def _close(self) -> None:
        for rank, file, lines in self._logs.values():
            self._take(rank, lines.close())  # lines without an end
            file.close()
        self._logs = {}

    def result(self, attempt: int, code: int) -> tuple[ResultRecord, Failure | None]:
        """The result of all ranks. If torchrun has ended with a code other than 0, its ranks say why."""
        self.look(attempt)
        self._close()
        self._found.read_files()
        result = command_result(code, self._found, "", time.perf_counter() - self._started)
        if self._seed is not None:
            result.metrics[SEED] = self._seed
        result.passed = result.passed and code == 0
        return read_result(result), result.failure if code == 0 else None


if __name__ == "__main__":
    _order = json.loads(Path(sys.argv[1]).read_text())
    sys.path.extend(each for each in _order["sys_path"] if each not in sys.path)
    fresh_rank_main(_order["payload"], _order["agent"])
