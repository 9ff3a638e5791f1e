"""matrix.json and matrix.md in the results directory: written again while trials go on, and at the end."""

from __future__ import annotations

import datetime
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.matrix import MATRIX_JSON, MATRIX_MD, RunState, markdown, matrix_json
from pytest_aorta.workspace.atomic import remove_abandoned, write_text
from pytest_aorta.workspace.history import keep

if TYPE_CHECKING:
    from pytest_aorta.plan import Plan
    from pytest_aorta.triage.verdicts import Table, Triage
    from pytest_aorta.workspace.trial_store import TrialStore

#: Shortest time between two writes, in seconds.
_SHORTEST = 0.5

#: Part of the time since the run began that may go into writing.
_SHARE = 0.01

#: What the first write is expected to take, in seconds.
_FIRST = 0.005


class MatrixWriter:
    """Writes the matrix of a run, of all trials that are over.

    Args:
        triage: is asked for the table.
        store: of the results.
        folder: where the matrix goes, the results directory or one below it.
        plans: of the run; more may be added.
        clock: seconds.
    """

    def __init__(
        self,
        triage: Triage,
        store: TrialStore,
        folder: Path,
        plans: Sequence[Plan],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._triage = triage
        self._store = store
        self._folder = folder
        self._plans = plans
        self._planned: dict[CellKey, int] = {}
        self._plans_counted = 0
        self._clock = clock
        self._has_written = False
        self._started_at = _now()
        self._begun = self._last_end = clock()
        self._spent, self._expected = 0.0, _FIRST
        #: Why the files could not be written, the last time.
        self.error: str | None = None

    def trial_is_over(self) -> None:
        """Write, unless that was done just now or would take more than its share of the time."""
        now = self._clock()
        if now - self._last_end < _SHORTEST or self._spent + self._expected > _SHARE * (now - self._begun):
            return
        table = self._triage.table(running=True)
        if not self._has_written:
            now = self._clock()  # what the statistics import, the table at the end needs as well
        self._write(table, complete=False)
        self._last_end = self._clock()
        self._expected = self._last_end - now
        self._spent += self._expected

    def finish(self, table: Table, interrupted: str | None) -> None:
        """Write for the last time, and append to the summary of a step of GitHub's where there is one.

        Args:
            table: as it is shown at the end.
            interrupted: what has ended the run before its time.
        """
        text = self._write(table, complete=interrupted is None, interrupted=interrupted)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            from pytest_aorta.plugin.outputs.step_summary import append

            try:
                append(Path(summary), text)
            except OSError as error:
                self.error = f"GITHUB_STEP_SUMMARY: {error}"

    def _write(self, table: Table, *, complete: bool, interrupted: str | None = None) -> str:
        """Write both files; the Markdown."""
        state = RunState(
            plan=", ".join(plan.digest for plan in self._plans) or None,
            planned=self._count_planned(),
            started_at=self._started_at,
            written_at=_now(),
            complete=complete,
            interrupted=interrupted,
        )
        text = markdown(table, state)
        try:
            if not self._has_written:
                self._has_written = True
                self._make_room()
            write_text(self._folder / MATRIX_JSON, matrix_json(table, state))
            write_text(self._folder / MATRIX_MD, text)
            self.error = None
        except OSError as error:
            self.error = f"{self._folder / MATRIX_JSON}: {error}"
        return text

    def _make_room(self) -> None:
        """Keep the matrix of an earlier run, with the trials that this one has moved to the history.

        A resumed run that has moved none has the trials of the earlier one, and its own matrix says more of them.
        """
        for name in (MATRIX_JSON, MATRIX_MD):
            for temporary in self._folder.glob(f".{name}.*.tmp"):
                remove_abandoned(temporary)
        results = self._store.results
        names = [PurePosixPath((self._folder / name).relative_to(results)) for name in (MATRIX_JSON, MATRIX_MD)]
        keep(results, names, self._store.stamp, even_alone=not self._store.resume and self._folder == results)

    def _count_planned(self) -> dict[CellKey, int]:
        if self._plans_counted != len(self._plans):
            self._plans_counted = len(self._plans)
            self._planned = planned_trials(self._plans)
        return self._planned


def planned_trials(plans: Iterable[Plan]) -> dict[CellKey, int]:
    """The trials of each cell."""
    return Counter(CellKey(spec.workload.name, spec.cell) for plan in plans for spec in plan.trials)


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
