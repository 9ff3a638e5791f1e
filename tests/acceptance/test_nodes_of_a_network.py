"""Trials of two nodes of a network: each record says what was lost, and nothing waits longer than its deadline."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import kill_all
from support.stage import PYTEST, Stage

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


FAULTS = Path(__file__).parents[1] / "support" / "rank_faults.py"

ENDPOINT = "node0:29500"

pytestmark = [pytest.mark.slow, pytest.mark.long]


class Nodes:
    """Of a network, each with a pytest that has two ranks."""

    def __init__(self, name: str, stage: Stage) -> None:
        self.name = name
        self.stage = stage
        stage.copy(FAULTS)

    def start(
        self, part: str, node: int, *more: str, results: str = "results", **options: Any
    ) -> subprocess.Popen[bytes]:
        named = ("unshare", "-u", "sh", "-c", f'hostname node{node}; exec "$@"', "sh")
        given = {"nnodes": 2, "node_rank": node, "rdzv_endpoint": ENDPOINT, **options}
        elastic = [word for option in given.items() for word in ("--aorta-elastic", "{}={}".format(*option))]
        words = ("--aorta-nproc", "2", "--aorta-timeout", "30", "--aorta-results-dir", results, *more, *elastic)
        trial = ("rank_faults.py::RankFaults", "--aorta-config", f"script={part}")
        return self.stage.start_command("ip", "netns", "exec", f"{self.name}-{node}", *named, *PYTEST, *trial, *words)

    def cut(self) -> None:
        """Pull the cable out: what is sent is lost, and no connection is closed."""
        subprocess.run(["ip", "-n", f"{self.name}-1", "link", "set", "cable", "down"], check=True)

    def trial(self) -> dict[str, Any]:
        return self.stage.trial("RankFaults/trial_0.json")


@pytest.fixture
def nodes(stage: Stage) -> Iterator[Nodes]:
    for program in ("ip", "unshare", "hostname"):
        if shutil.which(program) is None:
            pytest.skip(f"no `{program}` is installed")
    if os.geteuid() != 0:
        pytest.skip("only root can make network namespaces")
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for left, pid in set(re.findall(r"^(aorta-(\d+))-[01]\b", listed, re.MULTILINE)):  # by a killed test
        if not psutil.pid_exists(int(pid)):
            _remove(left)
    name = f"aorta-{os.getpid()}"
    try:
        made = subprocess.run(["sh", "-ec", _MAKE.format(name=name)], capture_output=True, text=True)
        if made.returncode != 0:
            pytest.skip(f"this machine makes no network namespaces: {made.stderr.strip()}")
        for node in (0, 1):
            (_ETC / f"{name}-{node}").mkdir(parents=True)
            (_ETC / f"{name}-{node}" / "hosts").write_text(_HOSTS)
        yield Nodes(name, stage)
        kill_all(stage.processes())  # before the namespaces go
    finally:
        _remove(name)


def _remove(name: str) -> None:
    for node in (0, 1):
        subprocess.run(["ip", "netns", "del", f"{name}-{node}"], capture_output=True)
        shutil.rmtree(_ETC / f"{name}-{node}", ignore_errors=True)
    with suppress(OSError):  # of another test run
        _ETC.rmdir()


def finish(process: subprocess.Popen[bytes]) -> int:
    """Wait for a node; its exit status. A test that fails shows its output."""
    said, errors = process.communicate(timeout=110)
    print((said + errors).decode())
    return int(process.returncode)


def ranks_on(trial: dict[str, Any], host: str | None) -> list[int]:
    """The ranks that ran there; ``None`` for those of which that is not known."""
    return [rank["rank"] for rank in trial["ranks"] if rank["host"] == host]


def assert_not_met(trial: dict[str, Any]) -> None:
    assert (trial["exit_status"], trial["result"]["passed"]) == ("timeout", False)
    assert f"the nodes have not all met at {ENDPOINT} (node 1 did not come)" in trial["failure"]["message"]
    assert trial["ranks"] == []


def test_a_node_that_is_killed_at_the_start(nodes: Nodes) -> None:
    other = nodes.start("no_fault", 1)
    nodes.stage.wait_until((nodes.stage.results / "RankFaults" / "trial_0.node_1").exists)
    other.kill()
    assert finish(nodes.start("no_fault", 0, "--aorta-timeout", "15")) != 0
    assert_not_met(nodes.trial())


def test_a_node_that_is_lost_with_its_network_in_run(nodes: Nodes) -> None:
    """As by a loss of power: no connection is closed, and the other node waits."""
    other, first = nodes.start("second_node_sleeps", 1), nodes.start("second_node_sleeps", 0)
    nodes.stage.wait_for_file("sleeps")
    nodes.cut()
    other.kill()

    assert finish(first) == pytest.ExitCode.TESTS_FAILED
    trial = nodes.trial()
    lost = ranks_on(trial, None)
    assert (trial["exit_status"], trial["failure"]["rank"], len(lost)) == ("timeout", lost[0], 2)
    for rank in lost:
        assert f"rank {rank} is missing: never heard of" in trial["failure"]["message"]


def test_a_link_that_goes_down_in_run(nodes: Nodes) -> None:
    other, first = nodes.start("steps_on", 1), nodes.start("steps_on", 0)
    nodes.stage.wait_for_file("steps")
    nodes.cut()

    assert finish(first) == finish(other) == pytest.ExitCode.TESTS_FAILED
    trial = nodes.trial()
    assert (trial["exit_status"], trial["failure"]["rank"]) == ("timeout", None)
    assert f"node1 does not reach {ENDPOINT}, where the nodes meet: " in trial["failure"]["message"]
    assert {rank["blame"] for rank in trial["ranks"]} == {"unknown"}


def test_what_a_node_has_left_in_an_earlier_run_does_not_count(nodes: Nodes) -> None:
    limit = ("--aorta-timeout", "15")
    other, first = nodes.start("second_node_sleeps", 1, *limit), nodes.start("second_node_sleeps", 0, *limit)
    assert finish(first) == finish(other) == pytest.ExitCode.TESTS_FAILED
    assert ranks_on(nodes.trial(), "node1") == [2, 3]

    assert finish(nodes.start("second_node_sleeps", 0, *limit)) == pytest.ExitCode.TESTS_FAILED
    assert_not_met(nodes.trial())


def test_both_take_part_also_where_they_do_not_see_the_same_results_directory(nodes: Nodes) -> None:
    given: dict[str, Any] = {"rdzv_backend": "static"}
    other, first = nodes.start("no_fault", 1, results="elsewhere", **given), nodes.start("no_fault", 0, **given)
    assert finish(first) == finish(other) == pytest.ExitCode.OK
    trial = nodes.trial()
    assert (trial["exit_status"], trial["result"]["metrics"]["total"]) == ("ok", 4.0 * 4**3)
    assert len(trial["ranks"]) == 4
    nodes.stage.wait_until_alone()
