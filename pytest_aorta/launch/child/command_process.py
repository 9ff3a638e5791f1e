"""A command as a child process whose output passes through this one, line by line, into its logs."""

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
from typing import IO

from pytest_aorta.runtime.process_tree import STACK_SIGNAL, catches

_CHUNK = 2**16

#: Bytes without an end of line that are taken for one.
_LONGEST_LINE = 2**16

#: Bytes at the end of its standard error that are kept.
_TAIL = 2**16

#: Seconds between two looks at the process where the kernel does not say when it ends.
_LOOK = 0.02

_LINE_END = re.compile(rb"[\r\n]+")

#: Takes a line, and when it came, in seconds of ``time.perf_counter()``.
Take = Callable[[str, float], object]


class Lines:
    """Puts chunks of bytes together to lines. Those of progress bars end with a carriage return."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[str]:
        """The lines that end in the next chunk; without those that are empty."""
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        return [line.decode(errors="replace") for line in lines if line]

    def close(self) -> list[str]:
        """The last line, if it has no end."""
        line, self._rest = self._rest, b""
        return [line.decode(errors="replace")] if line else []


class CommandProcess:
    """A running command, in the session and the process group of this process.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
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
        ended = _descriptor_of(self._process.pid)
        with selectors.DefaultSelector() as selector:
            if ended is not None:
                selector.register(ended, selectors.EVENT_READ)
            for stream in self._streams:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ)
            while self._process.poll() is None:
                for key, _ in selector.select(_LOOK if ended is None else None):
                    if key.fileobj != ended and self._pass_on(key.fileobj, take) == b"":  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)
        if ended is not None:
            os.close(ended)
        for stream, (_, lines) in self._streams.items():
            while self._pass_on(stream, take):  # what it has written before its end
                pass
            for line in lines.close():
                take(line, time.perf_counter())
            stream.close()
        return self._process.wait()

    def _pass_on(self, stream: IO[bytes], take: Take) -> bytes | None:
        """Pass a chunk on: empty when the stream has ended, ``None`` when there is nothing at the moment."""
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

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; ``None`` as long as it runs."""
        return self._process.poll()

    def end(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in self._streams:
            stream.close()


def _descriptor_of(pid: int) -> int | None:
    """What becomes readable when a process has ended; ``None`` on a kernel without it, or where it is forbidden."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


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
