"""What a command has failed of: its end, or what it has said."""

from __future__ import annotations

import pytest

from pytest_aorta.launch.child.command import command_failure, command_result
from pytest_aorta.trials.output import OutputFindings, OutputRules

LOSS = r"loss (?P<loss>\S+)"
RAISED = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: bad\n'


def said(lines: list[str], rules: OutputRules) -> OutputFindings:
    found = OutputFindings(rules)
    for at, line in enumerate(lines):
        found.take(line, at)
    return found


@pytest.mark.parametrize(
    ("code", "lines", "rules", "message"),
    [
        (0, ["fine"], OutputRules(), None),
        (0, ["loss nan"], OutputRules(fail_on=("nan|inf",)), "its output matches 'nan|inf': loss nan"),
        (7, ["loss nan"], OutputRules(fail_on=("nan|inf",)), "its output matches 'nan|inf': loss nan"),
        (7, ["nan", "fine"], OutputRules(fail_on=("nan",), pass_on=("fine",)), "its output matches 'nan': nan"),
        (7, [" fine"], OutputRules(pass_on=("^ *fine$",)), None),
        (7, ["other"], OutputRules(pass_on=("fine",)), "ended itself with exit code 7"),
        (0, ["other"], OutputRules(pass_on=("a", "b")), "no line of its output matches 'a' or 'b'"),
        (7, ["other"], OutputRules(fail_on=("nan",)), "ended itself with exit code 7"),
        (0, ["loss nan"], OutputRules(metric=(LOSS,)), None),
        (0, ["loss nan"], OutputRules(metric=(LOSS,), fail_on_nonfinite=True), "loss is nan"),
        (0, ["loss inf"], OutputRules(metric=(LOSS,), pass_on=("loss",), fail_on_nonfinite=True), "loss is inf"),
        (-11, ["fine"], OutputRules(pass_on=("fine",)), "ended by SIGSEGV"),
        (-9, ["nan"], OutputRules(fail_on=("nan",)), "ended by SIGKILL"),
        (77, ["fine"], OutputRules(), "ended itself with exit code 77"),  # of which the outcome is decided elsewhere
        (1, ["no gpus"], OutputRules(skip_on=("no gpu",)), "cannot judge: no gpus"),
        (0, ["no gpus"], OutputRules(skip_on=("no gpu",), pass_on=("no",)), "cannot judge: no gpus"),
        (0, ["no gpus", "bad"], OutputRules(skip_on=("no gpu",), fail_on=("bad",)), "its output matches 'bad': bad"),
        (0, ["fine"], OutputRules(metric=("(?P<step>x)",)), "exit code 0, but no line of its output says a step"),
        (0, ["fine"], OutputRules(metric=("(?P<step>x)",), pass_on=("fine",)), None),
        (0, ["loss nan"], OutputRules(fail_on_nonfinite=True), "its output says nan: loss nan"),
        (-9, ["3/9"], OutputRules(metric=(r"(?P<step>\d+)/(?P<total>\d+)",)), "ended by SIGKILL, after step 3 of 9"),
    ],
)
def test_the_first_reason_decides(code: int, lines: list[str], rules: OutputRules, message: str | None) -> None:
    failure = command_failure(code, said(lines, rules), "")
    assert (failure and failure.message) == message
    result = command_result(code, said(lines, rules), "", 1.5)
    assert (result.passed, result.metrics["returncode"]) == (failure is None, code)


def test_an_exception_is_read_from_what_it_has_printed() -> None:
    failure = command_failure(1, said(["step 3"], OutputRules(metric=(r"step (?P<step>\d+)",))), RAISED)
    assert failure is not None
    assert (failure.kind, failure.type, failure.message, failure.exit_code) == (
        *("exception", "ValueError", "bad"),
        1,
    )
