"""Serves the store at which the nodes of a run meet: ``python -m pytest_aorta.launch.child.node_store DESCRIPTOR``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

from pytest_aorta.launch.child.name_service import ask_files_only
from pytest_aorta.launch.child.torch_compat.stores import serve_store
from pytest_aorta.launch.nodes.meeting import present
from pytest_aorta.launch.nodes.seal import ForgedValue, Seal


def main(descriptor: int) -> None:
    """Serve a store until standard input ends; its first line is the secret, each of the others asks for a trial."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of a batch system: its pytest ends it
        signal.signal(number, signal.SIG_IGN)
    secret = sys.stdin.readline().strip()
    ask_files_only()
    store = serve_store(socket.socket(fileno=descriptor))
    seal = Seal(secret)
    store.set(seal.hello, "1")
    for line in sys.stdin:
        found: dict[int, str] = {}
        with contextlib.suppress(ForgedValue, RuntimeError):
            found = present(store, seal, *json.loads(line))
        print(json.dumps(found), flush=True)
    os._exit(0)  # torch's own end takes a while


if __name__ == "__main__":
    main(int(sys.argv[1]))
