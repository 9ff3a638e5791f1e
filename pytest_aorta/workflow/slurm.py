"""SLURM's commands and the meaning of their output."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from pytest_aorta.settings import RequestError

#: Seconds that an answer may take.
_PATIENCE = 120.0

#: Variables that sbatch takes options from, and that a user may have set for the jobs of a project. All others of
#: ``SBATCH_*`` would overrule what the script says.
_KEPT_VARIABLES = ("SBATCH_ACCOUNT", "SBATCH_QOS", "SBATCH_RESERVATION", "SBATCH_CONSTRAINT", "SBATCH_CLUSTERS")

#: States in which a job has ended, see ``man squeue``, JOB STATE CODES.
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "RECONFIG_FAIL", "REVOKED", "SPECIAL_EXIT", "TIMEOUT"),
}

#: Messages of sbatch after which the job may exist.
_LOST = re.compile(r"timed out|Unable to contact|communication|connection|Zero Bytes", re.IGNORECASE)

_TASK = re.compile(r"(\d+)(?:_(\d+))?")


class TaskState(BaseModel):
    """The state that a scheduler reports for a job or an array task."""

    model_config = ConfigDict(frozen=True)

    state: str  # PENDING, RUNNING, TIMEOUT, ... as SLURM has them
    reason: str = ""  # why it waits, or has ended so
    over: bool = False  # it will not be started again

    def __str__(self) -> str:
        return f"{self.state} ({self.reason})" if self.reason else self.state


class Asked(NamedTuple):
    """A script and its resources, for schedulers that do not read them from the script."""

    name: str
    script: Path
    folder: Path
    output: Path
    walltime: timedelta
    nodes: int = 1
    processes: int = 1
    threads: int | None = None
    gpus: int | None = None
    partition: str | None = None
    account: str | None = None


class SchedulerError(RequestError):
    """A command of the scheduler has failed."""


class LostAnswer(SchedulerError):
    """The scheduler may or may not have accepted the job."""


def submit(asked: Asked) -> tuple[str, TaskState | None]:
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SBATCH_")
        or (name in _KEPT_VARIABLES and not (asked.account is not None and name == "SBATCH_ACCOUNT"))
    }
    done = answer(["sbatch", "--parsable", str(asked.script)], asked.folder, environ)
    if done.returncode == 0:
        number = done.stdout.strip().splitlines()[-1:] or [""]
        if re.fullmatch(r"\d+(;.*)?", number[0]):
            return number[0].partition(";")[0], None
        raise LostAnswer(f"sbatch has answered {done.stdout!r}, and no number of a job")
    said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
    # Refusals are "Batch job submission failed: REASON"; a time-out in the middle says nothing of the job.
    lost = done.returncode < 0 or _LOST.search(said)
    raise (LostAnswer if lost else SchedulerError)(said if said.startswith("sbatch") else f"sbatch: {said}")


def states(identities: Sequence[str]) -> dict[str, TaskState]:
    """The states of jobs, each ``NUMBER``, and of tasks of arrays, each ``NUMBER_TASK``.

    squeue also knows tasks that ended a short while ago; sacct knows older ones.

    Raises ``SchedulerError`` where the scheduler does not answer.
    """
    if not identities:
        return {}
    queued = squeue(list(dict.fromkeys(identity.partition("_")[0] for identity in identities)))
    if missing := [identity for identity in identities if identity not in queued]:
        for line in _accounted(f"--jobs={','.join(missing)}", "--format=JobID,State,ExitCode"):
            fields = line.split("|")
            if len(fields) == 3 and fields[1].strip():
                state = fields[1].split()[0].rstrip("+")
                reason = f"exit code {fields[2]}" if fields[2] not in ("", "0:0") else ""
                queued[fields[0].partition("_[")[0]] = TaskState(state=state, reason=reason, over=state in ENDED)
    # Tasks that were cancelled before they began are the array as a whole to squeue, and 12_[3-9] to sacct.
    arrays = {it: queued.get(it.partition("_")[0]) for it in missing if it not in queued}
    return queued | {it: state for it, state in arrays.items() if state is not None and state.over}


def squeue(numbers: Sequence[str]) -> dict[str, TaskState]:
    # With a single number that it does not know, squeue fails; with two, it leaves out what it does not know.
    asked = [*numbers, "1"] if len(numbers) == 1 else numbers
    command = ["squeue", f"--jobs={','.join(asked)}", "--states=all", "--array", "--noheader", "--format=%i|%T|%r"]
    states = {}
    for line in _output(command).splitlines():
        fields = [field.strip() for field in line.split("|", 2)]
        if len(fields) == 3 and _TASK.fullmatch(fields[0]):
            reason = "" if fields[2] in ("None", fields[1].title()) else fields[2]
            states[fields[0]] = TaskState(state=fields[1], reason=reason, over=fields[1] in ENDED)
    return states


def find(names: AbstractSet[str], *, in_accounting: bool = True) -> dict[str, str]:
    lines = _output(["squeue", f"--name={','.join(names)}", "--states=all", "--noheader", "--format=%F|%j"])
    pairs = [line.split("|", 1) for line in lines.splitlines() if "|" in line]
    numbers = {name.strip(): number.strip() for number, name in pairs if name.strip() in names}
    if in_accounting and (missing := names - numbers.keys()):
        options = [f"--name={','.join(missing)}", "--starttime=now-30days", "--format=JobID,JobName%200"]
        pairs = [line.split("|", 1) for line in _accounted(*options) if "|" in line]
        numbers |= {name: number.partition("_")[0] for number, name in pairs if name in missing}
    return numbers


def _accounted(*options: str) -> list[str]:
    try:
        return _output(["sacct", "--noheader", "--parsable2", "--allocations", *options]).splitlines()
    except SchedulerError:
        return []


@cache
def setting(name: str, default: int) -> int:
    """A number in SLURM's configuration, or the default if it is absent."""
    with contextlib.suppress(SchedulerError):
        pattern = rf"^{name}\s*=\s*(\d+)"
        if match := re.search(pattern, _output(["scontrol", "show", "config"]), re.MULTILINE):
            return int(match[1])
    return default


