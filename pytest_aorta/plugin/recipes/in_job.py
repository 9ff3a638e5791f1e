"""What a pytest that runs as a job of ours notes beside what any other does."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from pytest_aorta.clusters.scripts import JOB_VARIABLE, TASK_VARIABLE

#: How often a job that is started again may start a trial that has never left a record.
MAXIMUM_STARTS = 3


def is_in_job(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a job of ours: it runs what it is given, and submits nothing."""
    return JOB_VARIABLE in environ


class StartedTrials:
    """The trials that a job has started; a requeued one knows those of its earlier times.

    Args:
        environ: of this process.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        folder, task = environ.get(JOB_VARIABLE), environ.get(TASK_VARIABLE, "0")
        is_first = environ.get("SLURM_PROCID", "0") == "0"  # of the nodes that a trial needs
        self._file = Path(folder, f"started-{task}") if folder is not None and is_first else None
        self._counts: dict[str, int] | None = None

    def has_too_many(self, action: str, unit: str) -> str | None:
        """Why a trial that has left no record is not started once more; ``None`` where it may be.

        Args:
            action: of the recipe.
            unit: the trial.
        """
        if self._file is None:
            return None
        if self._counts is None:
            self._counts = {}
            for line in self._lines():
                self._counts[line] = self._counts.get(line, 0) + 1
        count = self._counts.get(json.dumps(unit), 0)
        if count < MAXIMUM_STARTS:
            return None
        return f"{action}: started {count} times by this job, which it has taken along each time"

    def note(self, unit: str) -> None:
        """A trial is about to start."""
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(unit) + "\n")

    def _lines(self) -> list[str]:
        assert self._file is not None
        try:
            return self._file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
