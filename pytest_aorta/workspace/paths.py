"""Where a trial's file and artifacts lie below the results directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from pytest_aorta.trials.names import identifier

HISTORY = ".history"

#: What pytest processes that run the same trials together are.
PartKind = Literal["rank", "node"]


@dataclass(frozen=True)
class TrialPaths:
    """Paths of one trial, relative to the results directory: ``file`` and the artifacts folder beside it."""

    file: PurePosixPath

    @property
    def folder(self) -> PurePosixPath:
        """The artifacts folder, with the file's stem."""
        return self.file.with_suffix("")

    def folder_of(self, rank: int, kind: PartKind = "rank") -> PurePosixPath:
        """The artifacts folder of a rank, or node, that is a pytest process itself: number 0 has the trial's own."""
        return self.folder if rank == 0 else self.folder.with_name(f"{self.folder.name}.{kind}_{rank}")

    def file_in(self, results: Path) -> Path:
        """Path of the trial file."""
        return results / self.file

    def folder_in(self, results: Path, rank: int = 0, kind: PartKind = "rank") -> Path:
        """Path of the artifacts folder."""
        return results / self.folder_of(rank, kind)


def trial_paths(group: str, subgroup: str | None, trial_index: int) -> TrialPaths:
    """``<group>/trial_<T>.json``, or ``<group>/<subgroup>/trial_<T>.json``.

    A plan's trials are grouped by workload, and by cell where the workload has several; the trials that a test starts
    by the test, and by workload.
    """
    folder = PurePosixPath(identifier(group))
    if subgroup is not None:
        folder /= identifier(subgroup)
    return TrialPaths(folder / f"trial_{trial_index}.json")
