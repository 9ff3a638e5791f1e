"""Concludes exit status and failure from what was observed of a trial. Pure: no clocks, no processes."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_aorta.trials.records import (
    CONTRADICTED,
    Attempt,
    Event,
    Failure,
    GroupState,
    Phase,
    Progress,
    RankRecord,
    ResultRecord,
    Seeds,
)
from pytest_aorta.trials.workload import not_finite

if TYPE_CHECKING:
    from pytest_aorta.trials.result import ExitStatus


#: The phase after one that has succeeded.
_NEXT: dict[Phase, Phase] = {
    "launch": "setup",
    "import": "setup",
    "setup": "run",
    "run": "cleanup",
    "cleanup": "exit",
    "exit": "exit",
}

_BEFORE_SETUP = ("launch", "import")

#: A failure in these phases is no result of the workload.
BEFORE_WORK = ("launch", "import", "setup")


@dataclass
class Observation:
    """Everything that the host observed of one trial.

    Attributes:
        phase: the phase that the trial is in, or was in when it ended.
        env: snapshot of the trial's environment, ``None`` before it was received.
        imported_later: digests of the source files that were imported after the cell was prepared.
        zygote: which start of its cell it was forked from; ``None`` for a process of its own.
        how_started: what was chosen for the trials of its cell, and why.
        modules: top-level modules of all imported installed distributions.
        reads: files that a workload class has opened, and only read.
        preloaded: modules that were imported for this trial in advance.
        imported: modules that it imported itself and that its zygote could have imported in advance.
        imports_over: whether these are all.
        not_preloaded: a module that must not be imported in advance, and why.
        imports_sec: seconds of slow imports from installed distributions in the first rank, by module.
        attempts: all attempts but the last.
        rank_failure: the root cause among the ranks.
        rank_cleanup: the first failure in the cleanup of a rank.
        returncode: of the trial's process, negative for a signal; ``None`` while unknown.
        finished: whether the trial's process reported the end of all phases.
        finished_at: when, in seconds of ``time.time()``.
        timed_out: whether the host ended it because of its deadline or stall limit.
        stalled: the stall limit in seconds, if that is why it was ended.
        location: where it was then, as text.
        hung_rank: the rank that others waited for then, or the only one that hung.
        lost: the failure of a trial that was not started, was interrupted, or whose zygote or host died.
        notes: for ``failure_details``.
    """

    phase: Phase = "launch"
    phases_sec: dict[str, float] = field(default_factory=dict)
    env: dict[str, Any] | None = None
    imported_later: dict[str, str] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    seeds: Seeds | None = None
    zygote: int | None = None
    how_started: str = ""
    result: ResultRecord | None = None
    failures: dict[Phase, Failure] = field(default_factory=dict)
    preloaded: list[str] = field(default_factory=list)
    imported: list[str] = field(default_factory=list)
    imports_over: bool = False
    not_preloaded: str | None = None
    imports_sec: dict[str, float] = field(default_factory=dict)
    ranks: list[RankRecord] = field(default_factory=list)
    states: list[GroupState] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    launcher_variables: dict[str, str] = field(default_factory=dict)
    rank_failure: Failure | None = None
    rank_cleanup: Failure | None = None
    progress: Progress | None = None
    returncode: int | None = None
    finished: bool = False
    finished_at: float = 0.0
    timed_out: bool = False
    timeout: float | None = None
    stalled: float | None = None
    location: str | None = None
    hung_rank: int | None = None
    lost: Failure | None = None
    notes: list[dict[str, Any]] = field(default_factory=list)

    def over(self) -> bool:
        return self.returncode is not None or self.lost is not None

    def failed_in(self, phase: str) -> bool:
        """Whether ``phase`` (setup or run) failed; to be asked after its end, or the trial's."""
        if phase == "setup":
            return "setup" not in self.phases_sec or "setup" in self.failures
        return self.result is None or not self.result.passed or self.rank_failure is not None

    def see(self, event: Event) -> None:
        """Take in one event of the trial's process.

        After the deadline, events of phases do not count: the signals that ask for stacks and end the trial interrupt
        its system calls, and so change what it does.
        """
        kind = event["type"]
        if self.timed_out and kind in ("begin", "end", "lived", "attempt"):
            return
        if kind == "begin":
            self.phase = event["phase"]
        elif kind == "end":
            phase, failure = event["phase"], event.get("failure")
            self.phases_sec[phase] = event["sec"]
            self.result = event.get("result") or self.result
            if failure is not None:
                self.failures[phase] = failure
            self.phase = _NEXT[phase] if failure is None else "cleanup" if phase == "run" else phase
        elif kind == "progress":
            self.progress = Progress(event["step"], event.get("total"))
        elif kind == "env":
            self.env = event["env"]
            self.launcher_variables = event.get("launcher_variables", {})
            self.seeds = event.get("seeds")
        elif kind == "env_end":
            self.env = {**(self.env or {}), "end": event["end"]}
            self.imported_later, self.modules = event.get("sources", {}), event.get("modules", [])
            self.reads = event.get("reads", [])
        elif kind == "imported":
            self.imported.append(event["module"])
        elif kind == "imports_over":
            if not self.imports_over:  # by a program that it has started, perhaps
                self.imports_over, self.not_preloaded = True, event["note"]
        elif kind == "imports_sec":
            self.imports_sec = event["imports"]
        elif kind == "ranks_start":
            self.phase = "launch"
        elif kind == "group":
            self.states.append(event["group"])
        elif kind == "attempt":
            self.attempts.append(event["attempt"])
            self.phase, self.result, self.progress, self.finished = "setup", None, None, False
            self.phases_sec = {name: sec for name, sec in self.phases_sec.items() if name in _BEFORE_SETUP}
            self.failures = {}
        elif kind == "ranks":
            self.ranks, self.rank_failure, self.rank_cleanup = event["ranks"], event["failure"], event["cleanup"]
        elif kind == "failed":  # a fresh interpreter could not import the workload
            self.lost = exit_failure(event.get("phase", "import"), None, event["error"])
        elif kind == "lived":
            self.finished, self.finished_at, self.phase = True, event.get("at") or 0.0, "exit"


