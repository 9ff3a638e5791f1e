"""Earlier results are moved aside, never overwritten."""

from __future__ import annotations

import contextlib
import datetime
import glob
import os
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from pytest_aorta.workspace.paths import HISTORY, PartKind, TrialPaths


def stamp() -> str:
    """A run's folder name below ``.history``: UTC time with microseconds, sortable."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")


def retire(results: Path, paths: TrialPaths, run: str, rank: int | None = None, kind: PartKind = "rank") -> None:
    """Move a trial's file and artifacts to ``.history/<run>/``, where there are any.

    The file is moved first: what is left does not look like a result then.

    Args:
        results: the results directory.
        place: of the trial.
        run: name of this run in the history.
        rank: of this process, where each rank is a pytest process: it moves the artifacts of this rank, and rank 0 the
            file as well; ``None`` moves everything.
        kind: ``node`` where the processes are nodes.
    """
    parts = [paths.file, paths.folder] if not rank else [paths.folder_of(rank, kind)]
    if rank is None:
        name, folder = glob.escape(paths.folder.name), results / paths.folder.parent
        others = [*folder.glob(f"{name}.rank_*"), *folder.glob(f"{name}.node_*")]
        parts += [PurePosixPath(path.relative_to(results).as_posix()) for path in sorted(others)]
    for part in parts:
        source = results / part
        if os.path.lexists(source):
            target = _free(results / HISTORY / run / part)
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                source.rename(target)


def _free(path: Path) -> Path:
    """``path``, or the first of ``path~1``, ``path~2``, ... that is not there (a trial that ran twice in one run)."""
    candidate, number = path, 0
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}~{number}")
    return candidate


def retire_others(results: Path, workloads: Collection[str], kept: Collection[TrialPaths], run: str) -> None:
    """Move what a complete run of ``workloads`` no longer holds to ``.history/<run>/``."""
    files = {paths.file for paths in kept}
    for workload in workloads:
        for paths in list(_trials(results, workload)):
            if paths.file not in files:
                retire(results, paths, run)
                with contextlib.suppress(OSError):
                    (results / paths.file).parent.rmdir()  # only when it is empty


def _trials(results: Path, workload: str) -> Iterator[TrialPaths]:
    for path in sorted((results / workload).glob("trial_*.json")) + sorted((results / workload).glob("*/trial_*.json")):
        yield TrialPaths(PurePosixPath(path.relative_to(results).as_posix()))
