"""The health check of an agent: it answers from a process of its own, also when the agent is stopped."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.http_answers import answer_of, free_port, refuses
from support.processes import outcome_of, wait_until

from pytest_aorta.launch.child.health_server import HealthCheckError, HealthServer

#: Looks at its ranks as an agent does: limit in seconds, whether it waits for nodes, whether it listens everywhere.
AGENT = """
import sys, time
from pytest_aorta.launch.child.health_server import HealthServer

port, limit, waits, everywhere = sys.argv[1:]
server = HealthServer(int(port), limit=float(limit), everywhere=everywhere == "True")
server.beat(waits=waits == "True")
print("serves", flush=True)
while sys.stdin.read(1):  # a look for each byte
    server.beat()
    print("has looked", flush=True)
server.close()
print("has closed", flush=True)
time.sleep(1000)
"""


class Agent:
    """A process with a health check on ``port``, which looks at its ranks when it is asked to."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def says(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def look(self) -> None:
        """Have it look."""
        assert self.process.stdin is not None
        self.process.stdin.write("x")
        self.process.stdin.flush()
        assert self.says() == "has looked"


@contextlib.contextmanager
def agent(*, limit: float = 60, waits: bool = False, everywhere: bool = False) -> Iterator[Agent]:
    port = free_port()
    words = [sys.executable, "-c", AGENT, str(port), str(limit), str(waits), str(everywhere)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            started = Agent(process, port)
            assert started.says() == "serves"
            yield started
        finally:
            process.kill()


def test_a_stopped_agent_is_unavailable_until_it_looks_again() -> None:
    with agent(limit=0.5) as found:
        found.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: answer_of(found.port)[0] == 503)
        _, said = answer_of(found.port)
        assert said["seconds_since_last_look"] > said["limit"] == 0.5
        assert (said["agent"], said["waits_for_nodes"]) == (found.process.pid, False)
        found.process.send_signal(signal.SIGCONT)
        assert answer_of(found.port)[0] == 503


def test_an_agent_with_threads_is_not_forked() -> None:
    script = f"""
        import json, os, threading
        from http.client import HTTPConnection
        from pytest_aorta.launch.child.health_server import HealthServer

        threading.Thread(target=threading.Event().wait, daemon=True).start()
        os.register_at_fork(before=lambda: print("forked"))
        server = HealthServer({(port := free_port())})
        client = HTTPConnection("127.0.0.1", {port})
        client.request("GET", "/")
        print(json.load(client.getresponse())["agent"] == os.getpid())
        server.close()
    """
    assert outcome_of(script) == "True"


def test_an_agent_that_looks_is_available() -> None:
    with agent() as found:
        before = answer_of(found.port)[1]["seconds_since_last_look"]
        wait_until(lambda: answer_of(found.port)[1]["seconds_since_last_look"] > before + 0.5)
        found.look()
        status, said = answer_of(found.port)
        assert status == 200
        assert said["seconds_since_last_look"] < before + 0.5


def test_an_agent_that_waits_for_other_nodes_is_available() -> None:
    with agent(limit=0, waits=True) as found:
        assert (answer_of(found.port)[0], answer_of(found.port)[1]["waits_for_nodes"]) == (200, True)
        found.look()
        assert answer_of(found.port)[0] == 503


def test_a_client_that_says_nothing_keeps_no_other_from_its_answer() -> None:
    with agent() as found, socket.create_connection(("127.0.0.1", found.port)):
        assert answer_of(found.port)[1]["agent"] == found.process.pid


@pytest.mark.parametrize("everywhere", [False, True])
def test_it_listens_on_the_loopback_interface_unless_there_are_several_nodes(everywhere: bool) -> None:
    with agent(everywhere=everywhere) as found:
        assert refuses(found.port, "127.0.0.2") is not everywhere


def test_it_ends_with_its_agent() -> None:
    with agent() as found:
        found.process.kill()
        wait_until(lambda: refuses(found.port))
    with agent() as found:
        assert found.process.stdin is not None
        found.process.stdin.close()
        assert found.says() == "has closed"
        assert refuses(found.port)


@pytest.mark.parametrize("text", ["", "http", "0", "65536", "-1", "29500.5", "\u00b2"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(HealthCheckError) as raised:
        HealthServer.at(text, everywhere=False)
    assert str(raised.value) == f"TORCHELASTIC_HEALTH_CHECK_PORT={text!r}: expected a port from 1 to 65535"


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HealthCheckError) as raised:
            HealthServer(port)
    assert str(raised.value) == f"TORCHELASTIC_HEALTH_CHECK_PORT={port}: {os.strerror(errno.EADDRINUSE)}"
