"""Runs of pytest and ``pytest-aorta``, forked from an interpreter in which their modules are imported already.

A run takes a second of computing to come so far, and the tests start more than a thousand. The forked process is as
one of ``python -m``: its variables, folder, streams, session, ``sys.path``, ``sys.argv`` and ``__main__``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

#: As in ``support.processes``, which the server does not import; the server is no process of a test.
MARK = "AORTA_TEST"

#: Read when an interpreter starts: with others than the server's, a run needs one of its own.
_AT_START = "PYTHON"


def _of_interpreters(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(_AT_START)}


class WarmPytest:
    """Starts the server with the first run; a run at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None  # ends when this process does
        self._variables: dict[str, str] = {}

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        folder: Path,
        variables: Mapping[str, str],
        output: Sequence[IO[bytes]],
        timeout: float,
    ) -> int | None:
        """The return code, negative for a signal; ``None`` where it cannot run here.

        Raises:
            subprocess.TimeoutExpired: it has been killed.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._process is None or self._process.poll() is not None:
                self._socket = self._start()
            server = self._socket
            assert server is not None
            if _of_interpreters(variables) != self._variables:
                return None
            places = {"module": module, "folder": str(folder)}
            order = {**places, "arguments": list(arguments), "variables": dict(variables)}
            message = json.dumps(order).encode()
            socket.send_fds(server, [len(message).to_bytes(4, "big")], [file.fileno() for file in output])
            server.sendall(message)
            server.settimeout(timeout)
            pid = _number(server)
            try:
                return _number(server)
            except TimeoutError:
                os.kill(pid, 9)
                server.settimeout(timeout)
                _number(server)
                raise subprocess.TimeoutExpired("pytest", timeout) from None
        finally:
            self._lock.release()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._variables = _of_interpreters(os.environ)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if name != MARK},
                start_new_session=True,
                cwd="/",
            )
        return ours


def _number(connection: socket.socket) -> int:
    data = _read(connection, 8)
    return int.from_bytes(data, "big", signed=True)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the other side has gone")
        data += part
    return data


def import_plugin() -> None:
    """What runs would import."""
    import pytest_aorta.launch.engine
    import pytest_aorta.launch.inprocess
    import pytest_aorta.plugin

    for module in pkgutil.iter_modules(pytest_aorta.plugin.__path__, "pytest_aorta.plugin."):
        importlib.import_module(module.name)


class _Imports:
    pytest_collection = staticmethod(import_plugin)  # with pytest's own rewriting of assertions in place


def _import_all() -> None:
    import pytest

    path = list(sys.path)
    silence = os.open(os.devnull, os.O_RDWR)
    kept = [os.dup(stream) for stream in (1, 2)]
    for stream in (1, 2):
        os.dup2(silence, stream)
    with tempfile.TemporaryDirectory() as folder:
        pytest.main([folder, "-p", "no:cacheprovider", "-p", "no:hypothesispytest"], plugins=[_Imports()])
    sys.stdout.flush()  # what is buffered would be written by each fork
    for stream, copy in zip((1, 2), kept, strict=True):
        os.dup2(copy, stream)
        os.close(copy)
    os.close(silence)
    sys.path[:] = path


def _serve(connection: socket.socket) -> None:
    """Fork a process for each order. Returns in that process, and when nobody is left who orders."""
    _import_all()
    gc.collect()
    gc.freeze()
    while True:
        size, streams, _, _ = socket.recv_fds(connection, 4, 2)
        if not size:
            return
        order = json.loads(_read(connection, int.from_bytes(size, "big")))
        if pid := os.fork():
            for stream in streams:
                os.close(stream)
            connection.sendall(pid.to_bytes(8, "big"))
            _, status = os.waitpid(pid, 0)
            connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
        else:
            connection.close()
            _become(order, streams)
            return


def _become(order: Mapping[str, object], streams: Sequence[int]) -> None:
    arguments, folder, variables = order["arguments"], order["folder"], order["variables"]
    assert isinstance(arguments, list)
    assert isinstance(folder, str)
    assert isinstance(variables, dict)
    os.setsid()
    for stream, target in zip(streams, (1, 2), strict=True):
        os.dup2(stream, target)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    random.seed()
    sys.path[0] = folder
    sys.argv[1:] = arguments
    importlib.invalidate_caches()
    sys.modules.pop("xdist.plugin", None)  # which keeps the ``sys.path`` of its import, for its workers
    runpy.run_module(str(order["module"]), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
