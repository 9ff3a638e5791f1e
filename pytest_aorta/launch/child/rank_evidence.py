"""Collecting what the ranks of an attempt have left, and what is known of their ends, for ``judge``."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pytest_aorta.common.file_tail import read_tail
from pytest_aorta.launch.child.attempt_log import read_attempt_log
from pytest_aorta.launch.child.event_log import event_log
from pytest_aorta.launch.child.rank_files import attempt_folder, find_file, find_log, read_error_file
from pytest_aorta.launch.diagnosis.flight_recorder import last_collective
from pytest_aorta.launch.diagnosis.followers import complaint_in
from pytest_aorta.launch.diagnosis.stacks import locate, read_dump
from pytest_aorta.launch.diagnosis.trial_evidence import (
    AgentEnd,
    LastCollective,
    Launcher,
    RankEvidence,
    RankExit,
    RankReport,
    TrialEvidence,
    WhereItWas,
    unknown_rank,
)
from pytest_aorta.trials.events import ResultData, TrialEvent
from pytest_aorta.trials.steps import read_steps, step_file

#: Bytes at the end of a log in which a library says why it has ended its process.
_TAIL = 2**16


@dataclass(frozen=True)
class RankFiles:
    """Where the files of a trial's ranks are.

    Attributes:
        event_folder: the folder of a rank's event log.
        log: path of a rank's ``stdout``, ``stderr`` or ``stacks``, relative to ``base``; ``None`` where there is none.
        error_file: of a rank, as torch's ``record`` writes it.
        base: the trial file's folder.
    """

    event_folder: Callable[[int], Path]
    log: Callable[[int, str], str | None]
    error_file: Callable[[int], Path | None]
    base: Path

    @classmethod
    def of_attempt(cls, folder: Path, attempt: int) -> RankFiles:
        """Below a trial's artifacts ``folder``."""
        return cls(
            event_folder=lambda rank: attempt_folder(folder, attempt),
            log=lambda rank, stream: find_log(folder, attempt, rank, stream),
            error_file=lambda rank: find_file(folder, attempt, rank, "error.json"),
            base=folder.parent,
        )


def attempt_evidence(
    folder: Path,
    attempt: int,
    launcher: Launcher,
    source: str | None,
    *,
    agent: AgentEnd | None = None,
    overdue: float | None = None,
    stalled: float | None = None,
) -> TrialEvidence:
    """Of the ranks of this node; of those of other nodes, the numbers.

    ``folder`` is the trial's, ``source`` the workload's file.
    """
    log = read_attempt_log(folder, attempt)
    files = RankFiles.of_attempt(folder, attempt)
    ranks: dict[int, RankEvidence] = {rank: unknown_rank(rank) for rank in range(log.world_size or 0)}
    for rank, local_rank in log.ranks.items():
        ranks[rank] = {
            **rank_evidence(files, rank, log.exits.get(rank), source),
            "local_rank": local_rank,
            "host": log.host,
            "started": True,
        }
    return {
        "launcher": launcher,
        "attempt": attempt,
        "world_size": log.world_size,
        "group": log.group,
        "ranks": [ranks[rank] for rank in sorted(ranks)],
        "stopped_at": log.stopped_at,
        "overdue": overdue,
        "stalled": stalled,
        "agent": agent,
    }


def rank_evidence(files: RankFiles, rank: int, end: RankExit | None, source: str | None) -> RankEvidence:
    """What one rank has left."""
    folder = files.event_folder(rank)
    logs = {stream: files.log(rank, stream) for stream in ("stdout", "stderr", "stacks")}
    aborted = end is not None and end["exitcode"] == -signal.SIGABRT and logs["stderr"] is not None
    return {
        **unknown_rank(rank),
        "exit": end,
        "report": read_report(folder, rank),
        "location": None if logs["stacks"] is None else _location(files.base / logs["stacks"], source),
        "collective": _read_collective(folder, rank),
        "error_file": read_error_file(files.error_file(rank)),
        "complaint": complaint_in(read_tail(files.base / logs["stderr"], _TAIL))
        if aborted and logs["stderr"]
        else None,
        "stdout": logs["stdout"],
        "stderr": logs["stderr"],
        "stacks": logs["stacks"],
    }


