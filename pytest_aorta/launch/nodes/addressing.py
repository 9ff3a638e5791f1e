"""Which node of a trial this one is, and where its nodes meet. No torch here: pytest itself asks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Literal

from pytest_aorta.launch.launch_mode import LaunchModeError, own_rank, under_launcher
from pytest_aorta.trials.elastic_options import ElasticOptions

#: Ports of rendezvous that SLURM jobs get by their number.
_FIRST_PORT, _PORTS = 20000, 10000


def has_several(options: ElasticOptions) -> bool:
    """Whether more than this node may take part."""
    return options.nnodes[1] > 1


def node_rank(options: ElasticOptions, environ: Mapping[str, str] = os.environ) -> int:
    """Of this node: as given, else as SLURM counts the nodes of a step; 0 where there is only one."""
    if not has_several(options):
        return 0
    if options.node_rank is not None:
        return options.node_rank
    return int(environ.get("SLURM_NODEID", "0"))


def store_port(options: ElasticOptions) -> int | None:
    """Where this node keeps the store at which the nodes of its trials meet; ``None`` unless it is node 0.

    Raises:
        LaunchModeError: nobody has said where that is.
    """
    _, port = endpoint(options)
    return port if node_rank(options) == 0 else None


def part(options: ElasticOptions, hosts: Sequence[str] = ()) -> tuple[Literal["rank", "node"], int | None]:
    """Which of several pytest processes this is that run the same trials; ``None`` when there is only one."""
    if has_several(options) and not hosts:
        return "node", node_rank(options)
    return "rank", own_rank() if under_launcher() else None


def endpoint(options: ElasticOptions, environ: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Host and port where the nodes meet: as given, else on the first node of the SLURM job, at a port of its own.

    Raises:
        LaunchModeError: neither is there.
    """
    if options.rdzv_endpoint is not None:
        host, _, port = options.rdzv_endpoint.rpartition(":")
        return host, int(port)
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    job = environ.get("SLURM_JOB_ID", "")
    if not nodes or not job.isdecimal():
        raise LaunchModeError(
            f"nnodes={options.nnodes[0]}:{options.nnodes[1]}: the nodes have to know where they meet; run pytest with "
            "srun, or give --aorta-elastic rdzv_endpoint=HOST:PORT, a free port of node 0, on every node"
        )
    return _first_of(nodes), _FIRST_PORT + int(job) % _PORTS


def _first_of(nodes: str) -> str:
    """The first of ``node[1-3],other``."""
    if shutil.which("scontrol"):
        command = ["scontrol", "show", "hostnames", nodes]
        listed = subprocess.run(command, capture_output=True, text=True).stdout.split()
        if listed:
            return listed[0]
    name, bracket, rest = nodes.partition("[")
    return name + rest.replace("]", ",").replace("-", ",").split(",")[0] if bracket else nodes.split(",")[0]
