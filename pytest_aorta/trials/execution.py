"""How a trial is executed: isolation, ranks, limits, shared resources, and variables that give it a place."""

from __future__ import annotations

import contextlib
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class ElasticOptions:
    """How torch's elastic agent runs a worker group.

    Attributes:
        max_restarts: times that the ranks are started again after one has failed.
        monitor_interval: seconds between two polls of the ranks; ``None`` for 0.01, with torchrun for its default.
        nnodes: smallest and largest number of nodes; ``(1, 1)`` for this host alone.
        node_rank: of this node; ``None`` for that of SLURM, else 0. Node 0 reports.
        rdzv_backend: rendezvous of several nodes; ``None`` for ``c10d``.
        rdzv_endpoint: ``HOST:PORT`` of the rendezvous; ``None`` for the first node of the SLURM job.
        rdzv_id: name of the rendezvous; ``None`` for the trial's id.
        start_method: ``fork`` (from the prepared process), ``spawn`` or ``forkserver`` (fresh interpreters).
        redirects: streams of the ranks that go to a log per rank: ``3``, or ``0:3,1:1`` for some local ranks.
        tee: streams that go to the trial's own log as well.
        exit_barrier_timeout: seconds that an agent waits for the others when its ranks have ended.
        role: of the ranks.
        master_addr: address at which rank 0 of the workload keeps its store; ``None`` for what the rendezvous chooses.
        master_port: port of that store.
        local_addr: address of this node, for the other nodes; ``None`` for that towards the rendezvous.
    """

    max_restarts: int = 0
    monitor_interval: float | None = None
    nnodes: tuple[int, int] = (1, 1)
    node_rank: int | None = None
    rdzv_backend: str | None = None
    rdzv_endpoint: str | None = None
    rdzv_id: str | None = None
    start_method: str = "fork"
    redirects: str = "3"
    tee: str = "0"
    exit_barrier_timeout: float = 300.0
    role: str = "default"
    master_addr: str | None = None
    master_port: int | None = None
    local_addr: str | None = None

    def given(self) -> dict[str, Any]:
        """The fields that are not at their defaults."""
        fields = dict(vars(self))
        for name, default in vars(DEFAULTS).items():
            if fields[name] == default:
                del fields[name]
        return fields


DEFAULTS = ElasticOptions()

#: Options that select nodes and do not change the outcome.
PLACES = ("node_rank", "rdzv_endpoint", "rdzv_id", "master_addr", "master_port", "local_addr")


def parse_elastic(key: str, text: str) -> Any:
    """Read the value of one option; raises ``ValueError`` with what would be valid."""
    if key not in _OPTIONS:
        raise ValueError(f"KEY=VALUE with a KEY of {', '.join(_OPTIONS)}")
    pattern, convert, expected = _OPTIONS[key]
    with contextlib.suppress(ValueError, OverflowError):
        if re.fullmatch(pattern, text.strip()):
            return convert(text.strip())
    raise ValueError(f"{key}= {expected}")


def elastic_option(text: str) -> tuple[str, str]:
    """One option as typed, ``KEY=VALUE``, checked."""
    key, _, value = text.partition("=")
    parse_elastic(key.strip(), value)
    return key.strip(), value


def elastic_options(values: Mapping[str, Any]) -> ElasticOptions:
    """Options from values, or from texts as on the command line; ``None`` leaves one at its default.

    Raises:
        ValueError: as ``parse_elastic``.
    """
    texts = {key: ":".join(map(str, it)) if isinstance(it, tuple | list) else str(it) for key, it in values.items()}
    return ElasticOptions(**{key: parse_elastic(key, texts[key]) for key, it in values.items() if it is not None})


