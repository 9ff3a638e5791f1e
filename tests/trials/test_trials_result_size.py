"""Results that are too large for a record."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.trials.conversion import bounded
from pytest_aorta.trials.records import ResultRecord


def test_the_largest_metrics_are_left_out() -> None:
    metrics = {"loss": 0.5, "blob": "x" * 1000, "larger": "y" * 2000, "small": "z" * 10}

    result = bounded(ResultRecord(True, metrics=metrics), limit=1100)

    assert result.metrics == {"loss": 0.5, "blob": "x" * 1000, "small": "z" * 10}
    assert [note["note"] for note in result.failure_details] == [
        "metrics.larger: 2014 bytes as JSON; left out",
        "metrics: 1 of 4 left out; 1100 bytes are kept",
    ]


def test_the_ends_of_lists_are_left_out() -> None:
    result = bounded(ResultRecord(True, step_times_ms=[float(n) for n in range(10, 90)]), limit=60)

    assert result.step_times_ms == [float(n) for n in range(10, 20)]
    assert result.failure_details == [{"note": "step_times_ms: the last 70 of 80 left out"}]


values = st.recursive(st.integers() | st.text(max_size=30), lambda inner: st.lists(inner, max_size=4), max_leaves=5)


@given(st.dictionaries(st.text(max_size=5), values, max_size=8), st.lists(st.floats(0, 1e6), max_size=20))
def test_what_is_kept_is_within_the_limit(metrics: dict[str, object], times: list[float]) -> None:
    result = bounded(ResultRecord(True, metrics=metrics, step_times_ms=times), limit=80)

    assert len(json.dumps(result.metrics)) <= 80
    assert len(json.dumps(result.step_times_ms)) <= 80
    assert result.metrics.items() <= metrics.items()
    complete = result.metrics == metrics and result.step_times_ms == times
    assert complete == (result.failure_details == [])
