"""A link to a host, over pipes and over a real ssh server on this machine: starting, talking, closing, dying."""

from __future__ import annotations

import contextlib
import getpass
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import MARK, PATIENCE, free_port, is_gone, kill_all, marked, wait_until

import pytest_aorta
from pytest_aorta.runtime.hosts import HostConnection, HostError, code_identity, package_files


class Host:
    """A link, its messages and its deaths."""

    def __init__(self, spec: str, service: str, argument: Any, **options: Any) -> None:
        self.messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self.deaths: list[HostError] = []
        self.died = threading.Event()
        given: dict[str, Any] = {"identity": {}, "on_message": self.messages.put, **options}
        name = service if ":" in service else f"host_services:{service}"
        self.link = HostConnection(spec, name, argument, on_death=self._on_death, **given)

    def _on_death(self, error: HostError) -> None:
        self.deaths.append(error)
        self.died.set()

    def next(self) -> dict[str, Any]:
        return self.messages.get(timeout=PATIENCE)

    def death(self) -> str:
        """The end, which has to come, once; nothing can be sent any more."""
        assert self.died.wait(PATIENCE)
        with pytest.raises(HostError) as refused:
            self.link.send({})
        assert [str(error) for error in self.deaths] == [str(refused.value)]
        return str(refused.value)


