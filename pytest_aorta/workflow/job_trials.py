"""Trials of a submitted job: those that it has started itself, and those of the jobs that run beside it."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pytest_aorta.plan import Plan, Selection, unit_of
from pytest_aorta.triage.facts import TrialFacts, facts_of
from pytest_aorta.trials.spec import TrialSpec
from pytest_aorta.workflow.jobs import JOB_VARIABLE, TASK_VARIABLE, Job, log_of, read_jobs
from pytest_aorta.workflow.known import Workspace
from pytest_aorta.workflow.requests import request_digest, trial_completion


class StartedTrials:
    """Notes in the log of a job's task which trials the task starts; a restarted job reads them."""

    def __init__(self) -> None:
        folder, task = os.environ.get(JOB_VARIABLE), os.environ.get(TASK_VARIABLE, "0")
        is_first = os.environ.get("SLURM_PROCID", "0") == "0"  # of the nodes that a trial needs
        self._file = Path(folder, log_of(int(task))) if folder is not None and is_first else None
        #: How often each line is there.
        self._before: Counter[str] = Counter()
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._before.update(self._file.read_text(encoding="utf-8", errors="replace").splitlines())

    def times(self, unit: str) -> int:
        """How often this job started a trial before the job itself was restarted."""
        return self._before[f"started {json.dumps(unit)}"]

    def note(self, unit: str) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"started {json.dumps(unit)}\n")


class TrialsBeside:
    """Yields trials of this action that other jobs started or finished since the last call, in the order of the plan.

    A finished trial comes with its facts, a running one with ``None``. Trials that an ended job has left running are
    lost, and do not come.
    """

    def __init__(
        self, plan: Plan, results: Path, selection: Selection, workspace: Workspace, job: Job, task: int
    ) -> None:
        self._results, self._selection, self._workspace = results, selection, workspace
        own = frozenset(job.tasks[task].units)
        self._files = {plan.paths(spec).file_in(results): spec for spec in plan.trials if unit_of(spec) not in own}
        self._digests: dict[str, str] = {}
        jobs = read_jobs(job.folder.parents[1], only_open=True)
        self._beside = [each for each in jobs if each.action == job.action]
        #: Trial file to its number in the file system, which changes when the file is written again.
        self._seen: dict[Path, int] = {}
        self._begun: set[str] = set()

    def __call__(self) -> Iterator[tuple[TrialSpec, TrialFacts | None]]:
        tasks = ((job, number) for job in self._beside for number in range(len(job.tasks)))
        begun = {json.loads(line) for job, number in tasks for line in job.noted("started", number)}
        there: dict[Path, int] = {}
        for folder in {file.parent for file in self._files}:
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:  # else it has no finished trial
                there.update({folder / entry.name: entry.inode() for entry in entries})
        for file, spec in self._files.items():
            if file in there and there[file] != self._seen.get(file):
                self._seen[file] = there[file]
                if (facts := self._facts(file, spec)) is not None:
                    yield spec, facts
                    continue
            if (unit := unit_of(spec)) in begun and unit not in self._begun:
                self._begun.add(unit)
                yield spec, None

    def _facts(self, file: Path, spec: TrialSpec) -> TrialFacts | None:
        """Facts of a record, if it is of the request and the code as they are now."""
        try:
            record = json.loads(file.read_bytes())
            completion = trial_completion(record)
            if completion is None or completion[0] != unit_of(spec) or record["started_at"] < self._selection.since:
                return None
            request = completion[2]
            if spec.cell not in self._digests:
                self._digests[spec.cell] = request_digest(spec)
            if request.digest != self._digests[spec.cell] or self._workspace.have_changed(request.sources):
                return None
            below = str(file.relative_to(self._results))
            return facts_of(record, below, self._selection.triage.signatures)
        except (OSError, ValueError, TypeError, KeyError):
            return None
