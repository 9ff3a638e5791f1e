"""The files that the record of a trial names, and those that are removed when the trial is over."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pytest_aorta.launch.launch_mode import own_rank
from pytest_aorta.trials.outcome import Observed
from pytest_aorta.trials.place import FILES

#: In a trial's folder: the stacks that its process writes when asked to.
STACKS = "stacks.log"


def collect_artifacts(folder: Path) -> dict[str, str]:
    """Logs, error files and collectives in a trial's ``folder``: name -> path relative to the trial file's folder.

    Removes empty dumps of stacks and the files that processes of the trial have exchanged.
    """
    found = {}
    with contextlib.suppress(OSError):
        for stacks in [folder / STACKS, *folder.glob("attempt_*/rank_*.stacks.log")]:
            if stacks.exists() and stacks.stat().st_size == 0:
                stacks.unlink()
        if own_rank() == 0:  # rank 0 has still to read those of another rank
            for path in [*folder.glob("*"), *folder.glob("attempt_*/*")]:
                if path.suffix in (".events", ".steps") or path.match("torchrun*.json"):
                    path.unlink()
        kept = (path for pattern in ("*.log", "*error.json", "*collectives.json") for path in folder.rglob(pattern))
        for path in sorted(path for path in kept if path.relative_to(folder).parts[0] != FILES):
            name = path.relative_to(folder).with_suffix("").as_posix()
            found[name] = path.relative_to(folder.parent).as_posix()
    return found


def stacks_to_read(seen: Observed, artifacts: dict[str, str]) -> str | None:
    """The dump to read first: that of the rank that failed or that others waited for, where it is known."""
    rank = seen.hung_rank if seen.rank_failure is None else seen.rank_failure.get("rank")
    for record in seen.ranks:
        if record["rank"] == rank and record["stacks"] in artifacts.values():
            return str(record["stacks"])
    return artifacts.get("stacks")