def read_report(folder: Path, rank: int) -> RankReport | None:
    """The event log of a rank, as far as it got; ``None`` where there is none."""
    try:
        text = event_log(folder, rank).read_text(errors="replace")
    except OSError:
        return None
    report: RankReport = {
        "phases": [],
        "failures": [],
        "result": None,
        "finished": False,
        "finished_at": None,
        "pid": None,
        "progress": read_steps(step_file(folder, rank)),
        "seeds": None,
    }
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # empty, or torn: the rank died while it wrote
            _take(report, json.loads(line))
    return report


def left_early(folder: Path, rank: int) -> bool:
    """Whether a rank that has ended with exit code 0 had not come to an end of its ``run()``."""
    report = read_report(folder, rank)
    return report is None or not (report["finished"] or report["result"] is not None or report["failures"])


def _take(report: RankReport, event: TrialEvent) -> None:
    phases = report["phases"]
    if event["type"] == "begin":
        phases.append({"phase": event["phase"], "began": event.get("at"), "ended": None, "over": False})
    elif event["type"] == "end":
        if not phases or phases[-1]["phase"] != event["phase"]:
            phases.append({"phase": event["phase"], "began": None, "ended": None, "over": False})
        phases[-1] |= {"ended": event.get("at"), "over": True}
        report["result"] = event.get("result", report["result"])
        if "failure" in event:
            report["failures"].append(event["failure"])
    elif event["type"] == "env":
        pid = (event["env"].get("process") or {}).get("pid")
        report["pid"] = pid if isinstance(pid, int) else None
        report["seeds"] = event.get("seeds")
    elif event["type"] == "lived":
        report["finished"], report["finished_at"] = True, event.get("at")
    elif event["type"] == "progress":
        report["progress"] = event if report["progress"] is None else report["progress"]


def _location(stacks: Path, source: str | None) -> WhereItWas | None:
    found = locate(read_dump(stacks), source)
    return None if found is None else {"text": found.text, "collective": found.collective}


def collectives_file(folder: Path, rank: int) -> Path:
    """Where the trace of a rank's flight recorder is kept, in an attempt's ``folder``."""
    return folder / f"rank_{rank}.collectives.json"


def _read_collective(folder: Path, rank: int) -> LastCollective | None:
    with contextlib.suppress(OSError, ValueError):
        return last_collective(json.loads(collectives_file(folder, rank).read_text()))
    return None


def keep_evidence(folder: Path, trial: TrialEvidence) -> None:
    """Write what the judge had before it into the folder of the attempt, as an artifact of a trial that failed."""
    with contextlib.suppress(OSError):
        path = evidence_file(folder, trial["attempt"])
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({**trial, "ranks": [_in_short(rank) for rank in trial["ranks"]]}))
        partial.rename(path)


def _in_short(rank: RankEvidence) -> RankEvidence:
    """Without what is in the trial file and has no influence on the judgement."""
    report = rank["report"]
    if report is None:
        return rank
    result: ResultData | None = None if report["result"] is None else {"passed": report["result"]["passed"]}
    return {**rank, "report": {**report, "result": result, "seeds": None}}


def evidence_file(folder: Path, attempt: int) -> Path:
    """The file of ``keep_evidence``."""
    return attempt_folder(folder, attempt) / "evidence.json"


def read_evidence(path: Path) -> TrialEvidence | None:
    """What ``keep_evidence`` has written; ``None`` where there is nothing."""
    try:
        return cast(TrialEvidence, json.loads(path.read_text()))
    except (OSError, ValueError):
        return None
