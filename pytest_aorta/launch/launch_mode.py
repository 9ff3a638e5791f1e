"""How the ranks of a workload are launched, on one node or several, and the rules for it. Imports no torch."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from typing_extensions import NotRequired

from pytest_aorta.common import RequestError
from pytest_aorta.trials.command_line import COMMAND_TARGET
from pytest_aorta.trials.execution import ElasticOptions
from pytest_aorta.trials.spec import TrialSpec

#: ``launch_mode`` of a script that runs instead of a workload.
SCRIPT = "script"

#: ``target`` of such a workload; its options name the script and how to start it.
SCRIPT_TARGET = "pytest_aorta.launch.child.elastic:run_script"

#: ``target`` of a command whose ranks torchrun starts.
COMMAND_RANKS_TARGET = "pytest_aorta.launch.child.elastic:run_command_ranks"

#: ``launcher`` of commands that start exactly as they were typed.
AS_TYPED = "as-typed"

#: What the summary says that trials share with ``--aorta-isolation fork``.
FORKS = "what a process draws once (hash seed, addresses, imports) is the same in all trials of a cell"

#: Numeric, so that no name has to be looked up.
LOOPBACK = "127.0.0.1"

#: Range of the ports for SLURM jobs.
_FIRST_PORT, _PORTS = 20000, 10000

#: Seconds to wait until node 0 accepts a connection.
_PATIENCE = 2.0

#: Seconds that a process may take to end after it has closed its store.
_LAST = 1.0

Mode = Literal["single", "elastic", "torchrun", "external"]


class LaunchModeError(RequestError):
    """A workload was launched in a way that it does not support."""


class EngineUnusable(RequestError):
    """No trial can run: a host cannot be reached, or runs other code."""


@dataclass(frozen=True)
class LaunchPlan:
    """How to start the processes of a trial: ``nproc`` ranks on this host."""

    mode: Mode
    nproc: int = 1


def is_command(target: str) -> bool:
    """Whether a trial runs a command."""
    return target in (COMMAND_TARGET, COMMAND_RANKS_TARGET)


def world_size(environ: Mapping[str, str] = os.environ) -> int:
    """``WORLD_SIZE``, 1 when unset.

    Raises:
        LaunchModeError: it is not a positive integer.
    """
    text = environ.get("WORLD_SIZE", "1")
    try:
        size = int(text)
    except ValueError:
        size = 0
    if size < 1:
        raise LaunchModeError(f"WORLD_SIZE={text!r} in the environment is not a positive integer")
    return size


def own_rank(environ: Mapping[str, str] = os.environ) -> int:
    """``RANK``; 0 when unset or malformed."""
    try:
        return int(environ.get("RANK", "0"))
    except ValueError:
        return 0


def under_launcher(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one rank among several already."""
    return "WORLD_SIZE" in environ and "RANK" in environ


