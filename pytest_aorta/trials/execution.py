"""How a trial is executed: isolation, ranks, limits, shared resources, and variables that give it a place."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

#: ``Std`` of torch: 0 none, 1 stdout, 2 stderr, 3 both; for all local ranks, or for each.
_STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")


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

    def to_plain(self) -> dict[str, Any]:
        """All fields, as JSON has them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def given(self) -> dict[str, Any]:
        """The fields that are not at their defaults."""
        return {name: value for name, value in self.to_plain().items() if value != getattr(DEFAULTS, name)}


DEFAULTS = ElasticOptions()

#: Options that select nodes, and have no influence on the outcome.
PLACES = ("node_rank", "rdzv_endpoint", "rdzv_id", "master_addr", "master_port", "local_addr")


def parse_elastic(key: str, text: str) -> Any:
    """The value of one option, or ``ValueError`` with what would be valid."""
    if key not in _PARSERS:
        raise ValueError(f"KEY=VALUE with a KEY of {', '.join(_PARSERS)}")
    parse, expected = _PARSERS[key]
    try:
        return parse(text.strip())
    except (ValueError, OverflowError):
        raise ValueError(f"{key}= {expected}") from None


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
    known = {
        key: parse_elastic(key, value if isinstance(value, str) else _as_text(value))
        for key, value in values.items()
        if value is not None
    }
    return ElasticOptions(**known)


def _as_text(value: Any) -> str:
    return ":".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < minimum:
            raise ValueError
        return int(text)

    return parse


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _nnodes(text: str) -> tuple[int, int]:
    least, colon, most = text.partition(":")
    found = _at_least(1)(least), _at_least(1)(most if colon else least)
    if found[0] > found[1]:
        raise ValueError
    return found


def _port(text: str) -> int:
    value = _at_least(1)(text)
    if value > 65535:
        raise ValueError
    return value


def _endpoint(text: str) -> str:
    _, port = text.rsplit(":", 1)
    if not re.fullmatch(r"\S+:\d{1,5}", text) or int(port) > 65535:
        raise ValueError
    return text


def _matching(pattern: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError
        return text

    return parse


_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "max_restarts": (_at_least(0), "a whole number, 0 for none"),
    "monitor_interval": (_seconds, "a number of seconds above 0"),
    "nnodes": (_nnodes, "a number of nodes, or MIN:MAX"),
    "node_rank": (_at_least(0), "a whole number, 0 for the node that reports"),
    "rdzv_backend": (_matching("c10d|static"), "c10d or static"),
    "rdzv_endpoint": (_endpoint, "HOST:PORT, with a port up to 65535"),
    "rdzv_id": (_matching(r"\S+"), "a name without spaces"),
    "start_method": (_matching("fork|spawn|forkserver"), "fork, spawn or forkserver"),
    "redirects": (_matching(_STREAMS.pattern), "0, 1 (stdout), 2 (stderr), 3 (both), or LOCAL_RANK:STREAMS,..."),
    "tee": (_matching(_STREAMS.pattern), "0, 1 (stdout), 2 (stderr), 3 (both), or LOCAL_RANK:STREAMS,..."),
    "exit_barrier_timeout": (_seconds, "a number of seconds above 0"),
    "role": (_matching(r"[A-Za-z0-9_.-]+"), "a name of letters, digits, dots, dashes and underscores"),
    "master_addr": (_matching(r"[^\s/]+"), "a host name or an address"),
    "master_port": (_port, "a port from 1 to 65535"),
    "local_addr": (_matching(r"[^\s/]+"), "a host name or an address of this node"),
}


#: Variables that launchers set for every rank; other values of them would break the rendezvous. What else begins with
#: TORCHELASTIC_ is read by the agents: watchdog, health check, signals to handle.
LAUNCHER_OWNED = re.compile(
    r"RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|MASTER_(ADDR|PORT)"
    r"|TORCHELASTIC_(RESTART_COUNT|MAX_RESTARTS|RUN_ID|USE_AGENT_STORE|ERROR_FILE)"
)

Isolation = Literal["fork", "spawn", "none"]
Launcher = Literal["auto", "elastic", "torchrun", "external"]

#: ``auto``: what the first trial of a cell imports; ``none``: nothing; or names of modules.
Preload = Literal["auto", "none"] | tuple[str, ...]


@dataclass(frozen=True)
class Execution:
    """How the processes of a trial are started.

    Attributes:
        isolation: ``fork`` from a prepared process, ``spawn`` of a fresh interpreter, ``none`` for this very process.
        launcher: of the ranks of a distributed workload.
        nproc: number of ranks, ``None`` for the workload's minimum.
        elastic: options of the agent that starts the ranks.
        seed: of the random generators: trial i of every cell gets the same ones. ``None`` for other ones each time.
        preload: modules that are imported once for all trials of a cell, instead of once per trial; with ``fork`` only.
    """

    isolation: Isolation = "fork"
    launcher: Launcher = "auto"
    nproc: int | None = None
    elastic: ElasticOptions = DEFAULTS
    seed: int | None = None
    preload: Preload = "auto"

    @property
    def preloaded(self) -> tuple[str, ...]:
        """Modules that are imported before the workload, in the process that its trials are forked from."""
        return self.preload if isinstance(self.preload, tuple) and self.isolation == "fork" else ()


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
    """

    slots: int = 1
    devices: tuple[int, ...] | None = None
    hosts: tuple[str, ...] = field(default=(), repr=False)  # a specification may set variables
    own_cores: bool = False
    workers: int = 1
    worker: int = 0

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
    """

    timeout: float | None = None
    stall_timeout: float | None = None
    grace: float = GRACE
    memory: int | None = None
    log_limit: int = LOG_LIMIT


#: The trial's index in its cell.
TRIAL_INDEX = "AORTA_TRIAL_INDEX"

#: A folder for files that belong to the trial's record.
TRIAL_DIR = "AORTA_TRIAL_DIR"

#: A seed for the program of a command, below 2**31.
TRIAL_SEED = "AORTA_TRIAL_SEED"

#: Name of that folder, in the trial's artifacts.
FILES = "files"

#: How long the TMPDIR of a failed trial is kept.
KEPT_DAYS = 3

#: All that a trial finds.
NAMES = (TRIAL_INDEX, TRIAL_DIR, "TMPDIR")

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
