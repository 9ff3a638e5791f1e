"""Snapshots: the static part once per zygote, the rest once per trial in its own process, at its start and end."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import platform
import re
import resource
import sys
import sysconfig
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_aorta.common.texts import format_ranges, utc_now
from pytest_aorta.probe.guard import Facts, Guard, ask, describe, plain_data, read_text
from pytest_aorta.probe.host import accelerator, compilers, host, runtime_context, venv
from pytest_aorta.probe.kernels import kernels
from pytest_aorta.probe.loaded import ModuleCount, Watch, libraries, note_sources
from pytest_aorta.probe.software import git_state, installed_distributions, packages, torch_build, torch_state
from pytest_aorta.probe.variables import other_variables, recorded_variables

SCHEMA_VERSION = "1.4"


@dataclass(frozen=True)
class EnvSnapshot:
    """What a trial's own process saw of its machine, software and variables; docs/reference/probe.md has every fact.

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
        modules: the imported modules.
    """

    sections: Facts = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    installed: Mapping[str, str] = field(default_factory=dict)
    modules: ModuleCount | None = None

    def to_plain(self) -> dict[str, Any]:
        """The parts that are not specific to one process, as JSON-able data."""
        return {name: value for name, value in vars(self).items() if name != "modules"}

    @classmethod
    def of_this_process(cls, plain: Mapping[str, Any]) -> StaticEnv:
        """Combine another process's facts, as ``to_plain`` returns them, with the modules of this process."""
        return refreshed(cls(**{**plain, "reasons": tuple(plain["reasons"])}))


def collect_static(source: Path | None = None) -> StaticEnv:
    """Find out everything that the trials of one zygote have in common. Never raises.

    Starts no threads, leaves no children, imports nothing that the process has not imported; torch is described in
    full only when it has been. Takes tens of milliseconds, and at most some tens of seconds when every tool hangs.

    Args:
        source: a file or folder of the workload, for the state of its git repository.
    """
    guard = Guard()
    installed: dict[str, str] = {}
    with guard.probe("packages"):
        installed = installed_distributions(guard)
    probes: dict[str, Callable[[], object]] = {
        "python": interpreter,
        "host": partial(host, guard),
        "runtime_context": partial(runtime_context, guard),
        **({"packages": partial(packages, installed)} if installed else {}),
        "torch": partial(torch_build, guard, installed),
        "accelerator": partial(accelerator, guard),
        "compilers": partial(compilers, guard),
        "git": partial(git_state, source, guard),
    }
    sections: Facts = {}
    for name, probe in probes.items():
        with guard.probe(name):
            sections[name] = plain_data(probe())
    return refreshed(StaticEnv(sections, tuple(guard.reasons), installed))


def interpreter() -> Facts:
    return {
        "version": platform.python_version(),
        "build": sys.version,
        "implementation": sys.implementation.name,
        "executable": sys.executable or None,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        # -O and PYTHONOPTIMIZE remove the assert statements that many reproducers rely on.
        "optimize": sys.flags.optimize,
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    }


#: With ``interpreter``: says what another interpreter is, and what is installed for it, without this package.
_TELL = """
import json, platform, sys, sysconfig
from importlib.metadata import distributions
installed = [(each.metadata["Name"], each.version) for each in distributions()]
print(json.dumps({"python": interpreter(), "installed": [pair for pair in installed if all(pair)]}))
"""

#: Seconds that it has for that.
_TELLS_WITHIN = 60.0


def of_interpreter(static: StaticEnv, python: str) -> StaticEnv:
    """The same of trials whose program runs in another interpreter: its build and packages; torch by its version."""
    guard, sections = Guard(), dict(static.sections)
    for name in ("python", "packages", "torch"):
        sections.pop(name, None)
    installed: dict[str, str] = {}
    with guard.probe("python"):
        tell = f"from __future__ import annotations\n{inspect.getsource(interpreter)}{_TELL}"
        told = json.loads(ask([python, "-c", tell], _TELLS_WITHIN))
        sections["python"] = plain_data(told["python"])
        for name, version in told["installed"]:
            installed.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
        sections["packages"] = plain_data(packages(installed))
        if its_venv := venv(told["python"]["prefix"], told["python"]["base_prefix"]):
            sections["runtime_context"] = {**sections.get("runtime_context", {}), "venv": its_venv}
        if "torch" in installed:
            sections["torch"] = {"version": installed["torch"]}
    return replace(static, sections=sections, installed=installed, reasons=(*static.reasons, *guard.reasons))


