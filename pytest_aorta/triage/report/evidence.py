"""What a record says of a trial that is not ok: why, with what it was started, and what it has left."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_aorta.common.texts import own_frames
from pytest_aorta.triage.report.safe_text import bounded, inside, log_tail, one_line

#: Entries of ``failure_details``, of ranks and of warnings that are shown; the trial file has all.
_MOST = 8

#: Longest message in bytes, and in lines.
_MESSAGE = 1_500, 12

#: Artifacts of which the end is shown, in this order; all are linked.
_LOGS = ("stacks", "stderr", "stdout")

#: Further logs that are shown: of ranks.
_MOST_LOGS = 6

#: Keys of ``failure_details`` that have a place of their own, or are for machines.
_NOT_SHOWN = ("traceback", "at")


@dataclass(frozen=True)
class Evidence:
    """What is shown of a trial that is not ok.

    Attributes:
        status: as recorded.
        where: phase, kind and rank, in words.
        headline: first line of the message.
        message, traceback: bounded; the message is empty where the headline says it all.
        details: of the failure, one line each.
        warnings: of the record.
        seeds: one line.
        variables: that were set for it, ``NAME=VALUE``, one per line; secrets have no values in records.
        artifacts: name to path, relative to the results directory.
        logs: those of them that have an end to be shown.
        can_replay: whether the record says how it was run.
    """

    status: str
    where: str
    headline: str
    message: str
    traceback: str
    details: str
    warnings: tuple[str, ...]
    seeds: str
    variables: str
    artifacts: Mapping[str, str]
    logs: tuple[tuple[str, str], ...]
    can_replay: bool

    @property
    def ended(self) -> str:
        """``workload failed: exception in run``; ``timeout in run``."""
        status = self.status.replace("_", " ")
        return self.where if self.where.startswith(status) else f"{status}: {self.where}".removesuffix(": ")


def evidence_of(record: Mapping[str, Any], file: str) -> Evidence:
    """``file``: of the record, relative to the results directory.

    A record that others have written may have anything in it: what cannot be read is said.
    """
    try:
        return _evidence(record, file)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        note = f"this record cannot be shown: {type(error).__name__}: {error}"
        return Evidence(str(record.get("exit_status")), "", one_line(note), "", "", "", (), "", "", {}, (), False)


def _evidence(record: Mapping[str, Any], file: str) -> Evidence:
    failure = record.get("failure") or {}
    kind = failure.get("type") or failure.get("signal") or ""
    message = failure.get("message") or ""
    text = message if not kind or kind in message else f"{kind}: {message}"
    headline = one_line(text.strip().partition("\n")[0])
    shown = bounded(text, *_MESSAGE)
    request = record.get("request") or {}
    folder = PurePosixPath(file).parent
    artifacts = {name: str(folder / path) for name, path in (record.get("artifacts") or {}).items()}
    return Evidence(
        status=record["exit_status"],
        where=_where(failure),
        headline=headline or _where(failure),
        message="" if shown == headline else shown,
        traceback=bounded("\n".join(own_frames((failure.get("traceback") or "").rstrip().splitlines()))),
        details="\n".join(_details(record)),
        warnings=tuple(one_line(text, 400) for text in (record.get("warnings") or ())[:_MOST]),
        seeds=_seeds(record),
        variables="\n".join(_variables(request)),
        artifacts=artifacts,
        logs=tuple((name, artifacts[name]) for name in _logs(artifacts)),
        can_replay=record.get("request") is not None,
    )


def replay_command(results: str, file: str) -> str:
    """Runs the trial again, with its seeds."""
    return f"pytest --aorta-replay {shlex.quote(str(PurePosixPath(results, file)))}"


def tails(evidence: Evidence, results: Path) -> list[tuple[str, str, str]]:
    """Name, path and last lines of each log that has some. Nothing outside of the results directory is read."""
    found = []
    for name, relative in evidence.logs:
        path = inside(results, relative)
        tail = log_tail(path) if path is not None else ""
        if tail.strip():
            found.append((name, relative, tail))
    return found


def _where(failure: Mapping[str, Any]) -> str:
    if not failure:
        return ""
    rank = f", rank {failure['rank']}" if failure.get("rank") is not None else ""
    code = f" {failure['exit_code']}" if failure.get("kind") == "exit_code" and failure.get("exit_code") else ""
    return f"{failure.get('kind', '')}{code} in {failure.get('phase', '')}{rank}".replace("_", " ")


def _details(record: Mapping[str, Any]) -> Iterator[str]:
    entries = record["result"].get("failure_details") or []
    for entry in entries[:_MOST]:
        yield one_line(", ".join(f"{key}: {value}" for key, value in entry.items() if key not in _NOT_SHOWN), 400)
    if len(entries) > _MOST:
        yield f"and {len(entries) - _MOST} more in the trial file"
    ranks = [rank for rank in record.get("ranks") or () if rank.get("failure")]
    for rank in ranks[:_MOST]:
        collateral = " (because of another one)" if rank.get("collateral") else ""
        yield one_line(f"rank {rank.get('rank')}{collateral}: {rank['failure'].get('message', '')}", 400)
    if len(ranks) > _MOST:
        yield f"and {len(ranks) - _MOST} more ranks in the trial file"


def _seeds(record: Mapping[str, Any]) -> str:
    seeds = record.get("seeds") or {}
    if not seeds:
        of_ranks = [rank["seeds"]["seed"] for rank in record.get("ranks") or () if rank.get("seeds")]
        return f"of the ranks: {', '.join(map(str, of_ranks[:_MOST]))}" if of_ranks else ""
    generators = ", ".join(f"{name} {seed}" for name, seed in (seeds.get("generators") or {}).items())
    return one_line(f"{seeds.get('seed')} ({generators})" if generators else str(seeds.get("seed")), 400)


def _variables(request: Mapping[str, Any]) -> Iterator[str]:
    for name, value in sorted((request.get("overlay") or {}).items()):
        yield one_line(f"{name}={value}", 1_000)


def _logs(artifacts: Mapping[str, str]) -> list[str]:
    known = [name for name in _LOGS if name in artifacts]
    others = sorted(name for name, path in artifacts.items() if path.endswith(".log") and name not in _LOGS)
    return [*known, *others[:_MOST_LOGS]]
