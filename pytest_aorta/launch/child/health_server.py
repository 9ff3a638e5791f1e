"""The health check of a trial's agent: torch's variable for it, and an HTTP server that torch's public builds lack.

It answers any GET with the seconds since the agent last looked at its ranks, as JSON: status 200, or 503 when these
are more than the limit. A process that is not the agent's serves it, so that it answers when the agent is stopped.
"""

from __future__ import annotations

import mmap
import os
import socket
import time

from pytest_aorta.launch.child import health_process
from pytest_aorta.launch.child.name_service import LOOPBACK
from pytest_aorta.launch.child.side_process import start_side_process

_VARIABLE = "TORCHELASTIC_HEALTH_CHECK_PORT"

#: Seconds without a look after which an agent counts as stuck: what torch's agent gives its server.
LIMIT = 60.0

_PORTS = range(1, 2**16)


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
        shared = os.memfd_create("health", 0)
        os.ftruncate(shared, health_process.BEAT.size)
        self._memory = mmap.mmap(shared, health_process.BEAT.size)
        self.beat()
        descriptors = (listening.fileno(), shared)
        self._process = start_side_process(
            health_process.__file__, os.getpid(), limit, *descriptors, descriptors=descriptors
        )
        listening.close()
        os.close(shared)

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
        health_process.BEAT.pack_into(self._memory, 0, time.monotonic(), waits)

    def close(self) -> None:
        """End it; twice is harmless."""
        self._process.close()
