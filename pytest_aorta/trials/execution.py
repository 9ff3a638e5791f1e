"""How a trial is executed, and on which resources the trials of a run are."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Literal

from pytest_aorta.trials.elastic_options import DEFAULTS, ElasticOptions

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
