"""From the end of a command, and from what it has printed, to the result of a trial."""

from __future__ import annotations

from pytest_aorta.launch.diagnosis.exit_reason import infer_exit_reason
from pytest_aorta.trials.events import FailureData
from pytest_aorta.trials.outcome import Observed, after_step
from pytest_aorta.trials.output_rules import RETURNCODE, OutputFindings
from pytest_aorta.trials.returned import CommandResult

#: Characters of the last line of its standard error that a message quotes.
_SHOWN = 200


def command_failure(code: int, found: OutputFindings, errors: str) -> FailureData | None:
    """What a command has failed of; ``None`` when it has passed.

    The first of these decides: a signal; a line that matches ``fail_on``, or a metric that must be finite; ``pass_on``,
    in which case no exit code counts; the exit code.

    Args:
        code: exit code, negative for a signal.
        found: in its output.
        errors: the end of its standard error.
    """
    if code < 0:
        return _after(infer_exit_reason(code, None, errors), found)
    if found.failures:
        return {"phase": "run", "kind": "result", "message": found.reason}
    if found.passed:
        return None
    if code > 0:
        failure = _after(infer_exit_reason(code, None, errors), found)
        said = errors.rstrip().rpartition("\n")[2].strip() if failure["kind"] == "exit_code" else ""
        return {**failure, "message": f"{failure['message']}: {said[:_SHOWN]}"} if said else failure
    if found.rules.pass_on:
        patterns = " or ".join(map(repr, found.rules.pass_on))
        return _after({"phase": "run", "kind": "result", "message": f"no line of its output matches {patterns}"}, found)
    return None


def _after(failure: FailureData, found: OutputFindings) -> FailureData:
    """With the step that was the last; not in the message of an exception, which is the program's own."""
    if found.step is None or failure["kind"] == "exception":
        return failure
    step = after_step(Observed(progress={"type": "progress", "step": found.step, "total": found.total}))
    return {**failure, "message": f"{failure['message']}{step}"}


def command_result(code: int, found: OutputFindings, errors: str, elapsed: float) -> CommandResult:
    """The result of a command that has ended after ``elapsed`` seconds; the rest as of ``command_failure``."""
    failure = command_failure(code, found, errors)
    return CommandResult(
        passed=failure is None,
        failure_count=found.failure_count,
        first_failure_iteration=found.first_failure,
        failure_details=found.failures,
        total_iterations=max(0, found.step or 0),
        step_times_ms=found.step_times_ms,
        elapsed_sec=elapsed,
        metrics={**found.metrics, RETURNCODE: code},
        executed_iterations=None if found.step is None else max(0, found.step),
        configured_iterations=found.total if found.total is not None and found.total >= 0 else None,
        failure=failure,
    )
