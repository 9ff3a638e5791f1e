"""The matrix is written at most twice a second, and in at most one percent of the time since the run began."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.plugin import writer as matrix_writer
from pytest_aorta.plugin.writer import LARGEST_SUMMARY, MatrixWriter, append_to_summary
from pytest_aorta.triage.verdicts import Triage
from pytest_aorta.workspace.trial_store import TrialStore


class Times:
    """A clock that stands still but for the steps it is given, and for what each write takes."""

    def __init__(self, costs: list[float]) -> None:
        self.now = 0.0
        self.costs = costs
        self.writes: list[tuple[float, float]] = []

    def write(self, path: Path, text: str) -> None:
        if path.name == "matrix.json":
            cost = self.costs[len(self.writes) % len(self.costs)]
            self.writes.append((self.now, cost))
            self.now += cost


@given(
    costs=st.lists(st.floats(0.0001, 0.2), min_size=1, max_size=5),
    pauses=st.lists(st.floats(0.001, 3.0), min_size=1, max_size=200),
)
def test_writes_take_one_percent_at_most_and_are_half_a_second_apart(costs: list[float], pauses: list[float]) -> None:
    times, triage = Times(costs), Triage()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix_writer, "write_text", times.write)
        writer = MatrixWriter(triage, TrialStore(Path("none"), "stamp"), Path("none"), [], lambda: times.now)
        for pause in pauses:
            times.now += pause
            writer.trial_is_over()
    spent = 0.0
    for number, (at, cost) in enumerate(times.writes):
        before = times.writes[number - 1] if number else (0.0, 0.0)
        assert at - sum(before) >= 0.5 - 1e-9
        assert spent <= 0.01 * at + 1e-9
        spent += cost


def test_the_summary_of_a_step_never_grows_beyond_what_is_shown(tmp_path: Path) -> None:
    summary, line = tmp_path / "summary.md", "| " + "x" * 97 + "\n"
    for _ in range(3):
        append_to_summary(summary, line * 6000)
    text = summary.read_text()
    assert LARGEST_SUMMARY - 1000 < len(text) <= LARGEST_SUMMARY
    assert set(text.splitlines()) == {
        "",
        line.strip("\n"),
        "The rest is in `matrix.md`: the summary of a step has no more room.",
    }
