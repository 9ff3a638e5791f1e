"""A command as a workload: its process and output, the result of what it has printed, and its ranks under torchrun."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, BinaryIO

from pytest_aorta.launch.child import script
from pytest_aorta.launch.child.attempt_files import attempt_folder, find_file
from pytest_aorta.launch.child.torchrun import run_program, send_environment
from pytest_aorta.launch.diagnosis.traces import infer_exit_reason
from pytest_aorta.launch.launch_mode import TrialPayload
from pytest_aorta.runtime.process_tree import STACK_SIGNAL, catches
from pytest_aorta.trials.command_line import (
    COMMAND_TARGET,
    fill_in,
    located,
    module_path,
    placeholders_in,
    program_not_found,
    runnable,
    words_of,
)
from pytest_aorta.trials.execution import TRIAL_SEED
from pytest_aorta.trials.loading import load_class, resolve_config
from pytest_aorta.trials.outcome import Observation, after_step, cannot_judge, nothing_done
from pytest_aorta.trials.output import RETURNCODE, SEED, OutputFindings, OutputRules, merged
from pytest_aorta.trials.records import Failure, Progress, ResultRecord, Send
from pytest_aorta.trials.steps import StepCounter, step_file
from pytest_aorta.trials.workload import CommandResult, read_result

_CHUNK = 2**16

#: Bytes without an end of line that are taken for one.
_LONGEST_LINE = 2**16

#: Bytes at the end of its standard error that are kept.
_TAIL = 2**16

#: Seconds between two looks at a process whose pipes are held by others.
_LOOK = 0.05

_LINE_END = re.compile(rb"[\r\n]+")

#: Takes a line, and when it came, in seconds of ``time.perf_counter()``.
Take = Callable[[str, float], object]


class Lines:
    """Puts chunks of bytes together to lines. Those of progress bars end with a carriage return."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[str]:
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        return [line.decode(errors="replace") for line in lines if line]

    def close(self) -> list[str]:
        """The last line, if it has no end."""
        return self.feed(b"\n")


class CommandProcess:
    """A running command, in the session and the process group of this process.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        self._process = script.start(words, environ) or subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, bufsize=0, env=dict(environ)
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._streams: dict[IO[bytes], tuple[int, Lines]] = {
            self._process.stdout: (1, Lines()),
            self._process.stderr: (2, Lines()),
        }
        #: The end of its standard error.
        self.errors = b""

    def follow(self, take: Take) -> int:
        """Pass its output on until it has ended, also where a process that it has left behind holds its pipes.

        Returns:
            its exit code; negative for a signal.
        """
        with selectors.DefaultSelector() as selector:
            for stream in self._streams:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map() and self._process.poll() is None:
                for key, _ in selector.select(_LOOK):
                    if self._pass_on(key.fileobj, take) == b"":  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)
        code = self._process.wait()
        for stream, (_, lines) in self._streams.items():
            while self._pass_on(stream, take):  # what it has written before its end
                pass
            for line in lines.close():
                take(line, time.perf_counter())
            stream.close()
        return code

    def _pass_on(self, stream: IO[bytes], take: Take) -> bytes | None:
        target, lines = self._streams[stream]
        try:
            chunk = os.read(stream.fileno(), _CHUNK)
        except BlockingIOError:
            return None
        at = time.perf_counter()
        if target == 2:
            self.errors = (self.errors + chunk)[-_TAIL:]
        write(target, chunk)
        for line in lines.feed(chunk):
            take(line, at)
        return chunk

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in self._streams:
            stream.close()


def write(descriptor: int, chunk: bytes) -> None:
    """Write all of it; where that cannot be, as on a full disk, the command goes on without its log."""
    rest = memoryview(chunk)
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def gives_stacks() -> bool:
    """Whether this process answers the question for its stacks, as that of a trial does."""
    return catches(os.getpid(), STACK_SIGNAL)


@contextlib.contextmanager
def last_to_leave() -> Iterator[None]:
    """While a command runs, leave it to it to answer the signals that all processes of a trial get.

    SIGTERM ends the command, whose last words have to reach the logs, and then this process; of a hang, the stacks that
    count are the command's.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield  # in the process of pytest
        return
    if gives_stacks():
        faulthandler.unregister(STACK_SIGNAL)
    terminated = False

    def note(number: int, frame: object) -> None:
        nonlocal terminated
        terminated = True

    signal.signal(signal.SIGTERM, note)  # not ignored, which a command would inherit
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if terminated:
            os.kill(os.getpid(), signal.SIGTERM)


