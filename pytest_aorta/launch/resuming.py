"""``--aorta-resume``: which trials need not be run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.launch.replayed import ReplayedTrial
from pytest_aorta.workspace.resume import move_flat_files, read_kept

if TYPE_CHECKING:
    from pytest_aorta.launch.workload_info import PreparedCell
    from pytest_aorta.plan import Plan
    from pytest_aorta.trials.spec import TrialSpec


def kept_trial(spec: TrialSpec, file: Path, check: Callable[[TrialSpec], PreparedCell | None]) -> ReplayedTrial | None:
    """A trial's result in ``file``, where that is of this very request; else ``None``.

    ``check`` prepares the trial's cell, and is asked only when there is a result at all.
    """
    record = read_kept(file)
    if record is None:
        return None
    try:
        checked = check(spec)
    except Exception:
        return None  # the trial will say so itself
    if checked is None or checked.fingerprint(spec) != record.request_fingerprint:
        return None
    return ReplayedTrial(spec, record)


def move_what_has_grown(plans: Iterable[Plan], results: Path) -> None:
    """Results of workloads that had one cell, and have several now, move into the folders of their cells."""
    for plan in plans:
        for workload, cells in plan.cells.items():
            if len(cells) > 1:
                move_flat_files(results, workload)