def conclude(seen: Observation) -> tuple[ExitStatus, Failure | None]:
    """Exit status and failure, by the table of docs/reference/results.md."""
    result, of_rank, failures = seen.result, seen.rank_failure, seen.failures
    if result is None and seen.lost is not None:
        return "infrastructure_failed", seen.lost
    if of_rank is not None and of_rank.is_late and seen.location is not None:
        of_rank = replace(of_rank, message=f"{of_rank.message}; {seen.location}")
    if result is not None and of_rank is not None:  # also where rank 0 has passed
        of_rank = _judged(of_rank, result)
        return _status_with(of_rank), of_rank
    if result is not None and not result.passed:
        own = _judged(failures.get("run") or unpassed_failure(result), result)
        return _status_with(own), own
    # A rank that hangs outweighs what rank 0 has lost by its end, before a deadline of its own.
    if of_rank is not None and (not seen.timed_out or (of_rank.is_late and failures)):
        failure: Failure | None = of_rank
    else:
        failure = failures.get("import") or failures.get("setup") or failures.get("run")
        if failure is None and seen.timed_out:
            failure = timeout_failure(seen)
        # Events that were sent before the loss are read after it, and may show a later phase than the loss.
        lost = seen.lost and replace(seen.lost, phase="cleanup")
        failure = failure or seen.rank_cleanup or failures.get("cleanup") or lost
    if failure is None and (result is None or seen.returncode not in (0, None) or not seen.finished):
        failure = _ended_early(seen)
    if result is not None or failure is None:
        return "ok", failure
    if failure.phase in BEFORE_WORK and not failure.is_late:
        return "infrastructure_failed", failure
    return _status_of(failure), failure