#: Characters of the last line of its standard error that a message quotes.
_SHOWN = 200


def command_failure(code: int, found: OutputFindings, errors: str) -> Failure | None:
    """What a command has failed of; ``None`` when it has passed.

    The first of these decides: a signal; a line that matches ``fail_on``, or a metric that must be finite; ``skip_on``;
    ``pass_on``, in which case no exit code counts; the exit code; that no step was done.
    """
    if code < 0:
        return _after(infer_exit_reason(code, None, errors), found)
    if found.failures:
        return Failure("run", "result", found.reason)
    if found.skipped:
        return cannot_judge(found.skipped)
    if found.passed:
        return None
    if code > 0:
        failure = _after(infer_exit_reason(code, None, errors), found)
        said = errors.rstrip().rpartition("\n")[2].strip() if failure.kind == "exit_code" else ""
        return replace(failure, message=f"{failure.message}: {said[:_SHOWN]}") if said else failure
    if found.rules.pass_on:
        patterns = " or ".join(map(repr, found.rules.pass_on))
        return _after(Failure("run", "result", f"no line of its output matches {patterns}"), found)
    return nothing_done(code) if found.rules.has_steps and found.step is None else None


def _after(failure: Failure, found: OutputFindings) -> Failure:
    if found.step is None or failure.kind == "exception":
        return failure
    step = after_step(Observation(progress=Progress(found.step, found.total)))
    return replace(failure, message=f"{failure.message}{step}")


def command_result(code: int, found: OutputFindings, errors: str, elapsed: float) -> CommandResult:
    """The result of a command that has ended after ``elapsed`` seconds; the rest as of ``command_failure``."""
    failure = command_failure(code, found, errors)
    return CommandResult(
        passed=failure is None,
        failure_count=found.failure_count,
        first_failure_iteration=found.first_failure,
        failure_details=found.failures,
        total_iterations=max(0, found.step or 0),
        step_times_ms=found.step_times_ms,
        elapsed_sec=elapsed,
        metrics={**found.metrics, RETURNCODE: code},
        executed_iterations=None if found.step is None else max(0, found.step),
        configured_iterations=found.total if found.total is not None and found.total >= 0 else None,
        failure=failure,
        output=found.report(),
    )


_LOG_CHUNK = 2**20

#: Least time between two events that say nothing new, in seconds.
_INTERVAL = 0.1


def run_command_ranks(payload: TrialPayload, send: Send) -> None:
    send_environment(payload, send)
    config = resolve_config(load_class(COMMAND_TARGET), payload["overrides"], payload["steps"]).value
    words = words_of(config.command)
    start = located(fill_in(words, os.environ))
    problem = program_not_found(start, os.environ.get("PATH", os.defpath))
    if problem is not None:
        failure = Failure("setup", "exception", problem, "CommandNotFound")
        send({"type": "begin", "phase": "setup"})
        send({"type": "end", "phase": "setup", "sec": 0.0, "failure": failure})
        send({"type": "lived", "at": time.time()})
        return
    start = runnable(start, os.environ.get("PATH", os.defpath))
    unbuffered = {"PYTHONUNBUFFERED": "1"} if config.unbuffered else {}
    rules = OutputRules.of(config)
    seed = int(os.environ[TRIAL_SEED]) if SEED in placeholders_in(words) else None
    output = CommandOutput(payload, send, rules, seed)
    variables = {**unbuffered, **os.environ, **module_path(start, os.environ)}
    run_program(payload, send, ["--no-python", *start], output, environ=variables)


