"""The stores of one host, and the rule behind them: no fork while a thread of a library may hold a lock."""

from __future__ import annotations

import socket

import psutil
import pytest
from support.processes import free_port, outcome_of

from pytest_aorta.launch.child.rendezvous import _is_here, _store_here


def test_names_and_addresses_of_this_host_are_known() -> None:
    assert [_is_here(host) for host in ("localhost", "127.0.0.1", socket.gethostname())] == [True, True, True]
    assert [_is_here(host) for host in ("192.0.2.1", "no-such-host.invalid")] == [False, False]


def test_a_store_of_another_host_is_left_to_torch() -> None:
    assert _store_here("192.0.2.1:29500", forks=True) == "192.0.2.1:29500"


@pytest.mark.parametrize("host", ["localhost", socket.gethostname()])
def test_a_store_is_served_at_the_port_that_was_asked_for(host: str) -> None:
    port = free_port()
    script = f"""
        from pytest_aorta.launch.child.rendezvous import _store_here, close_stores, connect

        print(_store_here("{host}:{port}", forks=True))
        connect({port}).set("key", "value")
        close_stores()
    """
    assert outcome_of(script) == f"127.0.0.1:{port}"


def test_a_store_that_is_there_already_is_not_used() -> None:
    """Another program's, or another trial's: ranks would find what it has left there."""
    script = """
        from pytest_aorta.launch.child.rendezvous import LocalStore, rendezvous
        from pytest_aorta.trials.execution import elastic_options

        store = LocalStore(forks=True)
        asked = f"localhost:{store.port}"
        try:
            rendezvous(elastic_options({"rdzv_backend": "c10d", "rdzv_endpoint": asked}), "trial")
        except OSError as error:
            print(str(error).replace(str(store.port), "PORT"))
        store.close()
    """
    assert outcome_of(script) == (
        "port PORT of this host is taken, at which rdzv_endpoint=localhost:PORT asks for the store; give a free one "
        "with --aorta-elastic rdzv_endpoint=HOST:PORT, or leave it out: each trial then has one of its own"
    )


def test_a_store_in_a_thread_serves_as_one_in_a_process_does() -> None:
    script = """
        import psutil
        from pytest_aorta.launch.child.rendezvous import LocalStore, connect

        store = LocalStore(forks=False)
        client = connect(store.port)
        client.set("key", "value")
        listens = {found.laddr.ip for found in psutil.Process().net_connections() if found.status == "LISTEN"}
        print(client.get("key").decode(), listens, psutil.Process().children())
        del client
        store.close()
        print([found for found in psutil.Process().net_connections() if found.status == "LISTEN"])
    """
    assert outcome_of(script).splitlines() == ["value {'127.0.0.1'} []", "[]"]


def test_a_store_is_served_without_a_thread_in_this_process() -> None:
    assert (
        outcome_of("""
        import os
        from pytest_aorta.launch.child.rendezvous import LocalStore, connect

        store = LocalStore(forks=True)
        threads = len(os.listdir("/proc/self/task"))
        client = connect(store.port)
        client.set("key", "value")
        print(client.get("key").decode(), len(os.listdir("/proc/self/task")) - threads)
        store.close()
    """)
        == "value 0"
    )


def test_it_listens_on_the_loopback_interface_only() -> None:
    assert outcome_of("""
        import os, psutil
        from pytest_aorta.launch.child.rendezvous import LocalStore, connect

        store = LocalStore(forks=True)
        connect(store.port)
        child, = psutil.Process().children()
        print([found.laddr.ip for found in child.net_connections() if found.status == "LISTEN"])
        store.close()
        print(psutil.Process().children())
    """).splitlines() == ["['127.0.0.1']", "[]"]


def test_it_ends_with_the_process_that_has_started_it() -> None:
    pid = outcome_of("""
        import psutil
        from pytest_aorta.launch.child.rendezvous import LocalStore, connect

        connect(LocalStore(forks=True).port)
        print(psutil.Process().children()[0].pid)
    """)
    try:
        psutil.Process(int(pid)).wait(10)
    except psutil.NoSuchProcess:
        pass


def test_no_rank_is_forked_beside_a_thread_of_a_library() -> None:
    """A store in this process has one, which may hold a lock of libc at any time."""
    text = outcome_of("""
        import threading
        import torch.distributed as dist
        from pytest_aorta.launch.child.torch_compat import refuse_native_threads

        threading.Thread(target=threading.Event().wait, daemon=True).start()
        refuse_native_threads()  # one of Python's own is no danger
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        try:
            refuse_native_threads()
        except RuntimeError as error:
            print(error)
    """)
    assert "thread(s) that a library has started" in text
    assert "start_method=spawn" in text
