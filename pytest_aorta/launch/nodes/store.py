"""The process with the store at which the nodes of all trials of a run meet.

Node 0 keeps it for as long as its pytest runs, so that the nodes of a trial can still read from it when that trial is
over on node 0, and the next trial needs no other port. Imports no torch.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import socket
import subprocess
import sys
import threading
import time
from typing import cast

from pytest_aorta.launch.launch_mode import LaunchModeError

_PROGRAM = "pytest_aorta.launch.child.several_nodes"

#: Seconds that a process takes to end after it has closed its store.
_LAST = 1.0

_LOOPBACK = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}


class NodeStore:
    """The process that serves the store; it ends with this one.

    Raises ``LaunchModeError`` where the port is taken: the nodes would meet at another program's.
    """

    def __init__(self, host: str, port: int) -> None:
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

    def nodes_of(self, trial_id: str, nodes: int) -> dict[int, str] | None:
        """Those of the ``nodes`` that have come to a trial, with their host names; ``None`` if that is not known."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps([trial_id, nodes]) + "\n")
            self._process.stdin.flush()
            found = cast(dict[str, str], json.loads(self._process.stdout.readline()))
            return {int(node): host for node, host in found.items()}
        return None

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


def listen(host: str, port: int) -> socket.socket:
    """Listen on the interface of ``host``, where that is one address of this host; else on all.

    A name may have several addresses, and its own host may know it by a loopback address that other hosts do not mean
    (Debian's ``127.0.1.1``); an address that is not one of this host may be translated to one. Raises ``OSError`` where
    the port is taken.
    """
    address = _LOOPBACK.get(host) or _only_address(host)
    if address is not None:
        try:
            return _listen_at(address, port)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    try:
        return _listen_at("::", port, dualstack=socket.has_dualstack_ipv6())
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # no IPv6 here
            raise
    return _listen_at("0.0.0.0", port)


def _only_address(host: str) -> str | None:
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    found = {ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries}
    found = {getattr(address, "ipv4_mapped", None) or address for address in found}
    if len(found) != 1 or (address := found.pop()).is_loopback or address.is_link_local:
        return None
    return str(address)


def _listen_at(address: str, port: int, *, dualstack: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=dualstack)
