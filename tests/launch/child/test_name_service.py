"""Trials on one host ask no name server: counted by a resolver that is the only one of a mount namespace."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator

import pytest
from support.namespaces import in_namespace, needs_namespaces
from support.stage import Stage
from support.workloads import GLOO

MEET = (
    GLOO
    + """

class Meet(Gloo):
    def run(self):
        return {"passed": self.sum_of_ranks() == 6.0}
"""
)

ADDRESS = "127.0.0.77"


@pytest.fixture
def queries() -> Iterator[list[bytes]]:
    """What a resolver is asked for; it knows nothing."""
    found: list[bytes] = []
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        server.bind((ADDRESS, 53))
    except OSError as error:
        pytest.skip(f"no resolver can be served on {ADDRESS}: {error}")

    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                query, peer = server.recvfrom(4096)
            except TimeoutError:
                continue
            found.append(query[12:])
            server.sendto(query[:2] + b"\x81\x83" + query[4:6] + bytes(6) + query[12:], peer)  # NXDOMAIN

    server.settimeout(0.1)
    thread = threading.Thread(target=serve)
    thread.start()
    yield found
    over.set()
    thread.join()
    server.close()


def with_that_resolver_only(stage: Stage, *command: str) -> list[str]:
    files = {
        "hosts": f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n",
        "resolv.conf": f"nameserver {ADDRESS}\noptions timeout:1 attempts:1\n",
        "nsswitch.conf": "hosts: files dns\n",
    }
    return in_namespace(stage.path, files, *command)


@needs_namespaces
def test_ranks_of_one_host_ask_no_name_server(stage: Stage, queries: list[bytes]) -> None:
    stage.write(meet=MEET)
    command = (sys.executable, "-m", "pytest", "meet.py", "--aorta-nproc", "3", "--aorta-trials", "2")
    done = stage.command(*with_that_resolver_only(stage, *command))
    assert done.ret == 0
    assert queries == []


@needs_namespaces
def test_a_workload_can_ask_before_and_after(stage: Stage, queries: list[bytes]) -> None:
    script = """
    import socket
    from pytest_aorta.launch.child.torch_compat import files_only

    def ask():
        try:
            socket.getaddrinfo("somewhere.example", 80)
        except OSError:
            pass

    with files_only():
        ask()
    print("asked no server", flush=True)
    ask()
    """
    stage.write(ask=script)
    done = stage.command(*with_that_resolver_only(stage, sys.executable, "ask.py"))
    assert done.ret == 0
    assert {b"somewhere" in query for query in queries} == {True}
    assert len(queries) in (1, 2)  # of IPv4 and of IPv6, of one of two calls
