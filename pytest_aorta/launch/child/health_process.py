"""The process that answers for the health of an agent: a script, which needs the standard library alone.

It is not forked from the agent, which may have threads that hold locks.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import sys
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

#: In the memory that it shares with the agent: time of the last look, in seconds of ``time.monotonic()``, and whether
#: the agent waits for other nodes.
BEAT = struct.Struct("d?")

#: Seconds that a client has for its request.
_CLIENT = 5.0

_PR_SET_PDEATHSIG = 1


class _Server(ThreadingTCPServer):
    """Not ``HTTPServer``, which would look up the name of the host."""

    daemon_threads = True

    def __init__(self, agent: int, limit: float, listening: socket.socket, memory: mmap.mmap) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.memory = memory
        self.limit = limit
        self.agent = agent


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT
    server: _Server

    def do_GET(self) -> None:
        """Answer."""
        beat, waits = BEAT.unpack_from(self.server.memory)
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


def main(agent: int, limit: float, listening: int, memory: int) -> None:
    """Answer until the agent ends.

    Args:
        agent: its pid.
        limit: seconds without a look after which it counts as stuck.
        listening: descriptor of a socket.
        memory: descriptor of the shared memory.
    """
    # The ranks may run on for a while after these.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        return
    with _Server(agent, limit, socket.socket(fileno=listening), mmap.mmap(memory, BEAT.size)) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
