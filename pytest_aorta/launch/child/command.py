"""A command as a workload: its process, its output, and the result that its output gives."""

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
from typing import IO

from pytest_aorta.launch.child import script
from pytest_aorta.launch.diagnosis.traces import infer_exit_reason
from pytest_aorta.runtime.process_tree import STACK_SIGNAL, catches
from pytest_aorta.trials.lines import TRACEBACK
from pytest_aorta.trials.outcome import Observation, after_step, cannot_judge
from pytest_aorta.trials.output import RETURNCODE, OutputFindings
from pytest_aorta.trials.records import Failure, Progress
from pytest_aorta.trials.workload import CommandResult

_CHUNK = 2**16

#: Bytes after which output without a line end is taken for a line.
_LONGEST_LINE = 2**16

#: Bytes that are kept of the end of its standard error.
_TAIL = 2**16

#: Seconds between two looks at a process whose pipes other processes hold.
_LOOK = 0.05

_LINE_END = re.compile(rb"[\r\n]+")

#: Receives each line and its time in seconds of ``time.perf_counter()``.
Take = Callable[[str, float], object]


class Lines:
    """Joins chunks of bytes to lines. Lines of progress bars end with a carriage return."""

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

    ``stdin``: the file that is its standard input; ``None`` for an empty one.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self, words: Sequence[str], environ: Mapping[str, str], stdin: str | None = None, *, may_fork: bool = True
    ) -> None:
        pipe = subprocess.PIPE
        with open(stdin or os.devnull, "rb") as file:
            self._process = (script.start(words, environ) if may_fork and not stdin else None) or subprocess.Popen(
                words, stdin=file, stdout=pipe, stderr=pipe, bufsize=0, env=dict(environ)
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
        """Pass its output on until it has ended, even if a process that it left behind holds its pipes.

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
        rest = memoryview(chunk)
        with contextlib.suppress(OSError):  # on a full disk, the command goes on without its log
            while rest:
                rest = rest[os.write(target, rest) :]
        for line in lines.feed(chunk):
            take(line, at)
        return chunk

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in self._streams:
            stream.close()


@contextlib.contextmanager
def last_to_leave() -> Iterator[None]:
    """While a command runs, let the command answer the signals that all processes of a trial get.

    SIGTERM ends the command, whose last words must reach the logs, and then this process. In a hang, only the stacks of
    the command matter.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield  # in the process of pytest
        return
    if catches(os.getpid(), STACK_SIGNAL):
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


#: Characters of its last words that a message quotes.
_SHOWN = 200


def command_failure(code: int, findings: OutputFindings, errors: str) -> Failure | None:
    """Why a command has failed; ``None`` if it has passed.

    The first of these decides: a signal; a line that matches ``fail_on``, or a metric that is not finite; a line that
    matches ``skip_on``; the exit code; no line that matches ``pass_on``.
    """
    if code < 0:
        return _after(infer_exit_reason(code, None, errors), findings)
    if findings.failures:
        return Failure("run", "result", findings.reason)
    if findings.skipped:
        return cannot_judge(findings.skipped)
    if code > 0:
        failure = _after(infer_exit_reason(code, None, errors), findings)
        said = findings.last_words[:_SHOWN] if failure.kind == "exit_code" else ""
        return replace(failure, message=f"{failure.message}: {said}") if said else failure
    if findings.rules.pass_on and not findings.passed:
        patterns = " or ".join(map(repr, findings.rules.pass_on))
        return _after(Failure("run", "result", f"no line of its output matches {patterns}"), findings)
    return None


def _after(failure: Failure, findings: OutputFindings) -> Failure:
    if findings.step is None or failure.kind == "exception":
        return failure
    step = after_step(Observation(progress=Progress(findings.step, findings.total)))
    return replace(failure, message=f"{failure.message}{step}")


def command_result(code: int, findings: OutputFindings, errors: str, elapsed: float) -> CommandResult:
    """The result of a command that took ``elapsed`` seconds; the other arguments are as for ``command_failure``."""
    failure, output = command_failure(code, findings, errors), findings.report()
    if failure is not None:
        output["detected"].pop(TRACEBACK, None)  # that of the failure
    if failure is None and findings.rules.has_steps and findings.step is None:
        output["warnings"].append("passed=True, but no line of its output says a step")
    return CommandResult(
        passed=failure is None,
        failure_count=findings.failure_count,
        first_failure_iteration=findings.first_failure,
        failure_details=findings.failures,
        total_iterations=max(0, findings.step or 0),
        step_times_ms=findings.step_times_ms,
        elapsed_sec=elapsed,
        metrics={**findings.metrics, RETURNCODE: code},
        executed_iterations=None if findings.step is None else max(0, findings.step),
        configured_iterations=findings.total if findings.total is not None and findings.total >= 0 else None,
        failure=failure,
        output=output,
    )
