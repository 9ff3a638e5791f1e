"""Snapshots: the static part once per zygote, the rest once per trial in its own process, at its start and end."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_aorta.common.texts import format_ranges, utc_now
from pytest_aorta.probe.accelerator import accelerator, compilers
from pytest_aorta.probe.guard import Facts, Guard, describe, first_line, plain, read_text
from pytest_aorta.probe.host import clock_is_cheap, clock_mhz, host, interpreter, runtime_context
from pytest_aorta.probe.loaded import ModuleCount, Watch, libraries, note_libraries, note_sources
from pytest_aorta.probe.software import git_state, installed_distributions, packages, torch_build, torch_state
from pytest_aorta.probe.variables import other_variables, recorded_variables

SCHEMA_VERSION = "1.2"


@dataclass(frozen=True)
class EnvSnapshot:
    """What a trial's own process saw of its machine, its software and its variables; docs/probe.md has every fact.

    ``None`` stands for a fact that does not exist there (no container, no branch) and for one that could not be found
    out; only the second makes the snapshot ``partial`` and has a line ``probe: Type: message`` in ``partial_reasons``.
    Memory is in bytes. ``end`` is the same process after ``run()``, ``None`` when it did not get there.
    """

    captured_at: str
    schema_version: str = SCHEMA_VERSION
    partial: bool = False
    partial_reasons: list[str] = field(default_factory=list)
    host: dict[str, Any] = field(default_factory=dict)
    runtime_context: dict[str, Any] = field(default_factory=dict)
    python: dict[str, Any] = field(default_factory=dict)
    torch: dict[str, Any] = field(default_factory=dict)
    accelerator: dict[str, Any] = field(default_factory=dict)
    compilers: dict[str, Any] = field(default_factory=dict)
    packages: dict[str, Any] = field(default_factory=dict)
    git: dict[str, Any] | None = None
    process: dict[str, Any] = field(default_factory=dict)
    env_vars: dict[str, str] = field(default_factory=dict)
    other_variables: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """This snapshot as JSON-able data."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EnvSnapshot:
        """The snapshot that ``to_dict()`` made, also of a newer 1.x; raises ``ValueError`` for another version."""
        version = str(data.get("schema_version", SCHEMA_VERSION))
        if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
            raise ValueError(f"schema_version of an environment is {version!r}; this version reads 1.x")
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})

    @classmethod
    def unavailable(cls, reason: str) -> EnvSnapshot:
        """The snapshot of a trial whose process took none, for a ``reason``."""
        return cls(captured_at=utc_now(), partial=True, partial_reasons=[reason])


@dataclass(frozen=True)
class StaticEnv:
    """What cannot change during the life of a process and its forks, as plain data that pickles.

    Attributes:
        sections: fields of ``EnvSnapshot``, by name; a section that could not be had at all is missing.
        reasons: why some probes failed, one line each.
        installed: versions of all installed distributions.
        clock: whether the processor's clock can be read in every trial.
        modules: the imported modules.
    """

    sections: Facts = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    installed: Mapping[str, str] = field(default_factory=dict)
    clock: bool = False
    modules: ModuleCount | None = None


def collect_static(source: Path | None = None) -> StaticEnv:
    """Find out everything that the trials of one zygote have in common. Never raises.

    Starts no threads, leaves no children, imports nothing that the process has not imported; torch is described in
    full only when it has been. Takes tens of milliseconds, and at most some tens of seconds when every tool hangs.

    Args:
        source: a file or folder of the workload, for the state of its git repository.
    """
    guard = Guard()
    nothing: dict[str, str] = {}
    installed = guard.fact("packages", partial(installed_distributions, guard), nothing)
    probes: dict[str, Callable[[], object]] = {
        "host": partial(host, guard),
        "runtime_context": partial(runtime_context, guard),
        "python": interpreter,
        **({"packages": partial(packages, installed)} if installed else {}),
        "torch": partial(torch_build, guard, installed),
        "accelerator": partial(accelerator, guard),
        "compilers": partial(compilers, guard),
        "git": partial(git_state, source, guard),
    }
    sections: Facts = {}
    for name, probe in probes.items():
        try:
            sections[name] = plain(probe())
        except Exception as error:
            guard.failed(name, error)
    return refreshed(StaticEnv(sections, tuple(guard.reasons), installed, clock_is_cheap()))


