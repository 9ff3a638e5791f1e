"""The schedulers for jobs, behind one protocol of four methods."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Protocol

from pytest_aorta.runtime.process_tree import send_signal, tree
from pytest_aorta.settings import RequestError
from pytest_aorta.workflow import slurm
from pytest_aorta.workflow.slurm import Asked, LostAnswer, SchedulerError, TaskState


class Scheduler(Protocol):
    """The protocol; the module ``slurm`` implements it.

    Methods raise ``SchedulerError`` for a refusal or no answer, and ``LostAnswer`` if the job may exist nevertheless.
    """

    def submit(self, asked: Asked) -> tuple[str, TaskState | None]:
        """Submit; the number of the new job, and its end if it has ended."""

    def states(self, identities: Sequence[str]) -> dict[str, TaskState]:
        """States by number of jobs and array tasks (``NUMBER_TASK``), without unknown ones."""

    def cancel(self, identities: Sequence[str]) -> None: ...

    def find(self, names: AbstractSet[str], *, in_accounting: bool = True) -> dict[str, str]:
        """Numbers of jobs by their (unique) names."""


def scheduler_of(name: str) -> Scheduler:
    if name.startswith(PSIJ):
        kind = name.removeprefix(PSIJ)
        return _PsijLocal(kind) if kind == "local" else _Psij(kind)
    return slurm if name == "slurm" else _Bash()


class _Bash:
    """Runs each job at once, in the foreground. A killed job leaves no trace."""

    def submit(self, asked: Asked) -> tuple[str, TaskState | None]:
        process = subprocess.Popen(
            ["/bin/bash", str(asked.script)], cwd=asked.folder, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        reason = f"exit status {process.returncode}" if process.returncode else ""
        return str(process.pid), TaskState(state="FAILED" if reason else "COMPLETED", reason=reason, over=True)

    def states(self, identities: Sequence[str]) -> dict[str, TaskState]:
        return {}

    def cancel(self, identities: Sequence[str]) -> None: ...

    def find(self, names: AbstractSet[str], *, in_accounting: bool = True) -> dict[str, str]:
        return {}


#: Prefix of the names of PSI/J's schedulers, https://exaworks.org/psij-python.
PSIJ = "psij:"

#: A job that has ended; the scheduler does not say how.
GONE = TaskState(state="COMPLETED", reason="it has left the queue", over=True)

#: Its states in the words of SLURM.
_STATES = {
    "NEW": "PENDING",
    "QUEUED": "PENDING",
    "ACTIVE": "RUNNING",
    "COMPLETED": "COMPLETED",
    "FAILED": "FAILED",
    "CANCELED": "CANCELLED",
}


class _Psij:
    """Any batch scheduler of PSI/J, for single jobs.

    Its own watch over jobs ends with the process, and takes a scheduler that does not answer for the end of all jobs:
    so this class runs the commands of its executors and interprets the answers itself. PSI/J does not look
    for jobs by their names, so a job whose answer was lost is one that the scheduler does not have.
    """

    def __init__(self, kind: str) -> None:
        try:
            import psij
            from psij.executors.batch.batch_scheduler_executor import BatchSchedulerExecutor
        except ImportError:
            raise RequestError(f"scheduler {PSIJ}{kind} needs psij-python: pip install 'pytest-aorta[psij]'") from None
        known = sorted(psij.JobExecutor.get_executor_names())
        if kind not in known:
            raise RequestError(f"scheduler {PSIJ}{kind}: PSI/J has {', '.join(known)}")
        self._psij: Any = psij
        self._executor: Any = psij.JobExecutor.get_instance(kind)
        if not isinstance(self._executor, BatchSchedulerExecutor) and kind != "local":
            raise RequestError(f"scheduler {PSIJ}{kind} is no batch scheduler, which can be asked for jobs later")

    def submit(self, asked: Asked) -> tuple[str, TaskState | None]:
        psij = self._psij
        spec = psij.JobSpec(
            executable="/bin/bash",
            arguments=[str(asked.script)],
            directory=asked.folder,
            name=asked.name,
            stdout_path=asked.output,
            stderr_path=asked.output,
            resources=psij.ResourceSpecV1(
                node_count=asked.nodes,
                processes_per_node=-(-asked.processes // asked.nodes),
                cpu_cores_per_process=asked.threads,
                gpu_cores_per_process=asked.gpus,
            ),
            attributes=psij.JobAttributes(asked.walltime, queue_name=asked.partition, account=asked.account),
            launcher="single",
        )
        job = psij.Job(spec)
        try:
            self._executor.submit(job)
        except psij.SubmitException as error:
            raise SchedulerError(f"{self._executor.name}: {error}") from None
        if not job.native_id:
            raise LostAnswer(f"{self._executor.name} has given no number of the job")
        return str(job.native_id), None

    def states(self, identities: Sequence[str]) -> dict[str, TaskState]:
        if not identities:
            return {}
        done = slurm.answer([str(word) for word in self._executor.get_status_command(list(identities))])
        try:
            statuses = self._executor.parse_status_output(done.returncode, done.stdout)
        except Exception as error:  # whatever an executor makes of an answer that is none
            said = done.stderr.strip() or str(error)
            raise SchedulerError(f"{self._executor.name} does not say what becomes of jobs: {said}") from None
        states = {}
        for identity, status in statuses.items():
            word = status.state.name
            states[str(identity)] = TaskState(
                state=_STATES.get(word, word), reason=status.message or "", over=bool(status.state.final)
            )
        return {identity: states.get(identity, GONE) for identity in identities}

    def cancel(self, identities: Sequence[str]) -> None:
        for identity in identities:
            done = slurm.answer([str(word) for word in self._executor.get_cancel_command(identity)])
            if done.returncode != 0:
                raise SchedulerError(f"{self._executor.name}: {done.stderr.strip() or done.stdout.strip()}")

    def find(self, names: AbstractSet[str], *, in_accounting: bool = True) -> dict[str, str]:
        return {}


class _PsijLocal(_Psij):
    """Processes of this host, which go on when the one that has submitted them has ended.

    The number of a job is the pid of its process and its start time, because pids are reused.
    """

    def submit(self, asked: Asked) -> tuple[str, TaskState | None]:
        pid, _ = super().submit(asked)
        return f"{pid}.{_began(int(pid))}", None

    def states(self, identities: Sequence[str]) -> dict[str, TaskState]:
        return {it: GONE if _process(it) is None else TaskState(state="RUNNING") for it in identities}

    def cancel(self, identities: Sequence[str]) -> None:
        send_signal(tree(filter(None, map(_process, identities))), signal.SIGTERM)


def _process(identity: str) -> int | None:
    pid, _, began = identity.partition(".")
    return int(pid) if pid.isdigit() and began and _began(int(pid)) == began else None


def _began(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot; ``None`` if it has ended."""
    with contextlib.suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state == "Z" else fields[18]
    return None