def resolve_launch(
    spec: TrialSpec, launch_mode: str, min_world_size: int, environ: Mapping[str, str] = os.environ
) -> LaunchPlan:
    """Plan the launch of a trial."""
    name, execution = spec.workload.name, spec.execution
    size = world_size(environ)
    if launch_mode == SCRIPT:
        if size > 1:
            raise LaunchModeError(
                f"torchrun is to start {name}, but pytest is a rank already; start it without torchrun"
            )
        return LaunchPlan("torchrun", execution.nproc or 1)
    if execution.launcher == AS_TYPED and not is_command(spec.workload.target):
        raise LaunchModeError(f"--aorta-launcher {AS_TYPED} is for commands, and {name} is a workload")
    if launch_mode != "distributed":
        if size > 1:
            raise LaunchModeError(f"workload {name} is single_process; do not wrap with torchrun")
        if execution.nproc is not None and execution.nproc > 1:
            raise LaunchModeError(
                f"workload {name} is single_process; --aorta-nproc {execution.nproc} does not apply to it"
            )
        return LaunchPlan("single")
    external = execution.launcher == "external" or (execution.launcher == "auto" and under_launcher(environ))
    if external and spec.environment.enter:
        raise LaunchModeError(
            f"environment {spec.environment.name!r} is to be entered, but pytest is a rank already; start pytest "
            "without torchrun: its ranks are then started in the container"
        )
    if external:
        if size < min_world_size:
            raise LaunchModeError(
                f"workload {name} requires WORLD_SIZE >= {min_world_size} (got {size}); launch with "
                f"torchrun --nproc_per_node={min_world_size} -m pytest --aorta-workload {name} ..."
            )
        if not under_launcher(environ):
            raise LaunchModeError(
                "--aorta-launcher external: pytest is not a rank, for RANK and WORLD_SIZE are not set; launch with "
                f"torchrun --nproc_per_node={min_world_size} -m pytest --aorta-workload {name} ..."
            )
        return LaunchPlan("external", size)
    if size > 1 and not under_launcher(environ):
        raise LaunchModeError(
            f"WORLD_SIZE={size} is set, but RANK is not: no launcher has started this process as a rank of {name}; "
            "unset WORLD_SIZE, and the ranks are started from here"
        )
    if execution.isolation == "none":
        raise LaunchModeError(
            f"workload {name} is distributed; --aorta-isolation none runs it only as a rank of an outer launcher: "
            f"torchrun --nproc_per_node={min_world_size} -m pytest --aorta-isolation none --aorta-workload {name} ..."
        )
    if execution.elastic.nnodes[1] > 1 and execution.launcher == "torchrun":
        raise LaunchModeError(
            "--aorta-launcher torchrun runs the ranks of one node; several nodes (nnodes=) need --aorta-launcher auto"
        )
    nodes = execution.elastic.nnodes[0]
    nproc = execution.nproc if execution.nproc is not None else math.ceil(min_world_size / nodes)
    if nproc * nodes < min_world_size:
        given = f"--aorta-nproc {nproc}" + (f" on {nodes} nodes" if nodes > 1 else "")
        raise LaunchModeError(f"workload {name} requires WORLD_SIZE >= {min_world_size} (got {given})")
    return LaunchPlan("torchrun" if execution.launcher == "torchrun" else "elastic", nproc)


class WorkloadArgument(TypedDict):
    """A workload and its options, for ``workload_main.load`` and ``trial_main.prepare``.

    The other keys are for a zygote. ``forks_programs``: whether Python programs of a command run in forks of it.
    ``start``: its index in the cell. ``rank``: the rank that is forked from it. ``hash_seed``: its drawn
    ``PYTHONHASHSEED``, which its children do not inherit. ``import_seed``: seed of the trial, if each trial imports the
    workload in its own process. ``interpreter``: interpreter of a command's environment, if it is another one.
    ``preload``: modules to import before the workload. ``learned``: modules that an earlier trial imported; they are
    imported after the workload, on the ``cores`` of a slot. ``static``: facts of machine and software from another
    start, as ``StaticEnv.to_plain`` returns them.
    """

    target: str
    overrides: dict[str, Any]
    steps: int | None
    forks_programs: NotRequired[bool]
    start: NotRequired[int]
    rank: NotRequired[int]
    hash_seed: NotRequired[int | None]
    import_seed: NotRequired[int | None]
    interpreter: NotRequired[str]
    preload: NotRequired[list[str]]
    learned: NotRequired[list[str]]
    cores: NotRequired[list[int] | None]
    static: NotRequired[dict[str, Any]]


class ChildArgument(WorkloadArgument):
    """For ``launch.child.trial_main.run``.

    ``overlay`` and ``watched`` hold names of variables, those set for this trial and those to record. ``place`` holds
    variables; in the folder ``sockets``, ranks make sockets for the host, and their agent has its temporary files.
    ``rank_seed`` takes the place of a seed that derives from ``seed``; ``launcher_pid`` is the process of an outer
    launcher. ``base_pid`` is added in the trial's process: the process with the variables that the launcher of the
    ranks starts from, if there is one.
    ``watch_imports``: report what the workload imports that its zygote could have imported before. ``cwd``: the trial's
    own working directory, ``None`` for that of its zygote.
    ``rank_zygotes``: so many zygotes are lent to its process, by descriptors that follow, to fork its ranks from;
    ``rank_environ``: the variables of a rank that is forked so.
    ``ends_fully``: whether the process ends as an interpreter does, as no other trial comes from its zygote.
    ``timeout`` and ``stall_timeout``, in seconds, are those that the host will end it by; ``source`` is the workload's
    file.
    """

    overlay: list[str]
    watched: list[str]
    environment: dict[str, Any]
    collect: list[str]
    place: dict[str, str]
    cwd: str | None
    sockets: str
    mode: Mode
    nproc: int
    trial_id: str
    folder: str
    grace: float
    memory: int | None
    elastic: dict[str, Any]
    seed: int
    rank_seed: int | None
    launcher_pid: int | None
    watch_imports: bool
    ends_fully: bool
    timeout: float | None
    stall_timeout: float | None
    source: str | None
    rank_zygotes: NotRequired[int]
    rank_environ: NotRequired[dict[str, str]]
    base_pid: NotRequired[int | None]


