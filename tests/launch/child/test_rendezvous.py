"""The stores of one host, and the rule behind them: no fork while a thread of a library may hold a lock."""

from __future__ import annotations

import contextlib

import psutil
import pytest
from support.processes import outcome_of

pytestmark = pytest.mark.slow

LOOKS = """
import os, psutil
from pytest_aorta.launch.child.rendezvous import close_stores, connect, open_store

def listens(process):
    return [found.laddr.ip for found in process.net_connections() if found.status == "LISTEN"]

here = psutil.Process()
"""


def test_a_port_that_is_taken_is_refused() -> None:
    """Another program's, or another trial's: ranks would find what it has left there."""
    script = """
        import socket
        from pytest_aorta.launch.child.rendezvous import rendezvous
        from pytest_aorta.trials.execution import elastic_options

        other = socket.create_server(("127.0.0.1", 0))
        port = other.getsockname()[1]
        options = elastic_options({"rdzv_backend": "c10d", "rdzv_endpoint": f"localhost:{port}"})
        try:
            rendezvous(options, "trial").next_rendezvous()
        except OSError as error:
            print(str(error).replace(str(port), "PORT"))
    """
    assert outcome_of(script) == (
        "port PORT of this host is taken, at which rdzv_endpoint=localhost:PORT asks for the store; give a free one "
        "with --aorta-elastic rdzv_endpoint=HOST:PORT, or leave it out: each trial then has one of its own"
    )


def test_an_agent_that_does_not_fork_serves_its_store_itself() -> None:
    script = f"""{LOOKS}
client = connect(open_store(forks=False))
client.set("key", "value")
print(client.get("key").decode(), listens(here), here.children())
del client
close_stores()
print(listens(here))
"""
    assert outcome_of(script).splitlines() == ["value ['127.0.0.1'] []", "[]"]


def test_an_agent_that_forks_has_a_store_without_a_thread() -> None:
    script = f"""{LOOKS}
port = open_store(forks=True)
threads = here.num_threads()
client = connect(port)
client.set("key", "value")
print(client.get("key").decode(), here.num_threads() - threads, *map(listens, here.children()))
close_stores()
print(here.children())
"""
    assert outcome_of(script).splitlines() == ["value 0 ['127.0.0.1']", "[]"]


def test_a_store_ends_with_the_process_that_has_started_it() -> None:
    pid = outcome_of(f"{LOOKS}\nconnect(open_store(forks=True))\nprint(here.children()[0].pid)")
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid)).wait(10)
