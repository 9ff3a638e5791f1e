"""The store of one host's ranks, and the rule that it exists for: no fork while a library's thread may hold a lock."""

from __future__ import annotations

import psutil
from support.processes import outcome_of


def test_a_store_is_served_without_a_thread_in_this_process() -> None:
    assert (
        outcome_of("""
        import os
        from pytest_aorta.launch.child.local_store import LocalStore, connect

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
        from pytest_aorta.launch.child.local_store import LocalStore, connect

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
        from pytest_aorta.launch.child.local_store import LocalStore, connect

        connect(LocalStore(forks=True).port)
        print(psutil.Process().children()[0].pid)
    """)
    try:
        psutil.Process(int(pid)).wait(10)
    except psutil.NoSuchProcess:
        pass


def test_a_port_that_is_taken_is_an_error() -> None:
    assert (
        outcome_of("""
        import socket
        from pytest_aorta.launch.child.local_store import LocalStore

        taken = socket.create_server(("127.0.0.1", 0))
        try:
            LocalStore(taken.getsockname()[1], forks=True)
        except OSError as error:
            print(type(error).__name__)
    """)
        == "OSError"
    )


def test_no_rank_is_forked_beside_a_thread_of_a_library() -> None:
    """A store in this process has one, which may hold a lock of libc at any time."""
    text = outcome_of("""
        import threading
        import torch.distributed as dist
        from pytest_aorta.launch.child.torch_compat.elastic_agent import refuse_native_threads

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
