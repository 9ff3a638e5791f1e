"""What a trial has for itself: its number, a folder for files that are kept, and a TMPDIR."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_aorta.launch.host.temporary import TemporaryFolders
from pytest_aorta.launch.launch_mode import own_rank
from pytest_aorta.trials.execution import FILES, TRIAL_DIR, TRIAL_INDEX, TRIAL_SEED
from pytest_aorta.trials.seeding import command_seed


@dataclass(frozen=True)
class Place:
    """What a trial has for itself.

    Attributes:
        index: of the trial in its cell.
        files: for files that belong to its record; removed at the end if it is empty.
        tmp: removed at the end, unless the trial has failed; ``None`` where it could not be made.
        sockets: for sockets of the ranks and for files of their agent, always removed at the end; ``None`` where there
            are no ranks, or no ``tmp``.
        problem: why not.
        shared: whether it is that of several ranks of an outer launcher; then rank 0 clears it.
    """

    index: int
    files: Path
    tmp: Path | None
    sockets: Path | None = None
    problem: str | None = None
    shared: bool = False

    def variables(self, overlay: Container[str], seed: int | None = None) -> dict[str, str]:
        """What the trial finds in its environment, but for what its ``overlay`` sets; ``seed``: for a command."""
        found = {TRIAL_INDEX: str(self.index), TRIAL_DIR: str(self.files)}
        if seed is not None:
            found[TRIAL_SEED] = str(command_seed(seed))
        if self.tmp is not None:
            found["TMPDIR"] = str(self.tmp)
        return {name: value for name, value in found.items() if name not in overlay}


def make_place(
    index: int, folder: Path, temporary: TemporaryFolders, environ: Mapping[str, str], *, ranks: bool = False
) -> Place:
    """A place for a trial with the artifacts ``folder``, where trials otherwise have the variables ``environ``.

    ``ranks``: whether it starts ranks.

    Raises:
        OSError: the folder cannot be made.
    """
    files = (folder / FILES).absolute()
    with contextlib.suppress(FileExistsError):  # of an earlier trial that no record was written of
        temporary.spare.make(files)
    try:
        tmp = temporary.make(environ.get("TMPDIR"), str(files))
        return Place(index, files, tmp, temporary.make_beside(tmp) if ranks else None)
    except OSError as error:  # a full disk: the trial may do without
        return Place(index, files, None, problem=f"no TMPDIR of its own: {error}")


def share_place(index: int, folder: Path, temporary: TemporaryFolders, environ: Mapping[str, str]) -> Place:
    """The place of a trial that is one of several ranks' of an outer launcher; ``folder`` is this rank's.

    Only rank 0 makes the folder of files, because it moves an earlier trial's away before. The others' processes make
    it after they have met, where it is missing still.
    """
    if own_rank() == 0:
        return replace(make_place(index, folder, temporary, environ), shared=True)
    files = folder.with_name(folder.name.removesuffix(f".rank_{own_rank()}")).absolute() / FILES
    tmp = None
    with contextlib.suppress(OSError):
        tmp = temporary.make(environ.get("TMPDIR"), str(files))
    return Place(index, files, tmp, shared=True)


def clear_place(place: Place, temporary: TemporaryFolders, *, failed: bool, in_use: bool = False) -> dict[str, str]:
    """After the end of a trial: remove what is not kept; the rest as ``artifacts`` of the record.

    Args:
        place: of the trial.
        temporary: where its TMPDIR was made.
        failed: whether the TMPDIR is kept.
        in_use: whether a process of the trial could not be ended; then nothing is removed.
    """
    kept: dict[str, str] = {}
    if place.sockets is not None and not in_use:
        shutil.rmtree(place.sockets, ignore_errors=True)
    if place.shared and own_rank() != 0:
        return kept
    taken = not in_use and temporary.spare.take_back(place.files)
    if not taken and place.files.is_dir():
        kept["files"] = f"{place.files.parent.name}/{place.files.name}"
    if place.tmp is not None and not in_use and temporary.remove(place.tmp, keep=failed):
        kept["tmp"] = str(place.tmp)
    return kept