class NodeKind(NamedTuple):
    """Nodes of a partition that are alike. ``minutes``: the longest that a job may take."""

    minutes: float
    nodes: int
    cpus: int
    memory_mb: int
    gpus: int


def node_kinds() -> dict[str, list[NodeKind]]:
    """Node kinds by partition; ``""`` is the default partition. Raises ``SchedulerError``."""
    kinds: dict[str, list[NodeKind]] = {}
    for line in _output(["sinfo", "--noheader", "--exact", "--format=%P|%l|%D|%c|%m|%G"]).splitlines():
        name, limit, *numbers, gres = line.strip().split("|")
        nodes, cpus, memory = (int(re.match(r"\d+", number.strip())[0]) for number in numbers)  # type: ignore[index]
        gpus = sum(int(each) for each in re.findall(r"\bgpu(?::[A-Za-z_][^:,(]*)?:(\d+)", gres))
        kind = NodeKind(_minutes(limit), nodes, cpus, memory, gpus)
        for each in (name.rstrip("*"), *([""] if name.endswith("*") else [])):
            kinds.setdefault(each, []).append(kind)
    return kinds


def _minutes(limit: str) -> float:
    """Minutes of a limit such as ``1-00:30:00``; days and hours may be missing."""
    if not (match := re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit.strip())):
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60


def end_of(number: str) -> str | None:
    """How a running job is being ended; ``None`` if it goes on or is unknown."""
    with contextlib.suppress(SchedulerError):
        state = squeue([number]).get(number)
        if state is not None and state.state not in ("RUNNING", "SUSPENDED", "COMPLETED"):
            return f"job {number}: {state}"
    return None


#: Prefixes of states of nodes that take no jobs, see ``man sinfo``, NODE STATE CODES.
_NO_JOBS = ("down", "drain", "drng", "fail", "maint", "unk", "reboot", "power")


def nodes(partition: str | None, names: Sequence[str]) -> dict[str, str]:
    """States of the named nodes, or of a partition's (default: SLURM's default partition)."""
    chosen = [f"--partition={partition}"] if partition else []
    chosen += [f"--nodes={','.join(names)}"] if names else []
    lines = [line.split("|") for line in _output(["sinfo", "-h", "-N", *chosen, "--format=%N|%T|%P"]).splitlines()]
    return {name: state for name, state, of in lines if chosen or of.endswith("*")}


def takes_jobs(state: str) -> bool:
    """Whether a node in a state takes jobs; a star is for one that does not answer."""
    return not state.startswith(_NO_JOBS) and not state.endswith("*")


def cancel(identities: Sequence[str]) -> None:
    _output(["scancel", *identities])


def _output(command: Sequence[str]) -> str:
    done = answer(command)
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
        raise SchedulerError(said if said.startswith(command[0]) else f"{command[0]}: {said}")
    return done.stdout


def answer(
    command: Sequence[str], folder: Path | None = None, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Output of a process that Ctrl-C does not reach; an exception during the wait ends it."""
    lost: Callable[[str], SchedulerError] = LostAnswer if command[0] == "sbatch" else SchedulerError
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )
    except FileNotFoundError:
        raise SchedulerError(f"{command[0]} is not on the PATH of this host") from None
    except subprocess.TimeoutExpired:
        raise lost(f"{command[0]} has not answered for {_PATIENCE:g} s") from None
    except OSError as error:
        raise SchedulerError(f"{command[0]} cannot be started: {error}") from None
