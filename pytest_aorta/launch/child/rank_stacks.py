"""Stacks and flight recorders of ranks that are about to be ended because a process group has given up."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from pytest_aorta.launch.child.rank_evidence import collectives_file
from pytest_aorta.launch.diagnosis import flight_recorder
from pytest_aorta.launch.diagnosis.followers import gave_up_waiting
from pytest_aorta.launch.diagnosis.judge import is_about_a_missing_rank
from pytest_aorta.launch.diagnosis.trial_evidence import TrialEvidence
from pytest_aorta.runtime.process_tree import request_stacks


def look_at_ranks(trial: TrialEvidence, running: Mapping[int, int], folder: Path, sockets: Path) -> None:
    """Have them taken where they can say for which rank the others have waited.

    Args:
        trial: what is known so far.
        running: the processes of the ranks that still run, by rank.
        folder: of the attempt.
        sockets: of the flight recorders.
    """
    if running and is_about_a_missing_rank(trial):
        take_stacks(running, folder, sockets)


def take_stacks(running: Mapping[int, int], folder: Path, sockets: Path) -> None:
    """Have the stacks and the flight recorders of processes taken, by rank."""
    for rank, pid in running.items():
        save_collectives(folder, rank, pid, sockets)
    request_stacks(running.values())


def save_collectives(folder: Path, rank: int, pid: int, sockets: Path) -> None:
    """Keep what the flight recorder of a rank has, in the ``folder`` of its attempt."""
    recorded = flight_recorder.request_trace(pid, sockets)
    if recorded is not None and recorded.get("entries"):
        with contextlib.suppress(OSError):
            collectives_file(folder, rank).write_text(json.dumps(recorded))


def save_own_collectives(error: BaseException, folder: Path, rank: int, sockets: Path) -> None:
    """In a rank whose process group has given up: nothing can be asked of it later."""
    if gave_up_waiting(str(error)):
        save_collectives(folder, rank, os.getpid(), sockets)
