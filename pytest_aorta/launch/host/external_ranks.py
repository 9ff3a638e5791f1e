"""The ranks of a trial whose pytest is a rank itself (``torchrun -m pytest``).

Every rank's pytest runs every trial in a child. Rank 0 alone reports and writes; it reads the event logs of the other
ranks of its host.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from pathlib import Path

from pytest_aorta.launch.child.attempt_files import EventLogWriter, complete_rank, event_log
from pytest_aorta.launch.diagnosis.evidence import RankEvidence, RankExit, TrialEvidence
from pytest_aorta.trials.events import ExitEvent, FailureData
from pytest_aorta.trials.lifecycle import step_file

#: Seconds that rank 0 waits for the exits of the other ranks after its own.
_PATIENCE = 30.0


def rank_folder(folder: Path, rank: int) -> Path:
    """A rank's artifacts folder: the trial's ``folder`` for rank 0, one beside it for every other rank."""
    return folder if rank == 0 else folder.with_name(f"{folder.name}.rank_{rank}")


def report_exit(
    folder: Path, rank: int, returncode: int | None, overdue: float | None = None, *, interrupted: bool = False
) -> None:
    """Add the exit of this rank's child to its event log in its ``folder``, for rank 0.

    ``overdue``: when its deadline passed, in seconds of ``time.time()``, if it did; ``interrupted``: whether this
    pytest has ended it.
    """
    event = _exit_event(returncode, overdue, interrupted)
    with event_log(folder, rank).open("a") as file:
        file.write("\n" + json.dumps(event) + "\n")  # the child may have left a torn line


def report_unstarted(folder: Path, rank: int, failure: FailureData) -> None:
    """Write the event log of a rank whose child could not be started: what rank 0 would wait for."""
    folder.mkdir(parents=True, exist_ok=True)
    log = EventLogWriter(event_log(folder, rank))
    log.send({"type": "begin", "phase": failure["phase"]})
    if failure["kind"] == "timeout":
        report_exit(folder, rank, None, overdue=time.time())
    else:
        log.send({"type": "end", "phase": failure["phase"], "sec": 0.0, "failure": {**failure, "at": time.time()}})
        report_exit(folder, rank, 1)


def gather_evidence(
    folder: Path,
    returncode: int | None,
    source: str | None,
    overdue: float | None = None,
    stalled: float | None = None,
    *,
    interrupted: bool = False,
    patience: float = _PATIENCE,
) -> TrialEvidence:
    """Of all ranks of this host; ``returncode``, ``overdue`` and ``interrupted`` are those of rank 0.

    ``source`` is the workload's file, ``stalled`` the limit in seconds, where that is why it was ended.

    Ranks of other hosts are not expected; what they break shows in rank 0's collectives.
    """
    local = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    ends = {0: _exit_event(returncode, overdue, interrupted)}
    give_up = time.monotonic() + patience
    while len(ends) < local and time.monotonic() < give_up:
        for rank in set(range(1, local)) - set(ends):
            if (end := _read_exit(folder, rank)) is not None:
                ends[rank] = end
        time.sleep(0.01)

    trial = TrialEvidence(
        "external",
        int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        int(os.environ["WORLD_SIZE"]),
        stalled=stalled,
    )
    for number in range(local):
        end, own = ends.get(number), rank_folder(folder, number)
        expected = RankEvidence(number, number, exit=None if end is None else _exit_of(end))
        found = complete_rank(expected, own, functools.partial(_find, own), folder.parent, source)
        if end is not None or found.events is not None:
            found.host = socket.gethostname()
        found.overdue = None if end is None else end["overdue"]
        trial.ranks.append(found)
    for rank in ends.keys() - {0}:
        for file in (event_log, step_file):
            file(rank_folder(folder, rank), rank).unlink(missing_ok=True)
    return trial


def _find(folder: Path, name: str) -> Path | None:
    return folder / name if name.endswith(".log") and (folder / name).exists() else None


def _exit_of(end: ExitEvent) -> RankExit | None:
    if end["returncode"] is None or end["overdue"] is not None:
        return None
    return RankExit(end["returncode"], at=end.get("at"), stopped=end.get("interrupted", False))


def _exit_event(returncode: int | None, overdue: float | None, interrupted: bool) -> ExitEvent:
    return {
        "type": "over",
        "returncode": returncode,
        "overdue": overdue,
        "interrupted": interrupted,
        "at": time.time(),
    }


def _read_exit(folder: Path, rank: int) -> ExitEvent | None:
    """The exit of another rank, once the last line of its event log has it."""
    try:
        lines = event_log(rank_folder(folder, rank), rank).read_text().splitlines()
        last = json.loads(lines[-1])
    except (OSError, ValueError, IndexError):
        return None
    return last if last.get("type") == "over" else None