def _status_of(failure: Failure) -> ExitStatus:
    if failure.is_late:
        return "timeout"
    lost = failure.kind == "rank" or failure.phase == "launch" or failure.infrastructure
    return "infrastructure_failed" if lost else "workload_failed"


#: Type of failure of a command that cannot judge; pytest shows it as skipped.
CANNOT_JUDGE = "CannotJudge"

#: Exit codes of a test that cannot judge, as of automake and of ``git bisect``.
_CANNOT_JUDGE_CODES = (77, 125)


def cannot_judge(why: str) -> Failure:
    return Failure("run", "result", f"cannot judge: {why}", CANNOT_JUDGE)


def _judged(failure: Failure, result: ResultRecord) -> Failure:
    """The failure of a command; its exit code may say that it cannot judge."""
    if not result.output or failure.kind != "exit_code" or failure.exit_code not in _CANNOT_JUDGE_CODES:
        return failure
    return replace(cannot_judge(f"exit code {failure.exit_code}"), rank=failure.rank, exit_code=failure.exit_code)


def _status_with(failure: Failure) -> ExitStatus:
    return "infrastructure_failed" if failure.type == CANNOT_JUDGE and not failure.is_late else _status_of(failure)


def describe_phase(phase: Phase) -> str:
    return {"launch": "launching", "import": "importing", "exit": "its exit"}.get(phase, f"{phase}()")


def timeout_failure(seen: Observation) -> Failure:
    limit = f" of {seen.timeout:g} s" if seen.timeout is not None else ""
    where = describe_phase(seen.phase)
    message = f"the deadline{limit} passed in {where}"
    if seen.stalled is not None:
        message = f"no progress for {seen.stalled:g} s in {where}"
    message += after_step(seen)
    if seen.location is not None:
        message += f"; {seen.location}"
    return Failure(seen.phase, "timeout" if seen.stalled is None else "stall", message, rank=seen.hung_rank)


def exit_failure(phase: Phase, returncode: int | None, error: Mapping[str, str]) -> Failure:
    """The failure of a process that could not start, or died.

    Args:
        phase: when that was.
        returncode: exit code, negative for a signal; ``None`` where that is not what went wrong.
        error: ``message``, and perhaps the ``type`` and ``traceback`` of an exception.
    """
    failure = Failure(phase, "exception", error["message"], error.get("type"), error.get("traceback"))
    if returncode is None:
        return failure
    if returncode < 0:
        return replace(failure, kind="signal", signal=signal_name(-returncode))
    return replace(failure, kind="exit_code", exit_code=returncode)


def _ended_early(seen: Observation) -> Failure:
    code = seen.returncode
    if code is None:
        return Failure(seen.phase, "exit_code", "the process ended, and its exit code is unknown")
    where = f"in {seen.phase}()" if seen.phase in ("setup", "run", "cleanup") else f"during {seen.phase}"
    where = "at exit" if seen.phase == "exit" else where
    ended = f"ended by {signal_name(-code)}" if code < 0 else f"the process ended itself with exit code {code}"
    return exit_failure(seen.phase, code, {"message": f"{ended} {where}{after_step(seen)}"})


def after_step(seen: Observation) -> str:
    """``, after step 3 of 10``; if ranks are at different steps, ``, after step 3 (rank 1) to 5 of 10``."""
    progress = {rank.rank: rank.progress for rank in seen.ranks if rank.progress is not None}
    if not progress and seen.progress is not None:
        progress = {0: seen.progress}
    if not progress:
        return ""
    least = min(progress, key=lambda rank: (progress[rank].step, rank))
    step, most = progress[least].step, max(last.step for last in progress.values())
    total = progress[least].total
    reached = f"{step}" if step == most else f"{step} (rank {least}) to {most}"
    return f", after step {reached}" + (f" of {total}" if total is not None else "")


