"""A link to a host: starting, talking, closing."""

from __future__ import annotations

import os
import queue
import sys
import threading
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_bench import HostBench, host_bench_at
from support.processes import PATIENCE, is_gone, wait_until

import pytest_aorta
from pytest_aorta.runtime.hosts import HostError, code_identity, package_files


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostBench]:
    with host_bench_at(tmp_path, monkeypatch) as bench:
        yield bench


# Talking.


def test_a_service_gets_its_argument_in_the_main_thread_of_another_process(bench: HostBench) -> None:
    host = bench.start("echo", {"a": [1, 2.5, None, True, "é", b"\0\xff"]})

    told = host.next()

    assert told["argument"] == {"a": [1, 2.5, None, True, "é", b"\0\xff"]}
    assert told["main_thread"] is True
    assert told["pid"] == host.link.facts["pid"] != os.getpid()
    assert str(host.link.facts["pid"]) in host.link.name
    assert host.link.facts["host"] in host.link.name


def test_messages_arrive_whole_and_in_order(bench: HostBench) -> None:
    host = bench.start("echo")
    host.next()
    sent = [{"number": number, "body": b"x" * (number * 20_000)} for number in range(50)]

    for message in sent:
        host.link.send(message)

    assert [host.next() for _ in sent] == sent


def test_several_threads_of_a_service_may_send_at_once(bench: HostBench) -> None:
    host = bench.start("burst", [20, 20, 20])

    received = [host.next() for _ in range(60)]

    assert host.next() == {"done": True}
    for thread in range(3):
        mine = [message for message in received if message["thread"] == thread]
        assert [message["number"] for message in mine] == list(range(20))
        assert all(message["body"] == bytes([thread]) * 600_000 for message in mine)


def test_what_a_service_prints_does_not_disturb_the_connection(bench: HostBench) -> None:
    host = bench.start("prints", 1)

    assert host.next()["argument"] == 1
    host.link.send({"still": "there"})
    assert host.next() == {"still": "there"}


def test_a_module_in_the_working_directory_shadows_nothing(bench: HostBench, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    (folder / "pytest_aorta").mkdir(parents=True)
    (folder / "pytest_aorta" / "__init__.py").write_text("raise RuntimeError('the wrong one')")

    assert bench.start("echo", spec=f"popen//chdir={folder}").next()["cwd"] == str(folder)


# Closing.


def test_a_closed_host_ends_in_order_and_its_last_words_are_heard(bench: HostBench) -> None:
    host = bench.start("echo")
    pid = host.next()["pid"]

    host.link.close()
    host.link.close()

    assert host.next() == {"bye": True}
    assert is_gone(pid)
    assert host.deaths == []
    with pytest.raises(HostError, match="closed"):
        host.link.send({"value": 1})


@pytest.mark.parametrize("how", ["sleep", "python"])
def test_a_service_that_does_not_listen_is_killed_when_its_grace_is_over(bench: HostBench, how: str) -> None:
    host = bench.start("stuck", how)
    pid = host.next()["pid"]

    host.link.close(grace=0.2)

    assert is_gone(pid)
    assert host.deaths == []


# The code there.


def test_another_version_of_a_file_is_named(bench: HostBench) -> None:
    identity = {**code_identity(package_files("pytest_aorta")), "pytest_aorta/plan.py": "0" * 64}
    host = bench.host("echo", identity=identity)

    with pytest.raises(HostError, match=r"other code: pytest_aorta/plan\.py differs .*; install pytest-aorta"):
        host.link.start()

    assert host.rest() == []


def test_a_file_that_the_host_lacks_is_named(bench: HostBench, tmp_path: Path) -> None:
    absent = str(tmp_path / "workload.py")
    host = bench.host("echo", identity={absent: "0" * 64})

    with pytest.raises(HostError, match=f"{absent} is missing there") as caught:
        host.link.start()

    assert host.link.facts["host"] in str(caught.value)


# Starting fails.


def fails(bench: HostBench, service: str, expected: str, **options: object) -> HostError:
    """A host that does not start, with a reason in the error, and of which no process is left."""
    host = bench.host(service, **options)  # type: ignore[arg-type]
    with pytest.raises(HostError, match=expected) as caught:
        host.link.start()
    wait_until(lambda: not bench.alive(), "nothing is left")  # grandchildren were killed, and are reaped by others
    assert host.deaths == []
    with pytest.raises(HostError, match=expected):
        host.link.send({})
    return caught.value


def test_an_interpreter_that_does_not_exist_is_named(bench: HostBench) -> None:
    fails(bench, "echo", "cannot start /no/such/python: No such file", spec="popen//python=/no/such/python")


def test_an_interpreter_without_pytest_aorta_is_named_with_the_remedy(bench: HostBench, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"

    error = fails(bench, "echo", "pytest-aorta is not installed", spec=f"popen//python={python} -I")

    assert f"{python} -m pip install pytest-aorta=={pytest_aorta.__version__}" in str(error)


def test_another_version_of_pytest_aorta_is_named(
    bench: HostBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pytest_aorta").mkdir()
    (tmp_path / "pytest_aorta" / "__init__.py").write_text("__version__ = '0.0.7'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    fails(bench, "echo", f"has pytest-aorta 0.0.7, but this is {pytest_aorta.__version__}; install the same version")


def test_another_version_of_python_is_named(bench: HostBench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(tuple[int, ...]):
        major, minor = 3, 8

    monkeypatch.setattr(sys, "version_info", Older((3, 8, 0)))  # of this side: there is one interpreter here

    fails(bench, "echo", r"is Python 3\.\d+, and this is 3\.8; name one of the same version with //python=")


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ("no_such_module:serve", "cannot start no_such_module:serve: ModuleNotFoundError"),
        ("host_services:absent", "AttributeError"),
    ],
)
def test_a_service_that_cannot_be_imported_is_told_with_its_traceback(
    bench: HostBench, service: str, expected: str
) -> None:
    error = fails(bench, service, expected)

    assert "Traceback (most recent call last)" in str(error)


def test_what_never_answers_is_killed_with_all_its_helpers(bench: HostBench) -> None:
    wrapper = "sh -c 'sleep 1000 & sleep 1000'"

    fails(bench, "echo", "not ready after 1 s, still connecting", spec=f"popen//python={wrapper}", startup_timeout=1.0)


def test_closing_ends_a_start_that_is_under_way(bench: HostBench) -> None:
    host = bench.host("echo", spec="popen//python=sh -c 'sleep 1000'")
    errors: queue.Queue[HostError] = queue.Queue()

    def start() -> None:
        try:
            host.link.start()
        except HostError as error:
            errors.put(error)

    thread = threading.Thread(target=start)
    thread.start()
    wait_until(lambda: any(process.name() == "sleep" for process in bench.alive()), "the host is being started")
    host.link.close()
    thread.join(PATIENCE)

    assert "ended with signal SIGKILL" in str(errors.get_nowait())