# The nodes of a trial: which one this is, where they meet, and the store that node 0 keeps there.


def is_multi_node(options: ElasticOptions) -> bool:
    """Whether more than this node may take part."""
    return options.nnodes[1] > 1


def node_rank(options: ElasticOptions, environ: Mapping[str, str] = os.environ) -> int:
    """Rank of this node: the given one, else SLURM's number of the node in its step; 0 for a single node."""
    if not is_multi_node(options):
        return 0
    if options.node_rank is not None:
        return options.node_rank
    return int(environ.get("SLURM_NODEID", "0"))


def process_rank(options: ElasticOptions, hosts: Sequence[str] = ()) -> tuple[Literal["rank", "node"], int | None]:
    """Rank or node rank of this pytest among the processes that run the same trials; ``None`` for a single process."""
    if is_multi_node(options) and not hosts:
        return "node", node_rank(options)
    return "rank", own_rank() if under_launcher() else None


def endpoint(options: ElasticOptions, environ: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Host and port of the rendezvous: the given ones, else SLURM's first node and a port derived from the step.

    Raises ``LaunchModeError`` if neither is known.
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
    """Say if this node does not reach node 0; ``None`` if it does, or is node 0."""
    if node_rank(options) == 0:
        return None
    host, port = endpoint(options)
    try:
        socket.create_connection((host, port), _PATIENCE).close()
    except OSError as error:
        return f"{socket.gethostname()} does not reach {host}:{port}, where the nodes meet: {error}"
    return None


def check_step(options: ElasticOptions, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse trials with several nodes in a SLURM job whose nodes would never meet.

    Refuses nothing outside of a job, or if the user gives the rank of this node.
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
    """Refuse several tasks of one SLURM step that would write the same trials into one results directory.

    A directory whose name has the number of the task is fine. So is a step with a terminal (``srun --pty``): only its
    first task has the terminal in which pytest was typed.
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
    """The process that serves the store at which the nodes of all trials meet; it ends with this process.

    Node 0 serves it while its pytest runs: other nodes can still read from it when a trial is over on node 0, and all
    trials use one port. Raises ``LaunchModeError`` if another program has the port.
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
        """Host names, by number, of the ``nodes`` that have joined a trial; ``None`` if that is not known."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps([trial_id, nodes]) + "\n")
            self._process.stdin.flush()
            hosts = cast(dict[str, str], json.loads(self._process.stdout.readline()))
            return {int(node): host for node, host in hosts.items()}
        return None

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def listen(host: str, port: int) -> socket.socket:
    """Listen on the interface of ``host`` if other hosts resolve that name alike, else on all interfaces.

    A host may resolve its own name to a loopback address (Debian's ``127.0.1.1``), and an address may be translated on
    the way. Raises ``OSError`` if the port is taken.
    """
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(host)
        if not address.startswith("127.") or host in ("localhost", address):
            return socket.create_server((address, port), backlog=socket.SOMAXCONN)
    if not socket.has_dualstack_ipv6():
        return socket.create_server(("", port), backlog=socket.SOMAXCONN)
    return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=socket.SOMAXCONN)


def wait_for_end(host: str, port: int, patience: float) -> None:
    """Block until a store has gone or cannot be reached, for ``patience`` seconds and a little longer at most.

    The store goes when the pytest of node 0 has reported everything and ends.
    """
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1) as connection:
        connection.settimeout(patience)
        connection.recv(1)
        time.sleep(_LAST)


def free_port() -> int:
    """A port on which no process of this host listens."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
