"""Two nodes on this machine: network namespaces with a cable between them, each with a host name and addresses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.stage import PYTEST, Argument, Stage

#: Where ``ip netns exec`` finds files that take the place of those in /etc.
_ETC = Path("/etc/netns")

_MAKE = """
for node in 0 1; do
    ip netns add {name}-$node
    ip -n {name}-$node link set lo up
done
ip link add cable netns {name}-0 type veth peer name cable netns {name}-1
for node in 0 1; do
    ip -n {name}-$node addr add 10.213.77.$((node + 1))/24 dev cable
    ip -n {name}-$node link set cable up
done
"""

#: Each node knows both by name, also in the form that IPv6 gives an address, so that nothing asks a name server.
_HOSTS = """
127.0.0.1 localhost
::1 localhost
10.213.77.1 node0
10.213.77.2 node1
::ffff:10.213.77.1 node0
::ffff:10.213.77.2 node1
"""


class Network:
    def __init__(self, name: str, stage: Stage) -> None:
        self._name = name
        self._stage = stage

    def start(self, node: int, *arguments: Argument, **settings: Any) -> subprocess.Popen[bytes]:
        """Start pytest on a node; the process is pytest's own."""
        return self.start_command(node, *PYTEST, *arguments, **settings)

    def start_command(self, node: int, *command: Argument, **settings: Any) -> subprocess.Popen[bytes]:
        named = ("unshare", "-u", "sh", "-c", f'hostname node{node}; exec "$@"', "sh")
        return self._stage.start_command("ip", "netns", "exec", self._of(node), *named, *command, **settings)

    def cut(self) -> None:
        """Pull the cable out: what is sent is lost, and no connection is closed."""
        subprocess.run(["ip", "-n", self._of(1), "link", "set", "cable", "down"], check=True)

    def _of(self, node: int) -> str:
        return f"{self._name}-{node}"


@contextmanager
def two_nodes(stage: Stage) -> Iterator[Network]:
    for program in ("ip", "unshare", "hostname"):
        if shutil.which(program) is None:
            pytest.skip(f"no `{program}` is installed")
    if os.geteuid() != 0:
        pytest.skip("only root can make network namespaces")
    _remove_left_behind()
    name = f"aorta-{os.getpid()}"
    try:
        made = subprocess.run(["sh", "-ec", _MAKE.format(name=name)], capture_output=True, text=True)
        if made.returncode != 0:
            pytest.skip(f"this machine makes no network namespaces: {made.stderr.strip()}")
        for node in (0, 1):
            (_ETC / f"{name}-{node}").mkdir(parents=True)
            (_ETC / f"{name}-{node}" / "hosts").write_text(_HOSTS)
        yield Network(name, stage)
    finally:
        _remove(name)


def _remove(name: str) -> None:
    for node in (0, 1):
        subprocess.run(["ip", "netns", "del", f"{name}-{node}"], capture_output=True)
        shutil.rmtree(_ETC / f"{name}-{node}", ignore_errors=True)
    with suppress(OSError):  # of another test run
        _ETC.rmdir()


def _remove_left_behind() -> None:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for name, pid in set(re.findall(r"^(aorta-(\d+))-[01]\b", listed, re.MULTILINE)):
        if not psutil.pid_exists(int(pid)):
            _remove(name)


def elastic(**options: object) -> Iterator[str]:
    """Options of the agent, as arguments."""
    for name, value in options.items():
        yield from ("--aorta-elastic", f"{name}={value}")