def refreshed(static: StaticEnv) -> StaticEnv:
    """The same for a process that has imported more since, and for its forks."""
    # Once for nothing, so that no forked child is the first to import and warm up what a snapshot takes.
    collect_env(static)
    collect_end(over=False)
    with contextlib.suppress(Exception):  # what fails here fails, and is named, in the trials' snapshots
        note_sources()
        note_libraries()
    return replace(static, modules=ModuleCount(len(sys.modules), next(reversed(sys.modules))))


def collect_env(static: StaticEnv | None = None, overlay: Collection[str] = ()) -> EnvSnapshot:
    """Find out where and in what this process runs. Never raises. With ``static``, takes half a millisecond.

    Args:
        static: what ``collect_static()`` found in this process or the one it was forked from; without it, this
            process is examined in full now.
        overlay: names of the variables set on purpose for this trial; they are recorded whatever they are called.
    """
    try:
        static = static if static is not None else collect_static()
        guard, nothing = Guard(), Facts()
        variables = guard.fact("env_vars", partial(recorded_variables, os.environ, overlay), nothing)
        sections = {
            **static.sections,
            "process": guard.fact("process", partial(process, guard, static.clock), nothing),
            "env_vars": variables,
            "other_variables": guard.fact("other_variables", partial(other_variables, os.environ, variables), nothing),
        }
        reasons = [*static.reasons, *guard.reasons]
        return EnvSnapshot(utc_now(), partial=bool(reasons), partial_reasons=reasons, **sections)
    except Exception as error:
        return EnvSnapshot.unavailable(describe("collect_env", error))


def collect_end(over: bool = True, watch: Watch | None = None) -> Facts:
    """Find out what ``run()`` has set, loaded and imported in this process. Never raises.

    To be called once ``run()`` is over and its result has been sent, also when it has failed. Takes about a
    millisecond, and some milliseconds where ``run()`` has loaded libraries.

    Args:
        over: false in a warm-up before ``run()``: leaves out what torch decides for good when it is first asked.
        watch: variables to look for in what was loaded and imported: some milliseconds more, and some seconds
            for the first trial of an installation.

    Returns:
        ``captured_at``, ``partial`` and ``partial_reasons`` as in ``EnvSnapshot``; ``torch``: threads, deterministic
        flags, precision, allocator, initialised devices, ``None`` when not imported; ``libraries``: how many shared
        objects are mapped, the paths of those that matter, and of those replaced since; ``variables``: what names a
        watched variable, see ``loaded.named_variables``, where one is watched.
    """
    guard, nothing = Guard(), Facts()
    found: Facts = {
        "captured_at": utc_now(),
        "torch": guard.fact("torch", partial(torch_state, guard, over), None),
        "libraries": guard.fact("libraries", libraries, nothing),
    }
    if watch is not None and watch.names:
        failed: Facts = {"note": "not searched"}
        found["variables"] = guard.fact("variables", watch.look, failed)
    return {**found, "partial": bool(guard.reasons), "partial_reasons": guard.reasons}


def surroundings(static: StaticEnv, variables: Mapping[str, str]) -> Facts:
    """What a trial finds around its workload and its options, as far as that decides between two results.

    ``python`` (its version and build), ``interpreter``, ``torch``, ``packages``, ``cpus``, ``variables``.
    ``interpreter`` is a path; ``torch`` a version, followed by the commit that it was built of if it is imported;
    ``packages`` a digest as in ``software.packages``; ``cpus`` the number that this process may run on.
    """
    python, torch = static.sections.get("python", {}), static.sections.get("torch", {})
    return {
        "python": python.get("build"),
        "interpreter": python.get("executable"),
        "torch": " ".join(filter(None, (torch.get("version"), torch.get("git_version")))) or None,
        "packages": static.sections.get("packages", {}).get("digest"),
        "cpus": len(os.sched_getaffinity(0)),
        "variables": dict(variables),
    }