class CommandOutput:
    """What the ranks of a command print, read from their logs while they run."""

    def __init__(self, payload: TrialPayload, send: Send, rules: OutputRules, seed: int | None) -> None:
        self._folder = Path(payload["folder"])
        self._nproc = payload["nproc"]
        self._send = send
        self._rules = rules
        self._seed = seed
        self._attempt = -1
        self._ranks: list[_RankOutput] = []
        self._started = time.perf_counter()
        self._said: tuple[float, int | None] = (0.0, None)

    def look(self, attempt: int) -> None:
        if attempt != self._attempt:
            self._attempt = attempt
            self._close()
            self._ranks = [_RankOutput(self._folder, attempt, rank, self._rules) for rank in range(self._nproc)]
        new = [rank.read() for rank in self._ranks]
        found, now = self._ranks[0].found, time.monotonic()
        sent_at, sent = self._said
        if now - sent_at < _INTERVAL:
            return
        if found.step is not None and found.step != sent:
            self._said = now, found.step
            self._send({"type": "progress", "step": found.step, "total": found.total})
        elif any(new) and not self._rules.has_steps:
            self._said = now, sent
            self._send({"type": "alive"})

    def result(self, attempt: int, code: int) -> tuple[ResultRecord, Failure | None]:
        """Of all ranks; where torchrun has ended with another code than 0, its ranks say why."""
        self.look(attempt)
        self._close()
        all_found = [rank.found for rank in self._ranks]
        first = all_found[0]
        first.read_files()
        failed = next((rank for rank, found in enumerate(all_found) if found.failures), 0)
        first.passed = all_found[failed].passed = any(found.passed for found in all_found)
        elapsed = time.perf_counter() - self._started
        result = command_result(code, all_found[failed], "", elapsed)
        own = command_result(code, first, "", elapsed)
        own.passed = result.passed and code == 0
        own.failure_details = [
            {**detail, "rank": rank} for rank, found in enumerate(all_found) for detail in found.failures
        ]
        own.failure_count = sum(found.failure_count for found in all_found)
        own.output = merged(found.report() for found in all_found)
        own.first_failure_iteration = result.first_failure_iteration
        if self._seed is not None:
            own.metrics[SEED] = self._seed
        failure = result.failure if code == 0 else None
        if failure is not None and all_found[failed].failures:
            failure = replace(failure, message=f"rank {failed}: {failure.message}")
        return read_result(own), failure

    def _close(self) -> None:
        for rank in self._ranks:
            rank.close()


class _RankOutput:
    def __init__(self, folder: Path, attempt: int, rank: int, rules: OutputRules) -> None:
        self.found = OutputFindings(rules)
        self._where = folder, attempt, rank
        self._steps = StepCounter(step_file(attempt_folder(folder, attempt), rank))
        self._logs: dict[str, tuple[BinaryIO, Lines]] = {}

    def read(self) -> bool:
        for name in ("stdout.log", "stderr.log"):
            if name not in self._logs and (path := find_file(*self._where, name)) is not None:
                self._logs[name] = path.open("rb"), Lines()
        new = False
        for file, lines in self._logs.values():
            while chunk := file.read(_LOG_CHUNK):
                new = True
                self._take(lines.feed(chunk))
        return new

    def _take(self, lines: list[str]) -> None:
        at = time.perf_counter()
        for line in lines:
            if self.found.take(line, at):
                self._steps.set(self.found.step, self.found.total)

    def close(self) -> None:
        """Take in lines that have no end; twice is harmless."""
        for file, lines in self._logs.values():
            self._take(lines.close())
            file.close()
        self._logs = {}
