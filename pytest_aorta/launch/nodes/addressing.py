"""The rank of this node, and the endpoint of its rendezvous. Without torch: pytest itself imports this."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Literal

from pytest_aorta.launch.launch_mode import LaunchModeError, own_rank, under_launcher
from pytest_aorta.launch.nodes.slurm_step import port_offset
from pytest_aorta.trials.elastic_options import ElasticOptions

#: Range of the ports for SLURM jobs.
_FIRST_PORT, _PORTS = 20000, 10000

#: Seconds that node 0 has to accept a connection.
_PATIENCE = 2.0


def is_multi_node(options: ElasticOptions) -> bool:
    """Whether more than this node may take part."""
    return options.nnodes[1] > 1


def node_rank(options: ElasticOptions, environ: Mapping[str, str] = os.environ) -> int:
    """The rank of this node: as given, else as SLURM counts the nodes of a step; 0 where there is only one."""
    if not is_multi_node(options):
        return 0
    if options.node_rank is not None:
        return options.node_rank
    return int(environ.get("SLURM_NODEID", "0"))


def meets_in_etcd(options: ElasticOptions) -> bool:
    """Whether what listens at the endpoint is etcd, and no store of torch."""
    return options.rdzv_backend in ("etcd", "etcd-v2")


def keeps_store(options: ElasticOptions) -> bool:
    """Whether this node keeps the store at which the nodes meet."""
    return node_rank(options) == 0 and not meets_in_etcd(options)


def process_rank(options: ElasticOptions, hosts: Sequence[str] = ()) -> tuple[Literal["rank", "node"], int | None]:
    """The rank, or node rank, of this pytest among those that run the same trials; ``None`` for a single one."""
    if is_multi_node(options) and not hosts:
        return "node", node_rank(options)
    return "rank", own_rank() if under_launcher() else None


def endpoint(options: ElasticOptions, environ: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Host and port of the rendezvous: as given, else the first node of the step of SLURM, and a port by its number.

    Raises:
        LaunchModeError: there is neither.
    """
    if options.rdzv_endpoint is not None:
        host, _, port = options.rdzv_endpoint.rpartition(":")
        return host, int(port)
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    offset = port_offset(environ)
    if not nodes or offset is None:
        raise LaunchModeError(
            f"nnodes={options.nnodes[0]}:{options.nnodes[1]}: the nodes have to know where they meet; run pytest with "
            "srun, or give --aorta-elastic rdzv_endpoint=HOST:PORT, a free port of node 0, on every node"
        )
    return _first_of(nodes), _FIRST_PORT + offset % _PORTS


def network_problem(options: ElasticOptions) -> str | None:
    """That this node does not reach the place where the nodes meet; ``None`` where it does, or keeps the store itself.

    Raises:
        LaunchModeError: the endpoint is unknown.
    """
    if keeps_store(options):
        return None
    host, port = endpoint(options)
    try:
        socket.create_connection((host, port), _PATIENCE).close()
    except OSError as error:
        return f"{socket.gethostname()} does not reach {host}:{port}, where the nodes meet: {error}"
    return None


def _first_of(nodes: str) -> str:
    """The first of ``node[1-3],other``."""
    if "[" not in nodes:
        return nodes.split(",")[0]
    if shutil.which("scontrol"):
        command = ["scontrol", "show", "hostnames", nodes]
        listed = subprocess.run(command, capture_output=True, text=True).stdout.split()
        if listed:
            return listed[0]
    name, _, rest = nodes.partition("[")
    return name + rest.replace("]", ",").replace("-", ",").split(",")[0]
