"""The nodes of a trial: which one this is, where they meet, and the store that node 0 keeps there. Imports no torch."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

from pytest_aorta.launch.launch_mode import LaunchModeError, own_rank, under_launcher
from pytest_aorta.trials.execution import ElasticOptions

#: Numeric, so that no name has to be looked up.
LOOPBACK = "127.0.0.1"

#: Range of the ports for SLURM jobs.
_FIRST_PORT, _PORTS = 20000, 10000

#: Seconds that node 0 has to accept a connection.
_PATIENCE = 2.0

#: Seconds that a process takes to end after it has closed its store.
_LAST = 1.0


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


def process_rank(options: ElasticOptions, hosts: Sequence[str] = ()) -> tuple[Literal["rank", "node"], int | None]:
    """The rank, or node rank, of this pytest among those that run the same trials; ``None`` for a single one."""
    if is_multi_node(options) and not hosts:
        return "node", node_rank(options)
    return "rank", own_rank() if under_launcher() else None


def endpoint(options: ElasticOptions, environ: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Host and port of the rendezvous: as given, else the first node of the step of SLURM, and a port by its number.

    Raises ``LaunchModeError`` where there is neither.
    """
    if options.rdzv_endpoint is not None:
        host, _, port = options.rdzv_endpoint.rpartition(":")
        return host, int(port)
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "0")
    if not nodes or not job.isdecimal() or not step.isdecimal():
        raise LaunchModeError(
            f"nnodes={options.nnodes[0]}:{options.nnodes[1]}: the nodes have to know where they meet; run pytest with "
            "srun, or give --aorta-elastic rdzv_endpoint=HOST:PORT, a free port of node 0, on every node"
        )
    # Steps that share a node need different ports, and jobs that run at the same time have close numbers.
    return _first_of(nodes), _FIRST_PORT + (int(job) + 101 * int(step)) % _PORTS


def _first_of(nodes: str) -> str:
    if "[" in nodes and shutil.which("scontrol"):
        command = ["scontrol", "show", "hostnames", nodes]
        if listed := subprocess.run(command, capture_output=True, text=True).stdout.split():
            return listed[0]
    name, _, rest = nodes.partition("[")
    return re.split(r"[],-]", name + rest)[0] if rest else nodes.split(",")[0]


def network_problem(options: ElasticOptions) -> str | None:
    """That this node does not reach node 0, where the nodes meet; ``None`` where it does, or is node 0."""
    if node_rank(options) == 0:
        return None
    host, port = endpoint(options)
    try:
        socket.create_connection((host, port), _PATIENCE).close()
    except OSError as error:
        return f"{socket.gethostname()} does not reach {host}:{port}, where the nodes meet: {error}"
    return None


def check_step(options: ElasticOptions, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse trials of several nodes in a job of SLURM in which these would never meet.

    Where the user says which node this is, or there is no job, nothing is refused.
    """
    job = environ.get("SLURM_JOB_ID")
    least, most = options.nnodes
    if most == 1 or options.node_rank is not None or job is None:
        return
    remedy = f"srun -N {least} --ntasks-per-node 1 pytest ..., or give --aorta-elastic node_rank=NUMBER"
    wanted = f"--aorta-elastic nnodes={least}" if least == most else f"--aorta-elastic nnodes={least}:{most}"
    if "SLURM_STEP_ID" not in environ:
        raise LaunchModeError(
            f"{wanted}: pytest was started by the script of SLURM job {job}, on one node only; start it with {remedy}"
        )
    nodes, tasks = (environ.get(f"SLURM_STEP_NUM_{name}", "") for name in ("NODES", "TASKS"))
    if not nodes.isdecimal() or not tasks.isdecimal():  # of another launcher, with variables of its own
        return
    if not least <= int(nodes) <= most:
        raise LaunchModeError(f"{wanted}: {_step(environ)} has SLURM_STEP_NUM_NODES={nodes}; use {remedy}")
    if int(tasks) != int(nodes):
        raise LaunchModeError(
            f"{wanted}: {_step(environ)} has SLURM_STEP_NUM_TASKS={tasks} on {nodes} nodes, but one pytest "
            f"starts all ranks of its node (--aorta-nproc); use {remedy}"
        )


def check_tasks(results: Path, options: ElasticOptions, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse tasks of one step that would all run the same trials into one results directory.

    A directory that was given with the number of the task is taken for its own. In a step with a terminal
    (``srun --pty``), pytest was perhaps typed there, which the first task alone has.
    """
    tasks, task = environ.get("SLURM_STEP_NUM_TASKS", ""), environ.get("SLURM_PROCID", "")
    if "SLURM_STEP_ID" not in environ or not tasks.isdecimal() or int(tasks) < 2 or under_launcher(environ):
        return
    if is_multi_node(options):  # ``check_step`` looks at these tasks
        return
    if task in re.findall(r"\d+", str(results)) or (task == "0" and "SLURM_PTY_PORT" in environ):
        return
    raise LaunchModeError(
        f"{_step(environ)} has SLURM_STEP_NUM_TASKS={tasks}, and each of these pytest would run all trials into "
        f"{results}; use srun -N 1 -n 1 pytest ..., which starts the ranks of a trial itself (--aorta-nproc), or give "
        "each task a results directory of its own: --aorta-results-dir results-$SLURM_PROCID, in a shell of the task"
    )


def _step(environ: Mapping[str, str]) -> str:
    return f"step {environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']} of SLURM"


class NodeStore:
    """The process with the store at which the nodes of all trials of a run meet; it ends with this one.

    Node 0 keeps it for as long as its pytest runs, so that the nodes of a trial can still read from it when that trial
    is over on node 0, and the next trial needs no other port. Raises ``LaunchModeError`` where the port is taken: the
    nodes would meet at another program's.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            listening = listen(host, port)
        except OSError as error:
            raise LaunchModeError(
                f"the nodes cannot meet at port {port} of this host: {error.strerror}; give a free port of node 0 with "
                "--aorta-elastic rdzv_endpoint=HOST:PORT, on every node"
            ) from None
        with listening:
            descriptor = listening.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest_aorta.launch.child.rendezvous", str(descriptor)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[descriptor],
                start_new_session=True,
                text=True,
            )
        self._lock = threading.Lock()

    def nodes_of(self, trial_id: str, nodes: int) -> dict[int, str] | None:
        """Those of the ``nodes`` that have come to a trial, with their host names; ``None`` if that is not known."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps([trial_id, nodes]) + "\n")
            self._process.stdin.flush()
            found = cast(dict[str, str], json.loads(self._process.stdout.readline()))
            return {int(node): host for node, host in found.items()}
        return None

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def listen(host: str, port: int) -> socket.socket:
    """Listen on the interface of ``host``, where other hosts mean the same by it; else on all.

    Its own host may know a name by a loopback address (Debian's ``127.0.1.1``); an address that is not one of this host
    may be translated to one. Raises ``OSError`` where the port is taken.
    """
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(host)
        if not address.startswith("127.") or host in ("localhost", address):
            return socket.create_server((address, port), backlog=socket.SOMAXCONN)
    if not socket.has_dualstack_ipv6():
        return socket.create_server(("", port), backlog=socket.SOMAXCONN)
    return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=socket.SOMAXCONN)


def wait_for_end(host: str, port: int, patience: float) -> None:
    """Block until a store has gone, or cannot be reached; at most ``patience`` seconds, and a little longer.

    It goes when the pytest of node 0 ends, which has reported everything then.
    """
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1) as connection:
        connection.settimeout(patience)
        connection.recv(1)
        time.sleep(_LAST)


def free_port() -> int:
    """A port that no process of this host listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