def _nnodes(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    nodes = int(least), int(most or least)
    if not 0 < nodes[0] <= nodes[1]:
        raise ValueError
    return nodes


def _seconds(text: str) -> float:
    if not 0 < (seconds := float(text)) < math.inf:
        raise ValueError
    return seconds


_WHOLE, _ADDRESS = r"\d{1,9}", r"[^\s/]+"
_PORT = r"0*(?:[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
#: ``Std`` of torch: 0 none, 1 stdout, 2 stderr, 3 both; for all local ranks, or for each.
_STREAMS = r"[0-3]|\d+:[0-3](,\d+:[0-3])*"
_STREAMS_EXPECTED = "0, 1 (stdout), 2 (stderr), 3 (both), or LOCAL_RANK:STREAMS,..."

#: Of each option: a pattern, its reader, and the values that are valid, for messages.
_OPTIONS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "max_restarts": (_WHOLE, int, "a whole number, 0 for none"),
    "monitor_interval": (r".*", _seconds, "a number of seconds above 0"),
    "nnodes": (rf"{_WHOLE}(:{_WHOLE})?", _nnodes, "a number of nodes, or MIN:MAX"),
    "node_rank": (_WHOLE, int, "a whole number, 0 for the node that reports"),
    "rdzv_backend": (r"[a-z0-9_-]+", str, "the name of a rendezvous backend, such as c10d"),
    "rdzv_endpoint": (rf"\S+:({_PORT}|0+)", str, "HOST:PORT, with a port up to 65535"),
    "rdzv_id": (r"\S+", str, "a name without spaces"),
    "start_method": ("fork|spawn|forkserver", str, "fork, spawn or forkserver"),
    "redirects": (_STREAMS, str, _STREAMS_EXPECTED),
    "tee": (_STREAMS, str, _STREAMS_EXPECTED),
    "exit_barrier_timeout": (r".*", _seconds, "a number of seconds above 0"),
    "role": (r"[A-Za-z0-9_.-]+", str, "a name of letters, digits, dots, dashes and underscores"),
    "master_addr": (_ADDRESS, str, "a host name or an address"),
    "master_port": (_PORT, int, "a port from 1 to 65535"),
    "local_addr": (_ADDRESS, str, "a host name or an address of this node"),
}


#: Variables that launchers set for every rank; other values of them would break the rendezvous. What else begins with
#: TORCHELASTIC_ is read by the agents: watchdog, health check, signals to handle.
LAUNCHER_OWNED = re.compile(
    r"RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|MASTER_(ADDR|PORT)"
    r"|TORCHELASTIC_(RESTART_COUNT|MAX_RESTARTS|RUN_ID|USE_AGENT_STORE|ERROR_FILE)"
)

Isolation = Literal["auto", "fork", "spawn", "none"]
Launcher = Literal["auto", "elastic", "torchrun", "external", "as-typed"]

#: Working directory of a trial: pytest's own, an empty one, or a copy of pytest's.
Cwd = Literal["here", "fresh", "copy"]

#: ``auto``: what the first trial of a cell imports; ``none``: nothing; or names of modules.
Preload = Literal["auto", "none"] | tuple[str, ...]


@dataclass(frozen=True)
class Execution:
    """How the processes of a trial are started.

    Attributes:
        isolation: ``auto``: a command starts as typed, and a class has as many prepared processes as cost allows;
            ``fork`` from one prepared process, ``spawn`` of a fresh interpreter, ``none`` for this very process.
        launcher: of the ranks of a distributed workload; ``as-typed`` for a command that no fork may stand for.
        nproc: number of ranks, ``None`` for the workload's minimum.
        elastic: options of the agent that starts the ranks.
        seed: of the random generators: trial i of every cell gets the same ones. ``None`` for other ones each time.
        preload: modules that are imported once for the trials of a start, instead of once per trial.
        cwd: working directory: ``here`` for that of this process, ``fresh`` for an empty one of the trial, ``copy`` for
            a copy. The latter two are the trial's folder for files, in which stays what it has made or changed.
        zygotes: prepared processes of each cell with ``auto``; ``None`` for as many as cost allows.
    """

    isolation: Isolation = "auto"
    launcher: Launcher = "auto"
    nproc: int | None = None
    elastic: ElasticOptions = DEFAULTS
    seed: int | None = None
    preload: Preload = "auto"
    cwd: Cwd = "here"
    zygotes: int | None = None

    @property
    def preloaded(self) -> tuple[str, ...]:
        """Modules that are imported before the workload, in the process that its trials are forked from."""
        return self.preload if isinstance(self.preload, tuple) and self.isolation in ("auto", "fork") else ()


@dataclass(frozen=True)
class Resources:
    """What the trials of a run share.

    Attributes:
        slots: number of trials at a time, on each host.
        devices: ids that are leased to trials; empty hides all devices, ``None`` leaves them alone.
        hosts: execnet specifications; none for this host.
        own_cores: whether each of several trials at a time has cores of its own, and no more threads than these;
            otherwise it has what it would have alone.
        workers: number of processes that share the trials, as those of xdist do, each with so many slots.
        worker: number of this process among them.
        health: whether the health of devices and host is read while they run.
    """

    slots: int = 1
    devices: tuple[int, ...] | None = None
    hosts: tuple[str, ...] = field(default=(), repr=False)  # a specification may set variables
    own_cores: bool = False
    workers: int = 1
    worker: int = 0
    health: bool = True

    @property
    def total_slots(self) -> int:
        """Number of trials at a time, on all hosts."""
        return self.slots * max(1, len(self.hosts))


