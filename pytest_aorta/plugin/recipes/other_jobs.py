"""The trials of the other jobs of an action, so that each job decides with those of all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from pytest_aorta.plan import unit_of
from pytest_aorta.plugin.run import Run
from pytest_aorta.triage.facts import TrialFacts, facts_of
from pytest_aorta.trials.spec import TrialSpec
from pytest_aorta.workflow.jobs import Job, read_job, read_jobs
from pytest_aorta.workflow.known import Workspace
from pytest_aorta.workflow.requests import request_digest, trial_completion
from pytest_aorta.workflow.scripts import JOB_VARIABLE, TASK_VARIABLE


class OtherTrials:
    """Called for what is new of the trials of an action that are not those of this task of this job.

    Gives, in the order of the plan, trials that are over, with their facts, and those that run, with ``None``: those of
    jobs that run beside this one. What a job before this one has left running is lost.
    """

    def __init__(self, run: Run, workspace: Workspace, job: Job, task: int) -> None:
        self._run = run
        self._workspace = workspace
        self._job = job
        self._own = frozenset(job.tasks[task].units)
        self._digests: dict[str, str] = {}
        #: Trial file to its number in the file system, which is another one when it is written again.
        self._seen: dict[Path, int] = {}
        self._begun: set[str] = set()

    @cached_property
    def _files(self) -> dict[Path, TrialSpec]:
        plan = self._run.plan
        others = (spec for spec in plan.trials if unit_of(spec) not in self._own)
        return {plan.paths(spec).file_in(self._run.results): spec for spec in others}

    @cached_property
    def _beside(self) -> list[Job]:
        jobs = read_jobs(self._job.folder.parents[1], only_open=True)
        return [job for job in jobs if job.action == self._job.action]

    def __call__(self) -> Iterator[tuple[TrialSpec, TrialFacts | None]]:
        tasks = ((job, number) for job in self._beside for number in range(len(job.tasks)))
        begun = {json.loads(line) for job, number in tasks for line in job.noted("started", number)}
        there = self._numbers()
        for file, spec in self._files.items():
            if file in there and there[file] != self._seen.get(file):
                self._seen[file] = there[file]
                if (facts := self._facts(file, spec)) is not None:
                    yield spec, facts
                    continue
            if (unit := unit_of(spec)) in begun and unit not in self._begun:
                self._begun.add(unit)
                yield spec, None

    def _numbers(self) -> dict[Path, int]:
        found: dict[Path, int] = {}
        for folder in {file.parent for file in self._files}:
            try:
                with os.scandir(folder) as entries:
                    found.update({folder / entry.name: entry.inode() for entry in entries})
            except FileNotFoundError:
                continue  # no trial of this cell is over
        return found

    def _facts(self, file: Path, spec: TrialSpec) -> TrialFacts | None:
        """Of a record of what is asked for now, by the code as it is now."""
        try:
            record = json.loads(file.read_bytes())
            found = trial_completion(record)
            if found is None or found[0] != unit_of(spec):
                return None
            request = found[2]
            if spec.cell not in self._digests:
                self._digests[spec.cell] = request_digest(spec)
            if request.digest != self._digests[spec.cell] or self._workspace.have_changed(request.sources):
                return None
            below = str(file.relative_to(self._run.results))
            return facts_of(record, below, self._run.selection.triage.signatures)
        except (OSError, ValueError, TypeError, KeyError):
            return None


def other_trials(run: Run, workspace: Workspace, environ: Mapping[str, str] = os.environ) -> OtherTrials | None:
    """``None`` where this process is no job of the action."""
    folder = environ.get(JOB_VARIABLE)
    job = read_job(Path(folder)) if folder is not None else None
    return None if job is None else OtherTrials(run, workspace, job, int(environ.get(TASK_VARIABLE, "0")))
