"""The stores of one host, and the rule behind them: no fork while a thread of a library may hold a lock."""

from __future__ import annotations

import pytest
from support.processes import outcome_of, wait_until_gone

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("forks", [True, False])
def test_an_agent_that_forks_has_a_store_without_a_thread_and_another_one_serves_it_itself(forks: bool) -> None:
    script = f"""
import psutil
from pytest_aorta.launch.child.rendezvous import close_stores, connect, open_store

def listens(process):
    return [found.laddr.ip for found in process.net_connections() if found.status == "LISTEN"]

here = psutil.Process()
port = open_store(forks={forks})
threads = here.num_threads()
client = connect(port)
client.set("key", "value")
print(client.get("key").decode(), here.num_threads() - threads, listens(here), *map(listens, here.children()))
del client
close_stores()
print(listens(here), here.children())
"""
    ended = "[] []"
    assert outcome_of(script).splitlines() == ["value 0 [] ['127.0.0.1']" if forks else "value 0 ['127.0.0.1']", ended]


def test_a_store_ends_with_the_process_that_has_started_it() -> None:
    """Else a trial whose agent was killed has left a process behind."""
    pid = outcome_of(
        """
        import psutil
        from pytest_aorta.launch.child.rendezvous import connect, open_store
        connect(open_store(forks=True))
        print(psutil.Process().children()[0].pid)
        """
    )
    wait_until_gone([int(pid)])
