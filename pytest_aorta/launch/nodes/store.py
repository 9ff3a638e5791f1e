"""The process with the rendezvous store for the nodes of all trials of a run.

Kept by node 0 for as long as its pytest runs, so that a trial's nodes can still read from it when that trial is over
on node 0, and the next trial needs no other port.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import cast

from pytest_aorta.launch.launch_mode import LaunchModeError
from pytest_aorta.launch.nodes.listening import listen

_PROGRAM = "pytest_aorta.launch.child.node_store"


@dataclass(frozen=True)
class Meeting:
    """Where the nodes of a run meet, and what they have in common.

    Attributes:
        secret: see ``seal``.
        host, port: of the store, where this host has to keep it; else ``None``.
    """

    secret: str = field(repr=False)
    host: str | None = None
    port: int | None = None


#: Seconds that a process takes to end after it has closed its store.
_LAST = 1.0


class NodeStore:
    """The process that serves the store; it ends with this one.

    Raises:
        LaunchModeError: the port is taken, so that the nodes would meet at another program's.
    """

    def __init__(self, host: str, port: int, secret: str) -> None:
        try:
            listening = listen(host, port)
        except OSError as error:
            raise LaunchModeError(
                f"the nodes cannot meet at port {port} of this host: {error.strerror}; give a free port of node 0 with "
                "--aorta-elastic rdzv_endpoint=HOST:PORT, on every node"
            ) from None
        with listening:
            descriptor = listening.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(descriptor)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[descriptor],
                start_new_session=True,
                text=True,
            )
        self._lock = threading.Lock()
        self._ask(secret)

    def nodes_of(self, trial_id: str, nodes: int) -> dict[int, str] | None:
        """Those of the ``nodes`` that have come to a trial, with their host names; ``None`` if that is not known."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._ask(json.dumps([trial_id, nodes]))
            assert self._process.stdout is not None
            found = cast(dict[str, str], json.loads(self._process.stdout.readline()))
            return {int(node): host for node, host in found.items()}
        return None

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died; the trials say so
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End it."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def wait_for_end(host: str, port: int, patience: float) -> None:
    """Block until a store has gone, or cannot be reached; at most ``patience`` seconds, and a little longer.

    It goes when the pytest of node 0 ends, which has reported everything then.
    """
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1) as connection:
        connection.settimeout(patience)
        connection.recv(1)
        time.sleep(_LAST)
