"""The health check of a trial's agent: torch's variable for it, and an HTTP server that torch's public builds lack.

It answers any GET with the seconds since the agent last looked at its ranks, as JSON: status 200, or 503 when these
are more than the limit. A process that is not the agent's serves it, so that it answers when the agent is stopped.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from pytest_aorta.launch.child.name_service import LOOPBACK
from pytest_aorta.launch.child.side_process import SideProcess

_VARIABLE = "TORCHELASTIC_HEALTH_CHECK_PORT"

#: Seconds without a look after which an agent counts as stuck: what torch's agent gives its server.
LIMIT = 60.0

#: Seconds that a client has for its request.
_CLIENT = 5.0

_PORTS = range(1, 2**16)

#: Time of the last look, in seconds of ``time.monotonic()``, and whether the agent waits for other nodes.
_BEAT = struct.Struct("d?")


class HealthCheckError(Exception):
    """The server cannot be started."""


class HealthServer:
    """Serves the health check of this process until it is closed or this process ends.

    Args:
        port: where it listens.
        everywhere: whether on all interfaces, and not on the loopback interface only.
        limit: seconds without a beat after which it answers 503.

    Raises:
        HealthCheckError: the port is taken, or is none.
    """

    def __init__(self, port: int, *, everywhere: bool = False, limit: float = LIMIT) -> None:
        try:
            listening = socket.create_server(("" if everywhere else LOOPBACK, port))
        except OSError as error:
            what = os.strerror(error.errno) if error.errno is not None else str(error)
            raise HealthCheckError(f"{_VARIABLE}={port}: {what}") from error
        # Shared with the process that serves.
        self._memory = mmap.mmap(-1, _BEAT.size)
        self.beat()
        self._process = SideProcess(lambda: _serve(listening, self._memory, limit))
        listening.close()

    @classmethod
    def at(cls, text: str, *, everywhere: bool) -> HealthServer:
        """At a port as the variable has it.

        Raises:
            HealthCheckError: the port is taken, or is none.
        """
        if not text.strip().isdecimal() or int(text) not in _PORTS:
            raise HealthCheckError(f"{_VARIABLE}={text!r}: expected a port from 1 to {_PORTS[-1]}")
        return cls(int(text), everywhere=everywhere)

    def beat(self, *, waits: bool = False) -> None:
        """The agent works; ``waits``: from now on until the next beat for other nodes, which has limits of its own."""
        _BEAT.pack_into(self._memory, 0, time.monotonic(), waits)

    def close(self) -> None:
        """End it; twice is harmless."""
        self._process.close()


class _Server(ThreadingTCPServer):
    """Not ``HTTPServer``, which would look up the name of the host."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, memory: mmap.mmap, limit: float) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.memory = memory
        self.limit = limit
        self.agent = os.getppid()


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT
    server: _Server

    def do_GET(self) -> None:
        """Answer."""
        beat, waits = _BEAT.unpack_from(self.server.memory)
        seconds = time.monotonic() - beat
        status = HTTPStatus.OK if waits or seconds <= self.server.limit else HTTPStatus.SERVICE_UNAVAILABLE
        answer = {
            "agent": self.server.agent,
            "seconds_since_last_look": round(seconds, 3),
            "limit": self.server.limit,
            "waits_for_nodes": waits,
        }
        body = (json.dumps(answer) + "\n").encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Not into the log of the trial."""


def _serve(listening: socket.socket, memory: mmap.mmap, limit: float) -> None:
    with _Server(listening, memory, limit) as server:
        server.serve_forever()
