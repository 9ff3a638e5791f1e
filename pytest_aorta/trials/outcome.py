"""From what was seen of a trial to its exit status and failure. Pure; no clocks, no processes."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_aorta.trials.result import ExitStatus, Phase

#: What comes after a phase has ended well; the process's exit belongs to ``cleanup``.
_NEXT: dict[str, Phase] = {"launch": "setup", "import": "setup", "setup": "run", "run": "cleanup", "cleanup": "cleanup"}

_BEFORE_SETUP = ("launch", "import")

#: Failures in these phases say nothing about the workload's bug.
_BEFORE_WORK = ("launch", "import", "setup")


@dataclass
class Observed:
    """Everything that the parent saw of one trial.

    Attributes:
        phase: the phase that the trial is in, or was in when it ended.
        phases_sec: duration of each ended phase in seconds.
        env: the trial's own environment snapshot, ``None`` while it has not come.
        result: the plain fields of what ``run()`` returned.
        failures: failures that the trial told of itself, by phase.
        ranks: records of the ranks of a distributed trial.
        states: of the worker group.
        attempts: those that were followed by another one.
        launcher_variables: those that the launcher has set for its ranks.
        rank_failure: the root cause among the ranks.
        rank_cleanup: what went wrong in the cleanup of one of them.
        progress: last progress event.
        returncode: of the trial's process, negative for a signal; ``None`` while unknown.
        finished: whether the trial's process said that it had finished all phases.
        finished_at: when, in seconds of ``time.time()``.
        timed_out: whether the parent ended it because of its deadline, or because it made no progress.
        timeout: the deadline in seconds.
        stalled: the seconds without progress because of which it was ended.
        whereabouts: where it was then, in words.
        hung_rank: the rank that others waited for then, or the only one that hung.
        lost: why the trial cannot be judged (launch failed, host process died, interrupted), as a ``Failure``.
    """

    phase: Phase = "launch"
    phases_sec: dict[str, float] = field(default_factory=dict)
    env: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    launcher_variables: dict[str, str] = field(default_factory=dict)
    rank_failure: dict[str, Any] | None = None
    rank_cleanup: dict[str, Any] | None = None
    progress: dict[str, Any] | None = None
    returncode: int | None = None
    finished: bool = False
    finished_at: float = 0.0
    timed_out: bool = False
    timeout: float | None = None
    stalled: float | None = None
    whereabouts: str | None = None
    hung_rank: int | None = None
    lost: dict[str, Any] | None = None
    notes: list[dict[str, Any]] = field(default_factory=list)

    def over(self) -> bool:
        """Whether nothing more is to come."""
        return self.returncode is not None or self.lost is not None

    def failed_in(self, phase: str) -> bool:
        """Whether the trial, waited for until the end of ``phase`` (setup or run), did not get through it."""
        if phase == "setup":
            return "setup" not in self.phases_sec or "setup" in self.failures
        return self.result is None or not self.result["passed"] or self.rank_failure is not None

    def see(self, event: dict[str, Any]) -> None:
        """Take in one event of the trial's process.

        After the deadline, only news of ranks and of the end count: the signals that ask for stacks and end the trial
        interrupt its system calls, and what it then says of itself is not what it would have done.
        """
        kind = event["type"]
        if self.timed_out and kind in ("begin", "end", "lived", "attempt"):
            return
        if kind == "begin":
            self.phase = event["phase"]
        elif kind == "end":
            phase = event["phase"]
            self.phases_sec[phase] = event["sec"]
            self.result = event.get("result", self.result)
            if "failure" in event:
                self.failures[phase] = event["failure"]
            self.phase = _NEXT[phase] if "failure" not in event else "cleanup" if phase == "run" else phase
        elif kind == "env":
            self.env = event["env"]
            self.launcher_variables = event.get("launcher_variables", {})
        elif kind == "group":
            self.states.append({key: value for key, value in event.items() if key != "type"})
        elif kind == "attempt":
            self.attempts.append({key: value for key, value in event.items() if key != "type"})
            self._begin_again()
        elif kind == "progress":
            self.progress = event
        elif kind == "ranks":
            self.ranks = event["ranks"]
            self.rank_failure = event["failure"]
            self.rank_cleanup = event.get("cleanup")
        elif kind == "failed":  # a fresh interpreter could not import the workload
            self.lost = {"phase": event.get("phase", "import"), "kind": "exception", **event["error"]}
        elif kind == "lived":
            self.finished = True
            self.finished_at = event.get("at", 0.0)

    def _begin_again(self) -> None:
        """What the ranks of an attempt have told does not count any more: another one follows."""
        self.phase = "setup"
        self.phases_sec = {name: sec for name, sec in self.phases_sec.items() if name in _BEFORE_SETUP}
        self.result = None
        self.failures = {}
        self.progress = None
        self.finished = False


def conclude(seen: Observed) -> tuple[ExitStatus, dict[str, Any] | None]:
    """Exit status and failure, by the table of docs/results.md."""
    if seen.lost is not None and seen.result is None:
        return "infrastructure_failed", seen.lost
    failure = _failure(seen)
    if seen.result is not None:
        status: ExitStatus = "ok" if seen.result["passed"] else "workload_failed"
        if seen.rank_failure is not None:
            # A rank that fails, or hangs, while rank 0 says ok is never hidden.
            hung = seen.rank_failure["kind"] in ("timeout", "stall")
            return "timeout" if hung else "workload_failed", seen.rank_failure
        if not seen.result["passed"]:
            return status, _unpassed(seen.result)
        return status, failure
    if failure is None:
        failure = _ended_early(seen)
    if failure["kind"] in ("timeout", "stall"):
        return "timeout", failure
    return ("infrastructure_failed" if failure["phase"] in _BEFORE_WORK else "workload_failed"), failure


def _failure(seen: Observed) -> dict[str, Any] | None:
    """What went wrong first: a phase, a rank, the deadline, or the process itself."""
    if seen.rank_failure is not None and not seen.timed_out:
        return seen.rank_failure
    for phase in ("setup", "run"):
        if phase in seen.failures:
            return seen.failures[phase]
    if seen.timed_out:
        return timeout_failure(seen)
    if seen.rank_cleanup is not None:
        return seen.rank_cleanup
    if "cleanup" in seen.failures:
        return seen.failures["cleanup"]
    if seen.lost is not None:
        return seen.lost
    if seen.returncode not in (0, None) or not seen.finished:
        return _ended_early(seen)
    return None


def timeout_failure(seen: Observed) -> dict[str, Any]:
    """What to say of a process that the deadline, or the stall limit, found still running."""
    limit = f" of {seen.timeout:g} s" if seen.timeout is not None else ""
    where = {"launch": "launching", "import": "importing"}.get(seen.phase, f"{seen.phase}()")
    message = f"the deadline{limit} passed in {where}"
    if seen.stalled is not None:
        message = f"no progress for {seen.stalled:g} s in {where}"
    if seen.progress is not None:
        total = seen.progress.get("total")
        message += f", after step {seen.progress['step']}" + (f" of {total}" if total is not None else "")
    if seen.whereabouts is not None:
        message += f"; {seen.whereabouts}"
    kind = "timeout" if seen.stalled is None else "stall"
    failure: dict[str, Any] = {"phase": seen.phase, "kind": kind, "message": message}
    return failure if seen.hung_rank is None else {**failure, "rank": seen.hung_rank}


def _ended_early(seen: Observed) -> dict[str, Any]:
    code = seen.returncode
    if code is None:
        return {"phase": seen.phase, "kind": "exit_code", "message": "the process ended, and nobody saw how"}
    where = f"in {seen.phase}()" if seen.phase in ("setup", "run", "cleanup") else f"during {seen.phase}"
    if code < 0:
        name = signal_name(-code)
        return {"phase": seen.phase, "kind": "signal", "signal": name, "message": f"ended by {name} {where}"}
    return {
        "phase": seen.phase,
        "kind": "exit_code",
        "exit_code": code,
        "message": f"the process ended itself with exit code {code} {where}",
    }


def _unpassed(result: dict[str, Any]) -> dict[str, Any]:
    message = "run() returned passed=False"
    if result.get("failure_count"):
        message += f", {result['failure_count']} failure(s)"
    if result.get("first_failure_iteration") is not None:
        message += f", first at iteration {result['first_failure_iteration']}"
    return {"phase": "run", "kind": "result", "message": message}


def kind_of_exit(code: int | None) -> dict[str, Any]:
    """The fields of a failure that say how a process ended: negative codes are signals, ``None`` is unknown."""
    if code is None:
        return {"kind": "exception"}
    if code < 0:
        return {"kind": "signal", "signal": signal_name(-code)}
    return {"kind": "exit_code", "exit_code": code}


def interruption(phase: str, why: str) -> dict[str, Any]:
    """The failure of a trial that was ended in ``phase`` on request."""
    return {"phase": phase, "kind": "signal", "message": f"interrupted: {why}"}


def signal_name(number: int) -> str:
    """``SIGSEGV`` and the like."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
