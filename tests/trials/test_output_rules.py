"""What lines of output say: steps, metrics, failures."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.trials.command_line import OutputFindings, OutputRules, checked_metric, checked_regex, number

STEP = r"step (?P<step>-?\d+)"
LOSS = r"loss (?P<loss>\S+)"


def found_in(lines: list[str], rules: OutputRules, times: list[float] | None = None) -> OutputFindings:
    found = OutputFindings(rules)
    for at, line in zip(times or range(len(lines)), lines, strict=True):
        found.take(line, at)
    return found


numbers = st.one_of(st.integers(-(10**20), 10**20), st.floats(), st.sampled_from(["nan", "-inf", "x", "1e", "0.5,"]))
line = st.tuples(st.sampled_from(["loss", "step", "acc", "noise"]), numbers, st.sampled_from(["loss", "acc"]), numbers)


@given(st.lists(line.map(lambda words: " ".join(map(str, words)))))
def test_metrics_are_what_re_finds_in_the_log(lines: list[str]) -> None:
    patterns = (LOSS, r"acc (?P<acc>[-\w.]+)")
    found = found_in(lines, OutputRules(metric=patterns)).metrics

    log = "\n".join(lines)
    last = {name: each[name] for p in patterns for each in re.finditer(p, log) for name in each.groupdict()}
    assert found.keys() == last.keys()
    for name, text in last.items():
        value = found[name]
        try:
            expected = float(text.rstrip(","))
        except ValueError:
            assert value == text
        else:
            assert isinstance(value, int | float)
            assert value == expected or math.isclose(value, expected) or (math.isnan(value) and math.isnan(expected))


@given(st.lists(st.integers(0, 5), min_size=2), st.lists(st.floats(0.001, 1), min_size=2))
def test_step_times_sum_up_to_the_time_between_the_first_and_the_last_step(steps: list[int], gaps: list[float]) -> None:
    ascending = [sum(steps[: i + 1]) for i in range(len(steps))]
    times = [sum((gaps * len(steps))[:i]) for i in range(len(steps))]
    found = found_in([f"step {step}" for step in ascending], OutputRules(metric=(STEP,)), times)

    first = dict(reversed(list(zip(ascending, times, strict=True))))
    expected = [(b - a) * 1000 / (n - m) for (m, a), (n, b) in pairwise(sorted(first.items())) for _ in range(m, n)]
    assert found.step_times_ms == pytest.approx(expected, abs=1e-6)
    assert found.step == ascending[-1]


def test_lines_that_are_read_at_once_share_the_time_since_the_one_before() -> None:
    lines = [f"step {step}" for step in (0, 1, 2, 3, 4)]
    found = found_in(lines, OutputRules(metric=(STEP,)), [1.0, 1.0, 4.0, 4.0, 4.0])
    assert found.step_times_ms == [1000.0, 1000.0, 1000.0]


def test_a_duration_that_a_line_says_counts_instead_of_the_time_between_lines() -> None:
    rules = OutputRules(metric=(STEP + r" took (?P<step_ms>\S+)ms", r"took (?P<step_sec>\S+)s$"))
    found = found_in(["step 1 took 12.5ms", "step 2 took nanms", "step 3 took 0.5s"], rules)
    assert found.step_times_ms == [12.5, 500.0]
    assert found.metrics == {}


def test_step_and_total_may_stand_in_one_line_with_metrics() -> None:
    found = found_in(
        ["[  7/40] loss=0.5, lr=1e-3"], OutputRules(metric=(r"(?P<step>\d+)/(?P<total>\d+)\] loss=(?P<loss>\S+)",))
    )
    assert (found.step, found.total, found.metrics) == (7, 40, {"loss": 0.5})


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf", "Infinity", "-nan", "nan,"])
def test_a_metric_that_is_not_finite_fails_where_it_must_be(text: str) -> None:
    lines = ["step 4 loss 0.1", f"step 5 loss {text}", "step 6 loss 0.2", f"step 7 loss {text}"]
    failed = found_in(lines, OutputRules(metric=(STEP, LOSS), fail_on_nonfinite=True))
    assert (failed.failure_count, failed.first_failure) == (2, 5)
    assert failed.reason.endswith(" at step 5")
    assert found_in(lines, OutputRules(metric=(STEP, LOSS))).failures == []


def test_all_failures_are_counted_and_some_listed() -> None:
    found = found_in(["bad"] * 1000, OutputRules(fail_on=("ba.", "zzz")))
    assert found.failure_count == 1000
    assert found.failures == [{"message": "bad"}] * 20
    assert found.reason == "its output matches 'ba.': bad"


def test_what_is_no_expression_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="unterminated subpattern"):
        checked_regex("(")
    with pytest.raises(ValueError, match="named groups"):
        checked_metric(r"loss (\S+)")
    with pytest.raises(ValueError, match="without groups called"):
        checked_metric(r"(?P<returncode>\d)")


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), ("-3", -3), ("1e3", 1000.0), ("50%", 50), ("(0.25)", 0.25), ("1.2.3", None), ("", None)],
)
def test_a_number_may_have_punctuation_around_it(text: str, value: float | None) -> None:
    assert number(text) == value