def automatic_slots(devices: tuple[int, ...] | None) -> int:
    """One per device that may be leased, else one per physical core that this process may use."""
    if devices:
        return len(devices)
    import psutil

    return max(1, min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0))))


#: Seconds between SIGTERM and SIGKILL for a trial whose deadline has passed.
GRACE = 5.0

#: Bytes that are kept of each of a trial's logs.
LOG_LIMIT = 2**26


@dataclass(frozen=True)
class Limits:
    """Limits of a trial.

    Attributes:
        timeout: deadline in seconds, for the import and again from the constructor on; ``None`` for the workload's own.
        stall_timeout: seconds without progress in ``setup()`` or ``run()`` after which the trial is ended.
        grace: seconds between SIGTERM and SIGKILL when it is ended.
        memory: bytes that each of its processes may allocate.
        log_limit: bytes that are kept of each of its logs.
        fail_on_nonfinite: whether a result with a metric that is NaN or infinite fails it.
        allow_nonfinite: names of metrics that may be so, also several with commas.
    """

    timeout: float | None = None
    stall_timeout: float | None = None
    grace: float = GRACE
    memory: int | None = None
    log_limit: int = LOG_LIMIT
    fail_on_nonfinite: bool = False
    allow_nonfinite: tuple[str, ...] = ()


#: The trial's index in its cell, by two names.
TRIAL_INDEX, TRIAL = "AORTA_TRIAL_INDEX", "AORTA_TRIAL"

#: A folder for files that belong to the trial's record.
TRIAL_DIR = "AORTA_TRIAL_DIR"

#: Set where a metric that is NaN or infinite fails the trial; it has the names of those that may be so, with commas.
FINITE = "AORTA_FAIL_ON_NONFINITE"

#: A seed for the program of a command, below 2**31.
TRIAL_SEED = "AORTA_TRIAL_SEED"

#: ``PYTHONHASHSEED`` for the program of a command; not seen by it.
HASH_SEED = "AORTA_HASH_SEED"

#: Name of that folder, in the trial's artifacts.
FILES = "files"

#: How long the TMPDIR of a failed trial is kept.
KEPT_DAYS = 3

#: All that a trial finds.
NAMES = (TRIAL_INDEX, TRIAL, TRIAL_DIR, "TMPDIR")

#: The working directory before ``enter``.
_start_folder: str | None = None


def enter(folder: str) -> None:
    """Make a folder, which may be missing here, the working directory.

    Raises:
        OSError: it cannot be made.
    """
    global _start_folder
    _start_folder = os.getcwd()
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)


def leave() -> None:
    """Undo ``enter``."""
    global _start_folder
    if _start_folder is not None:
        os.chdir(_start_folder)
        _start_folder = None


def start_folder() -> str:
    """The working directory that trials with ``here`` have."""
    return _start_folder or os.getcwd()


#: Before the import of a workload: TMPDIR, and the folder that ``tempfile`` remembers once it is asked for it.
_before: tuple[str | None, str | None] = (None, None)


def note_tmp() -> None:
    """To be called before the import of a workload, which may choose a folder for temporary files itself."""
    global _before
    remembered, tempfile.tempdir = tempfile.tempdir, None
    try:
        default = tempfile.gettempdir()
    except OSError:
        default = None
    tempfile.tempdir = remembered
    _before = os.environ.get("TMPDIR"), default


def take_place(variables: Mapping[str, str]) -> None:
    """Set the variables in this process, and make ``tempfile`` look again; what the workload's import chose stays.

    Raises:
        OSError: a folder is missing here, as in a container, and cannot be made.
    """
    tmp, default = _before
    if os.environ.get("TMPDIR") != tmp:
        variables = {name: value for name, value in variables.items() if name != "TMPDIR"}
    for name in (TRIAL_DIR, "TMPDIR"):
        if name in variables and not os.path.isdir(variables[name]):
            try:
                os.makedirs(variables[name], exist_ok=True)
            except OSError:
                if name == TRIAL_DIR:
                    raise
                variables = {name: value for name, value in variables.items() if name != "TMPDIR"}
    os.environ.update(variables)
    if "TMPDIR" in variables and tempfile.tempdir == default:
        tempfile.tempdir = None
