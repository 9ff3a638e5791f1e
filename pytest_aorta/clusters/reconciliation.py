"""What has become of the jobs: the scheduler is asked once for all of them, and what has ended is settled."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_aorta.clusters import slurm
from pytest_aorta.clusters.configuration import Configuration
from pytest_aorta.clusters.jobs import Job, TaskState, read_jobs, submitted_units
from pytest_aorta.clusters.tables import Cluster
from pytest_aorta.settings import RequestError
from pytest_aorta.workspace.atomic import locked, write_text
from pytest_aorta.workspace.index.submitted import read_submitted

#: Settles a task that has ended: called once for each, before it counts as ended.
Settle = Callable[[Job, int, TaskState], None]

#: A task that no scheduler knows any more.
UNKNOWN = "UNKNOWN"


#: Seconds that the number of a job may take from the scheduler to the disk.
_NUMBER_WITHIN = 300.0


@dataclass(frozen=True)
class Reconciled:
    """All that is known now.

    Attributes:
        jobs: all, or only those that were open before.
        problems: why some of it may be out of date.
    """

    jobs: Sequence[Job]
    problems: Sequence[str]


def reconcile(
    index: Path, root: Path, settle: Settle, environ: Mapping[str, str] = os.environ, *, is_submitting: bool = False
) -> Reconciled:
    """Ask the schedulers for the states of the jobs that are open; those of another cluster stay as they are.

    Call it before the index is read: what a job has completed is on disk when it is no longer in the queue.

    Args:
        index: folder of the index.
        root: folder of the recipe.
        settle: for tasks that have ended.
        environ: by which clusters are recognised.
        is_submitting: whether no other process submits meanwhile; else young jobs without a number are left alone:
            the process that submits them may still wait for the answer of ``sbatch``.
    """
    # A process that was killed may have noted the end of the last job, and not that the scheduler has none any more.
    if not read_jobs(index, only_open=True) and not read_submitted(index):
        return Reconciled((), ())
    clusters = Configuration.of_project(root, environ).clusters
    problems: list[str] = []
    with locked(index):
        jobs = read_jobs(index, only_open=True)
        here = [job for job in jobs if job.plan.scheduler == "slurm" and _answers_here(job, clusters, environ)]
        try:
            latest = time.time() if is_submitting else time.time() - _NUMBER_WITHIN
            known = _confirmed([job for job in here if job.plan.created <= latest])
            here = [known.get(job.folder, job) for job in here]
            states = _states([job.states.number for job in here if job.states.number is not None])
        except RequestError as error:
            open_tasks = sum(not job.is_over(number) for job in here for number in range(len(job.plan.tasks)))
            problems.append(f"{error}; the states of {open_tasks} submitted jobs are those that were last known")
        else:
            updated = {job.folder: _updated(job, states, settle, problems) for job in here}
            jobs = [updated.get(job.folder, job) for job in jobs]
        write_submitted(index, jobs)
    return Reconciled(jobs, problems)


def write_submitted(index: Path, jobs: Iterable[Job]) -> None:
    """Say in the index what the scheduler has; hold its lock meanwhile. Where it is so already, nothing is written."""
    file, text = index / "submitted.json", json.dumps(submitted_units(jobs))
    with contextlib.suppress(OSError):
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            write_text(file, text)


def add_submitted(index: Path, job: Job) -> None:
    """Say in the index that the scheduler has, or may have, a job.

    Raises:
        OSError: it cannot be written.
    """
    with locked(index):
        known = {action: dict(units) for action, units in read_submitted(index).items()}
        for action, units in submitted_units([job]).items():
            known.setdefault(action, {}).update(units)
        write_text(index / "submitted.json", json.dumps(known))


def _answers_here(job: Job, clusters: Sequence[Cluster], environ: Mapping[str, str]) -> bool:
    """Whether the scheduler of this host is that of a job: its cluster is here, or cannot be recognised."""
    cluster = next((each for each in clusters if each.name == job.plan.cluster), None)
    return cluster is None or cluster.identify.by_environment is None or cluster.identify.matches(environ)


def _confirmed(jobs: Sequence[Job]) -> dict[Path, Job]:
    """Jobs whose answer was lost, looked up by their names; those that no scheduler knows were never submitted."""
    open_ones = {job.plan.name: job for job in jobs if job.states.number is None}
    if not open_ones:
        return {}
    found = slurm.squeue_names(open_ones.keys())
    if missing := open_ones.keys() - found.keys():
        found |= slurm.sacct_names(missing)
    confirmed = {}
    for name, job in open_ones.items():
        if name in found:
            states = job.states.model_copy(update={"number": found[name], "refused": None})
        else:
            # Should it come after all, it finds this file, and does nothing.
            forbid(job, range(len(job.plan.tasks)))
            states = job.states.model_copy(update={"refused": "the scheduler does not have it"})
        confirmed[job.folder] = job.with_states(states)
        _note_end(confirmed[job.folder])
    return confirmed


def _states(numbers: Sequence[str]) -> dict[str, TaskState]:
    """By ``NUMBER`` or ``NUMBER_TASK``; tasks that the queue has forgotten are those of the accounting."""
    if not numbers:
        return {}
    found = slurm.squeue(numbers)
    known = {identity.partition("_")[0] for identity in found}
    missing = [number for number in numbers if number not in known]
    return {**slurm.sacct(missing), **found} if missing else found


def _updated(job: Job, states: Mapping[str, TaskState], settle: Settle, problems: list[str]) -> Job:
    if not job.is_open or job.states.number is None:
        return job
    tasks = dict(job.states.tasks)
    for number in range(len(job.plan.tasks)):
        if job.is_over(number):
            continue
        state = states.get(job.identity(number))
        if state is None:
            state = TaskState(state=UNKNOWN, reason="no scheduler knows it any more", over=True)
        if state.state == "FAILED" and (job.folder / f"stopped-{number}").exists():
            state = TaskState(state="TIMEOUT", reason="ended in order before its time limit", over=True)
        if state.over:
            try:
                forbid(job, [number])
                settle(job, number, state)
            except (OSError, RequestError) as error:  # it is tried again the next time
                problems.append(f"job {job.identity(number)} has ended ({state.state}), but: {error}")
                state = state.model_copy(update={"over": False})
        tasks[number] = state
    if tasks == dict(job.states.tasks):
        return job
    job = job.with_states(job.states.model_copy(update={"tasks": tasks}))
    _note_end(job)
    return job


def forbid(job: Job, tasks: Iterable[int]) -> None:
    """Have tasks do nothing if they begin from now on."""
    for task in tasks:
        (job.folder / f"over-{task}").touch()


def _note_end(job: Job) -> None:
    if not job.is_open:
        (job.folder / "over").touch()
