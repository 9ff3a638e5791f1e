"""The files that the record of a trial names, and those that are removed when the trial is over."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pytest_aorta.launch.launch_mode import own_rank
from pytest_aorta.trials.execution import FILES
from pytest_aorta.trials.outcome import Observed

#: In a trial's folder: the stacks that its process writes when asked to.
STACKS = "stacks.log"

#: Ends of the names of files that stay, and of those that the processes of a trial have exchanged.
_KEPT = (".log", "error.json", "collectives.json", "evidence.json")
_EXCHANGED = (".events", ".steps")


def collect_artifacts(folder: Path) -> dict[str, str]:
    """Logs, error files and collectives in a trial's ``folder``: name -> path relative to the trial file's folder.

    Removes empty dumps of stacks and the files that processes of the trial have exchanged.
    """
    kept = []
    exchanged_is_read = own_rank() == 0  # rank 0 has still to read what another rank has written
    for path in _files_of(folder):
        with contextlib.suppress(OSError):
            name = path.name
            if name.endswith(STACKS) and path.stat().st_size == 0:
                path.unlink()
            elif name.endswith(_KEPT):
                kept.append(path)
            elif exchanged_is_read and (name.endswith(_EXCHANGED) or path.match("torchrun*.json")):
                path.unlink()
    relative = [path.relative_to(folder.parent) for path in sorted(kept)]
    return {path.relative_to(folder.name).with_suffix("").as_posix(): path.as_posix() for path in relative}


def _files_of(folder: Path) -> list[Path]:
    """All files below ``folder`` but those of the workload; one pass, for this is done after every trial."""
    found = []
    for root, folders, files in os.walk(folder):
        if root == os.fspath(folder) and FILES in folders:
            folders.remove(FILES)
        found += [Path(root, name) for name in files]
    return found


def stacks_to_read(seen: Observed, artifacts: dict[str, str]) -> str | None:
    """The dump to read first: that of the rank that failed or that others waited for, where it is known."""
    rank = seen.hung_rank if seen.rank_failure is None else seen.rank_failure.get("rank")
    for record in seen.ranks:
        if record["rank"] == rank and record["stacks"] is not None:
            return str(record["stacks"])
    return artifacts.get("stacks")


def stderr_to_read(seen: Observed, folder: Path) -> Path | None:
    """The log of the process that has failed, in a trial's ``folder``: of the rank that is the cause, if one is."""
    if seen.rank_failure is None or seen.rank_failure.get("rank") is None:
        return folder / "stderr.log"
    logs = (record["stderr"] for record in seen.ranks if record["rank"] == seen.rank_failure["rank"])
    return next((folder.parent / log for log in logs if log is not None), None)
