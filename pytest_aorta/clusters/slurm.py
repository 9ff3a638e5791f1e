"""The commands of SLURM: what they are asked, and what their answers mean."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from pytest_aorta.clusters.jobs import TaskState
from pytest_aorta.settings import RequestError

#: Seconds that an answer may take.
_PATIENCE = 120.0

#: Variables that sbatch takes options from, and that a user may have set for the jobs of a project. All others of
#: ``SBATCH_*`` would overrule what the script says.
_KEPT_VARIABLES = ("SBATCH_ACCOUNT", "SBATCH_QOS", "SBATCH_RESERVATION", "SBATCH_CONSTRAINT", "SBATCH_CLUSTERS")

#: States in which a job has ended, see ``man squeue``, JOB STATE CODES.
ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "REVOKED",
        "SPECIAL_EXIT",
        "TIMEOUT",
    ]
)

#: What sbatch says when it cannot say whether the job is there.
_LOST = re.compile(r"timed out|Unable to contact|communication|connection|Zero Bytes", re.IGNORECASE)

_TASK = re.compile(r"(\d+)(?:_(\d+))?")


class SchedulerError(RequestError):
    """A command of the scheduler has failed."""


class LostAnswer(SchedulerError):
    """Whether the scheduler has the job is not known."""


def sbatch(script: Path, folder: Path, has_account: bool, *, is_test: bool = False) -> str:
    """Submit a script from a folder; the number of the job.

    The process is out of reach of Ctrl-C. It is ended when an exception ends the wait.

    Raises:
        SchedulerError: the scheduler has refused it.
        LostAnswer: there is no answer, or none that says whether it has.
    """
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SBATCH_")
        or (name in _KEPT_VARIABLES and not (has_account and name == "SBATCH_ACCOUNT"))
    }
    command = ["sbatch", *(["--test-only"] if is_test else ["--parsable"]), str(script)]
    done = _answer(command, folder, environ)
    if done.returncode == 0 and is_test:
        return ""
    if done.returncode == 0:
        number = done.stdout.strip().splitlines()[-1:] or [""]
        if re.fullmatch(r"\d+(;.*)?", number[0]):
            return number[0].partition(";")[0]
        raise LostAnswer(f"sbatch has answered {done.stdout!r}, and no number of a job")
    said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
    # Refusals are "Batch job submission failed: REASON"; a time-out in the middle says nothing of the job.
    lost = done.returncode < 0 or _LOST.search(said)
    raise (LostAnswer if lost else SchedulerError)(said if said.startswith("sbatch") else f"sbatch: {said}")


def squeue(numbers: Collection[str]) -> dict[str, TaskState]:
    """The states of these jobs, by ``NUMBER`` or ``NUMBER_TASK``, also of those that have ended a short while ago.

    Raises:
        SchedulerError: the scheduler does not answer.
    """
    # With a single number that it does not know, squeue fails; with two, it leaves out what it does not know.
    asked = [*numbers, "1"] if len(numbers) == 1 else [*numbers]
    return _states(["squeue", f"--jobs={','.join(asked)}"])


def squeue_names(names: Collection[str]) -> dict[str, str]:
    """Which of these names jobs have, with the numbers of the jobs.

    Raises:
        SchedulerError: the scheduler does not answer.
    """
    command = ["squeue", f"--name={','.join(names)}", "--states=all", "--noheader", "--format=%F|%j"]
    found = (line.split("|", 1) for line in _output(command).splitlines() if "|" in line)
    return {name.strip(): number.strip() for number, name in found if name.strip() in names}


def sacct(numbers: Collection[str]) -> dict[str, TaskState]:
    """The same as ``squeue`` from the accounting, which knows jobs for a long time; empty where there is none."""
    command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(numbers)}"]
    try:
        lines = _output([*command, "--format=JobID,State,ExitCode"]).splitlines()
    except SchedulerError:
        return {}
    found = {}
    for line in lines:
        fields = line.split("|")
        if len(fields) == 3 and fields[1].strip():
            state = fields[1].split()[0].rstrip("+")
            reason = f"exit code {fields[2]}" if fields[2] not in ("", "0:0") else ""
            found[fields[0]] = TaskState(state=state, reason=reason, over=state in ENDED)
    return found


def sacct_names(names: Collection[str]) -> dict[str, str]:
    """The same as ``squeue_names`` from the accounting; empty where there is none."""
    command = [
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        f"--name={','.join(names)}",
        "--starttime=now-30days",
    ]
    try:
        lines = _output([*command, "--format=JobID,JobName%200"]).splitlines()
    except SchedulerError:
        return {}
    found = (line.split("|", 1) for line in lines if "|" in line)
    return {name: number.partition("_")[0] for number, name in found if name in names}


def scancel(numbers: Sequence[str]) -> None:
    """End jobs, or tasks of arrays.

    Raises:
        SchedulerError: the scheduler has refused.
    """
    _output(["scancel", *numbers])


def _states(command: Sequence[str]) -> dict[str, TaskState]:
    found = {}
    lines = _output([*command, "--states=all", "--array", "--noheader", "--format=%i|%T|%r"]).splitlines()
    for line in lines:
        fields = [field.strip() for field in line.split("|", 2)]
        if len(fields) == 3 and _TASK.fullmatch(fields[0]):
            reason = "" if fields[2] in ("None", fields[1].title()) else fields[2]
            found[fields[0]] = TaskState(state=fields[1], reason=reason, over=fields[1] in ENDED)
    return found


def _output(command: Sequence[str]) -> str:
    done = _answer(command, None, None)
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
        raise SchedulerError(said if said.startswith(command[0]) else f"{command[0]}: {said}")
    return done.stdout


def _answer(
    command: Sequence[str], folder: Path | None, environ: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
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
            preexec_fn=_ignore_interrupts,
        )
    except FileNotFoundError:
        raise SchedulerError(f"{command[0]} is not on the PATH of this host") from None
    except subprocess.TimeoutExpired:
        raise lost(f"{command[0]} has not answered for {_PATIENCE:g} s") from None
    except OSError as error:
        raise SchedulerError(f"{command[0]} cannot be started: {error}") from None


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