class HostBench:
    """Starts hosts; their processes carry a mark."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.hosts: list[Host] = []

    def host(self, service: str, argument: Any = None, *, spec: str = "popen", **options: Any) -> Host:
        """A host that is not started."""
        host = Host(spec, service, argument, **options)
        self.hosts.append(host)
        return host

    def start(self, service: str, argument: Any = None, *, spec: str = "popen", **options: Any) -> Host:
        host = self.host(service, argument, spec=spec, **options)
        host.link.start()
        return host

    def alive(self) -> list[psutil.Process]:
        """Processes that were started from here, directly or not, and that still run."""
        return marked(self.mark)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostBench]:
    """Leaves nothing behind; that it does is checked."""
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    bench = HostBench(str(tmp_path))
    try:
        yield bench
    finally:
        for host in bench.hosts:
            host.link.close()
        left = bench.alive()
        kill_all(left)
    assert left == []


# Talking and closing


def test_a_service_talks_in_the_main_thread_of_another_process_until_it_is_closed(
    bench: HostBench, tmp_path: Path
) -> None:
    folder = tmp_path / "there"
    (folder / "pytest_aorta").mkdir(parents=True)  # a module in the working directory shadows nothing
    (folder / "pytest_aorta" / "__init__.py").write_text("raise RuntimeError('the wrong one')")
    host = bench.start("prints", {"a": [1, 2.5, None, True, "é", b"\0\xff"]}, spec=f"popen//chdir={folder}")
    told = host.next()

    assert told == {
        "argument": {"a": [1, 2.5, None, True, "é", b"\0\xff"]},
        "pid": host.link.facts["pid"],
        "main_thread": True,
        "cwd": str(folder),
    }
    assert told["pid"] != os.getpid()
    assert f"{host.link.facts['host']}, pid {told['pid']}" in host.link.name
    sent = [{"number": number, "body": b"x" * (number * 20_000)} for number in range(50)]
    for message in sent:
        host.link.send(message)
    assert [host.next() for _ in sent] == sent

    host.link.close()
    host.link.close()
    assert host.next() == {"bye": True}
    assert is_gone(told["pid"])
    assert host.deaths == []
    with pytest.raises(HostError, match="closed"):
        host.link.send({"value": 1})


def test_several_threads_of_a_service_may_send_at_once(bench: HostBench) -> None:
    host = bench.start("burst", [20, 20, 20])

    received = [host.next() for _ in range(60)]

    assert host.next() == {"done": True}
    for thread in range(3):
        mine = [message for message in received if message["thread"] == thread]
        assert [message["number"] for message in mine] == list(range(20))
        assert all(message["body"] == bytes([thread]) * 600_000 for message in mine)


def test_a_service_that_does_not_listen_is_killed_when_its_grace_is_over(bench: HostBench) -> None:
    host = bench.start("stuck")
    pid = host.next()["pid"]

    host.link.close(grace=0.2)

    assert is_gone(pid)
    assert host.deaths == []


# Starting fails


def fails(bench: HostBench, service: str, expected: str, **options: Any) -> str:
    """A host that does not start, with a reason in the error, and of which no process is left."""
    host = bench.host(service, **options)
    with pytest.raises(HostError, match=expected) as caught:
        host.link.start()
    wait_until(lambda: not bench.alive(), "nothing is left")  # grandchildren were killed, and are reaped by others
    assert host.deaths == []
    assert host.messages.empty()
    with pytest.raises(HostError, match=expected):
        host.link.send({})
    return str(caught.value)


def test_other_code_there_is_named(bench: HostBench, tmp_path: Path) -> None:
    identity = {**code_identity(package_files("pytest_aorta")), "pytest_aorta/plan.py": "0" * 64}
    fails(bench, "echo", r"other code: pytest_aorta/plan\.py differs .*; install pytest-aorta", identity=identity)
    absent = str(tmp_path / "workload.py")
    fails(bench, "echo", f", pid .*{absent} is missing there", identity={absent: "0" * 64})


@pytest.mark.parametrize(
    ("service", "expected", "options"),
    [
        (
            "echo",
            "cannot start /no/such/python: No such file",
            {"spec": "popen//python=/no/such/python"},
        ),
        (
            "no_such_module:serve",
            "(?s)cannot start no_such_module:serve: ModuleNotFoundError.*Traceback .most recent call last",
            {},
        ),
        ("absent", "(?s)AttributeError.*Traceback .most recent call last", {}),
        (
            "echo",  # killed with all its helpers
            "not ready after 1 s, still connecting",
            {"spec": "popen//python=sh -c 'sleep 1000 & sleep 1000'", "startup_timeout": 1.0},
        ),
    ],
    ids=["no interpreter", "no module", "no function", "no answer"],
)
def test_a_host_that_cannot_start_says_why(
    bench: HostBench, service: str, expected: str, options: dict[str, Any]
) -> None:
    fails(bench, service, expected, **options)


def test_an_interpreter_without_pytest_aorta_or_with_another_one_is_named_with_the_remedy(
    bench: HostBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    ours = pytest_aorta.__version__
    error = fails(bench, "echo", "pytest-aorta is not installed", spec=f"popen//python={python} -I")
    assert f"{python} -m pip install pytest-aorta=={ours}" in error

    (tmp_path / "pytest_aorta").mkdir()
    (tmp_path / "pytest_aorta" / "__init__.py").write_text("__version__ = '0.0.7'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    fails(bench, "echo", f"has pytest-aorta 0.0.7, but this is {ours}; install the same version")

    class Older(tuple[int, ...]):
        major, minor = 3, 8

    monkeypatch.setattr(sys, "version_info", Older((3, 8, 0)))  # of this side: there is one interpreter here
    fails(bench, "echo", r"is Python 3\.\d+, and this is 3\.8; name one of the same version with //python=")


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


# The host dies


def test_a_host_that_is_killed_is_told_once(bench: HostBench) -> None:
    host = bench.start("echo")
    pid = host.next()["pid"]

    os.kill(pid, signal.SIGKILL)

    assert f"pid {pid}" in host.death()
    assert "its process ended with signal SIGKILL" in host.death()
    host.link.close()
    assert len(host.deaths) == 1


@pytest.mark.parametrize(
    ("service", "argument", "expected"),
    [
        ("exits", 7, ("exit code 7", "what I had to say")),
        (
            "raises",
            "key",
            ("host_services:raises failed: LookupError: no key here", "Traceback (most"),
        ),
        ("returns", 500, ("returned without having been asked to",)),
    ],
)
def test_a_service_that_ends_by_itself_is_told_as_it_was(
    bench: HostBench, service: str, argument: Any, expected: tuple[str, ...]
) -> None:
    host = bench.start(service, argument)
    with contextlib.suppress(HostError):  # one has returned already
        host.link.send({})

    assert all(part in host.death() for part in expected)
    assert bench.alive() == []
    if service == "returns":  # after all its messages
        assert [host.next() for _ in range(host.messages.qsize())] == [{"number": number} for number in range(500)]


def test_a_host_that_is_frozen_is_killed(bench: HostBench) -> None:
    host = bench.start("echo", silence=2.0)
    pid = host.next()["pid"]

    os.kill(pid, signal.SIGSTOP)

    assert "no sign of life for 2 s" in host.death()
    assert is_gone(pid)


def test_a_death_is_noticed_although_a_child_still_holds_the_connection(bench: HostBench) -> None:
    host = bench.start("with_heir")
    told = host.next()
    try:
        os.kill(told["pid"], signal.SIGKILL)
        assert "SIGKILL" in host.death()
        assert not is_gone(told["heir"])  # else this has shown nothing
    finally:
        os.kill(told["heir"], signal.SIGKILL)
    wait_until(lambda: is_gone(told["heir"]), "the heir is gone")


def test_a_message_that_cannot_be_handled_ends_the_link(bench: HostBench) -> None:
    def on_message(_: dict[str, object]) -> None:
        raise KeyError("unexpected")

    host = bench.start("echo", on_message=on_message)

    assert "could not be handled: KeyError('unexpected')" in host.death()
    assert isinstance(host.deaths[0].__cause__, KeyError)
    assert bench.alive() == []


# The parent dies

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
def test_a_host_does_not_outlive_its_parent_and_ends_in_order_if_it_listens(tmp_path: Path) -> None:
    with parent_of("stuck", "") as (parent, host):
        parent.kill()
        wait_until(lambda: is_gone(host), "the host is gone")
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


# ssh

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.fixture
def ssh(tmp_path: Path, bench: HostBench) -> Iterator[str]:
    """A specification that leads over an ssh server of our own to this very machine."""
    if SSHD is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh server is installed (Debian: openssh-server)")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd does not start as root without it
    port, folder = free_port(), tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "authorized_keys").write_text((folder / "user_key.pub").read_text())
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\nStrictModes no\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f'PermitRootLogin yes\nSetEnv {MARK}="{bench.mark}" PYTHONPATH="{os.environ["PYTHONPATH"]}"\n'
    )
    (folder / "config").write_text(
        f"Host triage-host\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n  StrictHostKeyChecking accept-new\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n"
    )
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
    try:
        wait_until(lambda: server.poll() is not None or answers(port), "the ssh server answers")
        if server.returncode is not None:
            pytest.skip(f"the ssh server does not start: {(folder / 'log').read_text()}")
        yield f"ssh=triage-host//ssh_config={folder}/config//python={sys.executable}"
    finally:
        for host in bench.hosts:
            host.link.close()
        server.terminate()
        server.wait(PATIENCE)


def test_a_host_is_reached_over_ssh(bench: HostBench, ssh: str) -> None:
    identity = code_identity(package_files("pytest_aorta"))
    host = bench.start("echo", "argument", spec=ssh, identity=identity)
    told = host.next()

    host.link.send({"body": b"x" * 3_000_000})

    assert (told["argument"], told["main_thread"], told["pid"]) == ("argument", True, host.link.facts["pid"])
    assert host.next() == {"body": b"x" * 3_000_000}
    host.link.close()
    assert host.next() == {"bye": True}
    wait_until(lambda: is_gone(told["pid"]), "the host is gone")


def test_the_end_of_a_host_or_of_its_connection_over_ssh_is_told(bench: HostBench, ssh: str) -> None:
    host = bench.start("echo", spec=ssh)
    os.kill(host.next()["pid"], signal.SIGKILL)
    assert "its connection ended with" in host.death()

    host = bench.start("stuck", spec=ssh)
    pid = host.next()["pid"]
    next(process for process in bench.alive() if process.name() == "ssh").kill()
    assert "SIGKILL" in host.death()
    wait_until(lambda: is_gone(pid), "the host is gone")


def test_an_ssh_login_that_is_refused_is_told_in_the_words_of_ssh(bench: HostBench, ssh: str, tmp_path: Path) -> None:
    (tmp_path / "ssh" / "authorized_keys").write_text("")
    with pytest.raises(HostError, match=r"(?s)does `ssh triage-host .* answer without asking.*Permission denied"):
        bench.start("echo", spec=ssh)