# What differs from trial to trial: this process, and the state of the host around it. Forks pay for every page that
# they touch, so this is no import, no subprocess, few system calls and few objects; and therefore not psutil.

_PRESSURE = "/proc/pressure"

_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "core": resource.RLIMIT_CORE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "as": resource.RLIMIT_AS,
    "stack": resource.RLIMIT_STACK,
    "nproc": resource.RLIMIT_NPROC,
}

_POLICIES = {
    os.SCHED_OTHER: "other",
    os.SCHED_BATCH: "batch",
    os.SCHED_IDLE: "idle",
    os.SCHED_FIFO: "fifo",
    os.SCHED_RR: "rr",
}

_STATUS = re.compile(r"^(Threads|Mems_allowed_list|THP_enabled):\s*(\S+)", re.MULTILINE)
_MEMORY = re.compile(r"^(HugePages_Total|MemAvailable):\s*(\d+)", re.MULTILINE)


def process(guard: Guard, clock: bool = False) -> Facts:
    """Facts about this process and the load of its host; memory in bytes, load as the 1, 5 and 15 minute averages.

    ``pressure`` is the share of the last ten seconds, in percent, in which tasks have waited for a CPU, or for memory
    (Linux's pressure stall information, ``Documentation/accounting/psi.rst``). ``clock`` asks for the processor's
    clock, too. Limits are in the kernel's units (bytes or a count); ``None`` is unlimited.
    """
    status = dict(_STATUS.findall(guard.fact("process.status", partial(read_text, "/proc/self/status"), "")))
    memory = dict(_MEMORY.findall(guard.fact("process.memory", partial(read_text, "/proc/meminfo"), "")))
    limits: Facts = {}
    for name, which in _LIMITS.items():
        soft, hard = resource.getrlimit(which)
        limits[name] = {"soft": None if soft < 0 else soft, "hard": None if hard < 0 else hard}
    policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    torch = sys.modules.get("torch")
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "uid": os.getuid(),
        "cpu_affinity": format_ranges(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "scheduler": {"policy": _POLICIES.get(policy, str(policy)), "priority": os.sched_getparam(0).sched_priority},
        "threads": int(status["Threads"]) if "Threads" in status else None,
        "numa_nodes_allowed": status.get("Mems_allowed_list"),
        "transparent_huge_pages": status["THP_enabled"] != "0" if "THP_enabled" in status else None,
        "huge_pages": int(memory["HugePages_Total"]) if "HugePages_Total" in memory else None,
        "memory_available_bytes": int(memory["MemAvailable"]) * 1024 if "MemAvailable" in memory else None,
        "rlimits": limits,
        "pressure": {"cpu": _pressure("cpu"), "memory": _pressure("memory")},
        **guard.facts(
            "process",
            {
                "cwd": os.getcwd,
                "load_average": os.getloadavg,
                "numa_policy": memory_policy,
                "cpu_clock_mhz": clock_mhz if clock else lambda: None,
                "torch_threads": lambda: (
                    {"intraop": torch.get_num_threads(), "interop": torch.get_num_interop_threads()} if torch else None
                ),
            },
        ),
    }


def memory_policy(maps: Path = Path("/proc/self/numa_maps")) -> str | None:
    """Where this process gets its memory from, as numactl has set it: ``default``, ``bind:0``, ``interleave:0-1``, ...

    ``None`` for a kernel without NUMA. Read from the first mapping, the program, which has no policy of its own. The
    kernel walks through the pages of every mapping that it gives a line for: no more than that line is read.
    """
    try:
        with open(maps, "rb", buffering=0) as file:
            columns = file.read(128).split(maxsplit=2)
    except FileNotFoundError:
        return None
    return columns[1].decode() if len(columns) > 1 else None


def _pressure(what: str) -> float | None:
    try:
        found = re.match(r"some avg10=([\d.]+)", first_line(f"{_PRESSURE}/{what}") or "")
    except OSError:  # as of a kernel that has the files and not the information
        return None
    return float(found[1]) if found else None
