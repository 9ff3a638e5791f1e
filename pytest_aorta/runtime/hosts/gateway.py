"""An execnet gateway whose process, socket and error output stay within reach."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
from typing import IO, Any

import execnet

from pytest_aorta.runtime.hosts.execnet_compat import is_connected, make_gateway
from pytest_aorta.runtime.zygote import exit_text

#: Seconds that the kernel may take to end a process that was sent SIGKILL.
_KILL_LIMIT = 5.0

#: Lines of a dead process's output that an error quotes.
_OUTPUT_LINES = 20


class HostGateway:
    """One gateway: open it, hang up, or kill what is at its other end."""

    def __init__(self, spec: execnet.XSpec) -> None:
        self.spec = spec
        self._lock = threading.Lock()
        self._killed = False
        self._hung_up = False
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._gateway: execnet.Gateway | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in kill())
        self._last_output = ""

    def open(self) -> execnet.Gateway:
        """Connect. May block for as long as the other end likes; ``kill`` from another thread ends that."""
        try:
            self._gateway = make_gateway(self.spec, self.start_process, self.make_socket)
        except BaseException:
            if self._process is not None:
                for pipe in (self._process.stdin, self._process.stdout):
                    with contextlib.suppress(OSError):
                        pipe.close()  # type: ignore[union-attr]  # both are pipes
            raise
        return self._gateway

    def hang_up(self) -> None:
        """Ask the other end to exit. Does not wait."""
        with self._lock:
            if self._gateway is None or self._hung_up:
                return
            self._hung_up = True
            gateway = self._gateway
        # On a thread: it writes, which blocks when the other end no longer reads.
        threading.Thread(target=gateway.exit, name=f"{gateway.id}-exit", daemon=True).start()

    def wait(self, timeout: float) -> bool:
        """Whether the process, or the connection where there is none, has ended within ``timeout`` seconds."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
            return self._process.returncode is not None
        if self._gateway is not None:
            self._gateway.join(timeout)
            return not is_connected(self._gateway)
        return True

    def how_ended(self) -> str | None:
        """``exit code 3`` or ``signal SIGKILL``; ``None`` while it runs, and where it was started elsewhere."""
        code = None if self._process is None else self._process.poll()
        return None if code is None else exit_text(code)

    def kill(self) -> None:
        """Leave nothing: SIGKILL to the process (which ends a stopped one, too), or the end of the connection."""
        with self._lock:
            self._killed = True
            process, sock = self._process, self._socket
        if process is not None:
            self._kill_process(process)
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self.hang_up()
        with self._lock:
            self._last_output = self._read_log()
            self._log.close()

    def output(self) -> str:
        """The last lines that the process wrote to its standard error, or ``ssh`` to that of ``ssh``."""
        with self._lock:
            return self._read_log()

    def _read_log(self) -> str:
        if self._log.closed:
            return self._last_output
        # Not seek: the process writes where this description's position is.
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), 8000, max(0, size - 8000)).decode(errors="replace")
        return "\n".join(text.rstrip().splitlines()[-_OUTPUT_LINES:])

    @staticmethod
    def _kill_process(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what stands in between, too
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_LIMIT)

    def start_process(self, args: list[str], **pipes: Any) -> subprocess.Popen[bytes]:
        """``subprocess.Popen``, for execnet."""
        with self._lock:
            if self._killed:
                raise OSError("given up")
            # A new session: Ctrl-C is for this process, which then ends the host in order; and ssh, without a
            # terminal, fails at once where it would have asked.
            self._process = subprocess.Popen(args, stderr=self._log, start_new_session=True, **pipes)
        return self._process

    def make_socket(self, *kind: Any) -> socket.socket:
        """``socket.socket``, for execnet."""
        with self._lock:
            if self._killed:
                raise OSError("given up")
            self._socket = socket.socket(*kind)
        return self._socket