def unpassed_failure(result: ResultRecord) -> Failure:
    notes = [str(detail.get("note")) for detail in result.failure_details]
    if contradicted := [note for note in notes if note.startswith(CONTRADICTED)]:
        return Failure("run", "result", contradicted[0])
    message = "run() returned passed=False"
    if result.failure_count:
        message += f", {result.failure_count} failure(s)"
    if result.first_failure_iteration is not None:
        message += f", first at iteration {result.first_failure_iteration}"
    return Failure("run", "result", message)


#: How the message of a failure begins that trials share with others.
INTERRUPTED = "interrupted: "
HOST_DIED, NO_HOST = "the host that ran this trial died: ", "there is no host left to run it: "


def interruption(phase: Phase, why: str) -> Failure:
    return Failure(phase, "signal", f"{INTERRUPTED}{why}")


def was_terminated(failure: Failure | None) -> bool:
    """Whether a process of this trial ended by a signal that may have been sent to all processes of the run."""
    if failure is None:
        return False
    return failure.signal in ("SIGTERM", "SIGINT", "SIGHUP") or failure.type == "KeyboardInterrupt"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


#: Characters of the message of a rank's failure in ``failure_details``.
_MESSAGE = 1000

_CAUSE = ("rank", "phase", "kind", "type", "signal", "exit_code", "message")


def recorded_result(seen: Observation) -> ResultRecord:
    """The result of a trial that is over.

    Where a rank has failed, so has the trial, whatever rank 0 returned: ``passed`` is false, and ``failure_details``
    names the cause.
    """
    result, cause = seen.result or ResultRecord(passed=False), seen.rank_failure
    if cause is None:
        return result
    failed = 0
    for rank in seen.ranks:
        failed += rank.failure is not None and not rank.collateral and rank.failure.phase != "cleanup"
    details = list(result.failure_details)
    if cause.kind != "result" or cause.rank not in [detail.get("rank") for detail in details]:
        told = {}
        for key in _CAUSE:
            if (value := getattr(cause, key)) is not None:
                told[key] = value
        told["message"] = cause.message.removeprefix(f"rank {cause.rank}: ")[:_MESSAGE]
        details.append(told)
    count = max(result.failure_count or 0, failed, 1)
    return replace(result, passed=False, failure_count=count, failure_details=details)


def warnings_of(seen: Observation) -> list[str]:
    """Doubts about a result with ``passed=True`` that the result itself raises, from every rank that returned one.

    Also warnings about the output of a command, however it ended.
    """
    returned = [rank for rank in seen.ranks if rank.result is not None] if seen.ranks else []
    if not returned or (seen.result is not None and seen.result.output):  # the lines of all ranks
        return [] if seen.result is None else [*seen.result.output.get("warnings", ()), *doubts(seen.result)]
    ranks_by_text: dict[str, list[int]] = {}
    for rank in returned:
        for text in doubts(rank.result) if rank.result is not None else ():
            ranks_by_text.setdefault(text, []).append(rank.rank)
    return [
        f"rank {ranks[0]}" + (f" and {len(ranks) - 1} more" if len(ranks) > 1 else "") + f": {text}"
        for text, ranks in ranks_by_text.items()
    ]


#: Metrics that are not finite and are named one by one.
_DOUBTED = 3


def doubts(result: ResultRecord) -> list[str]:
    if not result.passed:
        return []
    doubts = []
    if result.main_work_started is False:
        doubts.append("main_work_started=False")
    configured, executed = result.configured_iterations or 0, result.executed_iterations
    if configured > 0 and (result.total_iterations if executed is None else executed) == 0:
        doubts.append(f"0 of {configured} iterations")
    infinite = list(not_finite(result.metrics))
    for name, value in infinite[:_DOUBTED]:
        doubts.append(f"{name} is {value} (--aorta-fail-on-nonfinite fails such trials)")
    if len(infinite) > _DOUBTED:
        doubts.append(f"{len(infinite)} metrics are not finite")
    for name in result.output.get("detected", ()):
        if name != "nan" or not infinite:
            doubts.append(f"its output says {name} (--aorta-fail-on=@{name} fails such trials)")
    return list(map("passed=True, but {}".format, doubts))
