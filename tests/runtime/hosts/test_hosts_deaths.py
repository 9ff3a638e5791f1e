"""How hosts die, and what remains of them; how parents die, and what remains of their hosts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_bench import HostBench, host_bench_at
from support.processes import is_gone, wait_until

from pytest_aorta.runtime.hosts import HostError


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostBench]:
    with host_bench_at(tmp_path, monkeypatch) as bench:
        yield bench


# The host.


def test_a_host_that_is_killed_is_told_once_and_cannot_be_sent_to(bench: HostBench) -> None:
    host = bench.start("echo")
    pid = host.next()["pid"]

    os.kill(pid, signal.SIGKILL)

    assert "its process ended with signal SIGKILL" in str(host.death())
    assert str(pid) in str(host.death())
    with pytest.raises(HostError, match="SIGKILL"):
        host.link.send({"value": 1})
    host.link.close()
    assert len(host.deaths) == 1


def test_a_host_that_ends_by_itself_is_told_with_exit_code_and_output(bench: HostBench) -> None:
    host = bench.start("exits", 7)

    host.link.send({})

    assert "exit code 7" in str(host.death())
    assert "what I had to say" in str(host.death())


def test_a_service_that_raises_is_told_with_its_traceback(bench: HostBench) -> None:
    host = bench.start("raises", "key")

    host.link.send({})

    assert "host_services:raises failed: LookupError: no key here" in str(host.death())
    assert "Traceback (most recent call last)" in str(host.death())
    assert bench.alive() == []


def test_a_service_that_returns_unasked_is_told_after_all_its_messages(bench: HostBench) -> None:
    host = bench.start("returns", 500)

    assert "returned without having been asked to" in str(host.death())
    assert host.rest() == [{"number": number} for number in range(500)]
    assert bench.alive() == []


def test_a_host_that_is_frozen_is_killed(bench: HostBench) -> None:
    host = bench.start("echo", silence=2.0)
    pid = host.next()["pid"]

    os.kill(pid, signal.SIGSTOP)

    assert "no sign of life for 2 s" in str(host.death())
    assert is_gone(pid)
    with pytest.raises(HostError, match="no sign of life"):
        host.link.send({})


def test_a_death_is_noticed_although_a_child_still_holds_the_connection(bench: HostBench) -> None:
    host = bench.start("with_heir")
    told = host.next()
    try:
        os.kill(told["pid"], signal.SIGKILL)
        assert "SIGKILL" in str(host.death())
        assert not is_gone(told["heir"])  # else this has shown nothing
    finally:
        os.kill(told["heir"], signal.SIGKILL)
    wait_until(lambda: is_gone(told["heir"]), "the heir is gone")


def test_a_message_that_cannot_be_handled_ends_the_link(bench: HostBench) -> None:
    def on_message(_: dict[str, object]) -> None:
        raise KeyError("unexpected")

    host = bench.start("echo", on_message=on_message)

    assert "could not be handled: KeyError('unexpected')" in str(host.death())
    assert isinstance(host.death().__cause__, KeyError)
    assert bench.alive() == []


# The parent.

PARENT = """
    import signal, sys, time
    from pytest_aorta.runtime.hosts import HostConnection

    def on_message(message):
        print("pid", message.get("pid"), flush=True) if "pid" in message else print(message, flush=True)

    def on_death(error):
        print("died", str(error).replace("\\n", " "), flush=True)

    signal.signal(signal.SIGINT, lambda *_: link.send({"interrupted": True}))
    link = HostConnection(
        "popen", sys.argv[1], sys.argv[2], identity={}, on_message=on_message, on_death=on_death, silence=3.0
    )
    link.start()
    while True:
        time.sleep(0.05)
"""


@contextlib.contextmanager
def parent_of(service: str, argument: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with a host, and the host's pid. It leads a process group, as a command typed in a terminal does."""
    command = [sys.executable, "-c", textwrap.dedent(PARENT), f"host_services:{service}", argument]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        try:
            assert parent.stdout is not None
            host = int(parent.stdout.readline().split()[1])
            yield parent, host
        finally:
            parent.kill()
        wait_until(lambda: is_gone(host), "the host is gone")


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("how", ["sleep", "python"])
def test_a_host_does_not_outlive_its_parent_whatever_it_is_stuck_in(how: str) -> None:
    with parent_of("stuck", how) as (parent, host):
        parent.kill()

        wait_until(lambda: is_gone(host), "the host is gone")


@pytest.mark.usefixtures("bench")
def test_a_service_that_listens_ends_in_order_when_its_parent_is_killed(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with parent_of("waits", str(trace)) as (parent, _):
        parent.kill()
    assert trace.read_text() == "ended in order"


@pytest.mark.usefixtures("bench")
def test_ctrl_c_reaches_the_parent_alone() -> None:
    with parent_of("echo", "x") as (parent, host):
        os.killpg(parent.pid, signal.SIGINT)

        assert parent.stdout is not None
        assert parent.stdout.readline().strip() == "{'interrupted': True}"
        assert not is_gone(host)
