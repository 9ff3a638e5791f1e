"""The rendezvous store for the nodes of all trials of a run: ``python -m pytest_aorta.launch.nodes.store PORT``.

Kept by node 0 for as long as its pytest runs, so that a trial's nodes can still read from it when that trial is over
on node 0, and the next trial needs no other port.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta

from pytest_aorta.launch.launch_mode import LaunchModeError

#: Seconds that a process takes to end after it has closed its store.
_LAST = 1.0


class NodeStore:
    """The process that serves the store; it ends with this one.

    Raises:
        LaunchModeError: the port is taken, so that the nodes would meet at another program's.
    """

    def __init__(self, port: int) -> None:
        try:
            socket.create_server(("", port)).close()
        except OSError as error:
            raise LaunchModeError(
                f"the nodes cannot meet at port {port} of this host: {error.strerror}; give a free port of node 0 with "
                "--aorta-elastic rdzv_endpoint=HOST:PORT, on every node"
            ) from None
        command = [sys.executable, "-m", __name__, str(port)]
        # The end of the pipe ends it.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
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


def main(port: int) -> None:
    """Serve a store until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of a batch system: its pytest ends it
        signal.signal(number, signal.SIG_IGN)
    import torch.distributed as dist

    ended = threading.Event()

    def wait_for_end_of_input() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=wait_for_end_of_input, daemon=True).start()
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "0.0.0.0", port, is_master=True, wait_for_workers=False, timeout=timedelta(days=1)
    )
    ended.wait()
    del store


if __name__ == "__main__":
    main(int(sys.argv[1]))
