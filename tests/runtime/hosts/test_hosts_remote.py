"""The same over a real ssh server and over execnet's socket server, both on this machine."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_bench import HostBench, host_bench_at
from support.processes import MARK, PATIENCE, is_gone, wait_until

from pytest_aorta.runtime.hosts import HostError, code_identity, package_files

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostBench]:
    with host_bench_at(tmp_path, monkeypatch) as bench:
        yield bench


# ssh.


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


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


def test_the_death_of_a_host_behind_ssh_is_told(bench: HostBench, ssh: str) -> None:
    host = bench.start("echo", spec=ssh)

    os.kill(host.next()["pid"], signal.SIGKILL)

    assert "its connection ended with" in str(host.death())


def test_the_end_of_an_ssh_connection_ends_the_host(bench: HostBench, ssh: str) -> None:
    host = bench.start("stuck", "python", spec=ssh)
    pid = host.next()["pid"]
    client = next(process for process in bench.alive() if process.name() == "ssh")

    client.kill()

    assert "SIGKILL" in str(host.death())
    wait_until(lambda: is_gone(pid), "the host is gone")


def test_an_ssh_login_that_is_refused_is_told_in_the_words_of_ssh(bench: HostBench, ssh: str, tmp_path: Path) -> None:
    (tmp_path / "ssh" / "authorized_keys").write_text("")
    host = bench.host("echo", spec=ssh)

    with pytest.raises(HostError, match=r"(?s)does `ssh triage-host .* answer without asking.*Permission denied"):
        host.link.start()