def refreshed(static: StaticEnv) -> StaticEnv:
    """The same for a process that has imported more since, and for its forks."""
    # Once for nothing, so that no forked child is the first to import and warm up what a snapshot takes.
    collect_env(static)
    collect_end(over=False)
    with contextlib.suppress(Exception):  # what fails here fails, and is named, in the trials' snapshots
        note_sources()
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
        guard, sections = Guard(), {**static.sections, "process": {}, "env_vars": {}, "other_variables": {}}
        with guard.probe("env_vars"):
            sections["env_vars"] = recorded_variables(os.environ, overlay)
        with guard.probe("process"):
            sections["process"] = process(guard)
        with guard.probe("other_variables"):
            sections["other_variables"] = other_variables(os.environ, sections["env_vars"])
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
        objects are mapped, the paths of those that matter, and of those replaced since; ``kernels``: see there;
        ``variables``: what names a watched variable, see ``loaded.named_variables``, where one is watched.
    """
    guard, facts = Guard(), Facts(captured_at=utc_now(), torch=None, libraries={})
    with guard.probe("torch"):
        facts["torch"] = torch_state(guard, over)
    with guard.probe("libraries"):
        facts["libraries"] = libraries()
    facts["kernels"] = {}
    with guard.probe("kernels"):
        replaced = facts["libraries"]["replaced"]  # their files are others than those that were loaded
        facts["kernels"] = kernels([it for it in facts["libraries"]["relevant"] if it not in replaced], guard)
    if watch is not None and watch.names:
        facts["variables"] = {"note": "not searched"}
        with guard.probe("variables"):
            facts["variables"] = watch.look()
    return {**facts, "partial": bool(guard.reasons), "partial_reasons": guard.reasons}


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


def process(guard: Guard) -> Facts:
    """Facts about this process and the load of its host; memory in bytes, load as the 1, 5 and 15 minute averages.

    ``pressure`` is the share of the last ten seconds, in percent, in which tasks have waited for a CPU, or for memory
    (Linux's pressure stall information, ``Documentation/accounting/psi.rst``). Limits are in the kernel's units (bytes
    or a count); ``None`` is unlimited. ``numa_policy`` is where this process gets its memory from, as numactl has set
    it: ``default``, ``bind:0``, ``interleave:0-1``, ...
    """
    status: dict[str, str] = {}
    memory: dict[str, int] = {}
    with guard.probe("process.status"):
        status = dict(_STATUS.findall(read_text("/proc/self/status")))
    with guard.probe("process.memory"):
        memory = {name: int(number) for name, number in _MEMORY.findall(read_text("/proc/meminfo"))}
    torch: Any = sys.modules.get("torch")
    policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    probes: dict[str, Callable[[], object]] = {
        "pid": os.getpid,
        "ppid": os.getppid,
        "uid": os.getuid,
        "cpu_affinity": lambda: format_ranges(os.sched_getaffinity(0)),
        "nice": lambda: os.getpriority(os.PRIO_PROCESS, 0),
        "scheduler": lambda: {
            "policy": _POLICIES.get(policy, str(policy)),
            "priority": os.sched_getparam(0).sched_priority,
        },
        "rlimits": lambda: {name: _limits(which) for name, which in _LIMITS.items()},
        "pressure": lambda: {"cpu": _pressure("cpu"), "memory": _pressure("memory")},
        "threads": lambda: int(status["Threads"]) if status else None,
        "numa_nodes_allowed": lambda: status.get("Mems_allowed_list"),
        "transparent_huge_pages": lambda: status["THP_enabled"] != "0" if "THP_enabled" in status else None,
        "huge_pages": lambda: memory.get("HugePages_Total"),
        "memory_available_bytes": lambda: memory["MemAvailable"] * 1024 if memory else None,
        "cwd": os.getcwd,
        "load_average": os.getloadavg,
        "numa_policy": _numa_policy,
        "torch_threads": lambda: (
            {"intraop": torch.get_num_threads(), "interop": torch.get_num_interop_threads()} if torch else None
        ),
    }
    return guard.facts("process", probes)


def _limits(which: int) -> dict[str, int | None]:
    return {name: None if it < 0 else it for name, it in zip(("soft", "hard"), resource.getrlimit(which), strict=True)}


def _pressure(name: str) -> float | None:
    with contextlib.suppress(OSError):  # as of a kernel that has the files and not the information
        if waited := re.match(r"some avg10=([\d.]+)", read_text(f"{_PRESSURE}/{name}")):
            return float(waited[1])
    return None


def _numa_policy() -> str | None:
    # The first mapping, the program, has no policy of its own. The kernel walks through the pages of every mapping
    # that it gives a line for: no more than that line is read.
    try:
        with open("/proc/self/numa_maps", "rb", buffering=0) as file:
            columns = file.read(128).split(maxsplit=2)
    except FileNotFoundError:  # a kernel without NUMA
        return None
    return columns[1].decode() if len(columns) > 1 else None
