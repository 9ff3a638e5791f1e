"""Where a trial's file and artifacts lie below the results directory."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from pytest_aorta.common.texts import identifier

HISTORY = ".history"

#: Folder of the results of replays, and node id of their collector.
REPLAY = "replay"

#: The role of a pytest process among several that run the same trials.
PartKind = Literal["rank", "node"]

_REPEAT = re.compile(r"trial_\d+\.repeat_(\d+)\.json")


@dataclass(frozen=True)
class TrialPaths:
    """Paths of one trial, relative to the results directory: ``file`` and the artifacts folder beside it.

    ``cell``: cell of the trial, where its folder does not tell; files of another cell may lie there.
    """

    file: PurePosixPath
    cell: str | None = field(default=None, compare=False)

    @property
    def folder(self) -> PurePosixPath:
        """The artifacts folder, with the file's stem."""
        return self.file.with_suffix("")

    @property
    def repeat(self) -> int:
        """Which repeat of the trial in one run this is; 0 for the trial itself."""
        match = _REPEAT.fullmatch(self.file.name)
        return int(match[1]) if match else 0

    def repeated(self, number: int) -> TrialPaths:
        """Paths of the trial's repeat ``number``: ``trial_<T>.repeat_<N>.json``; 0 is the trial itself."""
        return replace(self, file=self.file.with_name(f"{self.file.stem}.repeat_{number}.json")) if number else self

    def file_in(self, results: Path) -> Path:
        return results / self.file

    def folder_in(self, results: Path, rank: int = 0, kind: PartKind = "rank") -> Path:
        name = self.folder.name if rank == 0 else f"{self.folder.name}.{kind}_{rank}"
        return results / self.folder.with_name(name)


def time_of_run(stamp: str) -> str:
    """When a run began that is so called below ``.history``, as the start of a trial has it, to the millisecond."""
    return f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[9:11]}:{stamp[11:13]}:{stamp[13:19]}"


def trial_paths(workload: str, cell: str | None, trial_index: int) -> TrialPaths:
    """``<workload>/trial_<T>.json``, or ``<workload>/<cell>/trial_<T>.json``."""
    folder = PurePosixPath(identifier(workload))
    if cell is not None:
        folder /= identifier(cell)
    return TrialPaths(folder / f"trial_{trial_index}.json")


def paths_in_test(node_id: str, workload: str, cell: str, number: int) -> TrialPaths:
    """``<test>/<workload>@<cell>/trial_<N>.json``: a test's trial ``number`` of this cell."""
    name = f"{identifier(workload)}@{identifier(cell)}"
    if len(name) > _LIMIT:
        name = f"{name[:_LIMIT]}~{_digest(name)}"
    return TrialPaths(PurePosixPath(folder_of_test(node_id), name, f"trial_{number}.json"))


#: Longest name without a digest; file systems allow 255 bytes for a name.
_LIMIT = 160

#: Node ids that can be read back from the name of their folder: what takes the place of separators is not in any part.
_PLAIN = re.compile(
    r"""
    (?P<file>\w[\w+=-]*(?:/\w[\w+=-]*)*\.py)
    ::(?P<names>\w+(?:::\w+)*)
    (?:\[(?P<parameters>[\w.+=-]+)\])?
    """,
    re.ASCII | re.VERBOSE,
)


def folder_of_test(node_id: str) -> str:
    """``tests.test_it.py@TestIt.test_one@1-a`` for ``tests/test_it.py::TestIt::test_one[1-a]``.

    Different for different node ids: one that cannot be read back from it, or is long, has a digest at its end. No
    workload's folder has an ``@``.
    """
    plain = _PLAIN.fullmatch(node_id)
    if plain is not None:
        parts = [plain["file"].replace("/", "."), plain["names"].replace("::", ".")]
        name = "@".join([*parts, plain["parameters"]] if plain["parameters"] else parts)
        if len(name) <= _LIMIT:
            return name
    readable = node_id.replace("::", "@").replace("/", ".").replace("[", "@").replace("]", "")
    readable = re.sub(r"^[.-]", "_", re.sub(r"[^A-Za-z0-9_.+=@-]+", "_", readable))[:_LIMIT]
    return f"{readable}{'~' if '@' in readable else '@~'}{_digest(node_id)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
