"""The steps that a trial reports: the times between them, and the last one, which outlives its process."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stage import Stage

from pytest_aorta.trials.steps import KEPT, StepClock, StepCounter, read_steps, step_file


def clocked(*reports: tuple[object, float]) -> list[float]:
    clock = StepClock()
    clock.is_running = True
    for step, at in reports:
        clock.report(step, at)
    return clock.times_ms()


@given(st.lists(st.tuples(st.integers(-3, 30), st.floats(0.001, 10)), max_size=20))
def test_the_times_are_those_from_a_step_to_a_higher_one(gaps: list[tuple[int, float]]) -> None:
    moments = list(itertools.accumulate(gap for _, gap in gaps))
    reports = [(step, moment) for (step, _), moment in zip(gaps, moments, strict=True)]
    first = [next(group) for _, group in itertools.groupby(reports, key=lambda report: report[0])]
    expected = [
        (moment - before) * 1000 / (step - last)
        for (last, before), (step, moment) in itertools.pairwise(first)
        for _ in range(last, step)
    ]
    assert clocked(*reports) == pytest.approx(expected, abs=1e-6)


def test_steps_of_one_moment_share_the_time_since_the_one_before() -> None:
    assert clocked((0, 1.0), (1, 1.0), (2, 4.0), (3, 4.0), (4, 4.0), (5, 5.0)) == [1000.0] * 4


def test_reports_before_run_do_not_count() -> None:
    clock = StepClock()
    clock.report(1, 0.0)
    clock.report(2, 1.0)
    clock.is_running = True
    clock.report(3, 5.0)
    assert clock.times_ms() == []


def test_steps_that_would_have_to_be_waited_for_have_no_times() -> None:
    assert clocked((1, 0.0), (2, 1.0), ("3", 2.0), (4, 3.0), (5, 4.0)) == []


def test_of_many_steps_times_from_the_whole_run_are_kept() -> None:
    times = clocked(*((step, step**2 / 1000) for step in range(5 * KEPT)))
    assert KEPT / 2 <= len(times) <= KEPT
    assert times == sorted(times)
    assert times[0] == 1.0
    assert times[-1] > 2 * (5 * KEPT - 20)
    assert len(clocked((0, 0.0), (10**15, 1.0))) <= KEPT


def test_the_last_step_is_there_when_the_process_was_killed(tmp_path: Path) -> None:
    path = step_file(tmp_path, 3)
    child = os.fork()
    if child == 0:
        counter = StepCounter(path)
        for step in range(637):
            counter.set(step + 1, 1000)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)

    assert read_steps(path) == {"type": "progress", "step": 637, "total": 1000}


@pytest.mark.parametrize(("step", "total"), [(3.0, 10), ("3", 10), (2**70, 10), (None, 10), (3, 10.5)])
def test_what_is_no_whole_number_changes_nothing(tmp_path: Path, step: Any, total: Any) -> None:
    StepCounter(tmp_path / "gone" / "steps").set(1, 10)  # where no file can be written, that does no harm
    counter = StepCounter(tmp_path / "steps")
    counter.set(step, total)
    assert read_steps(tmp_path / "steps") is None
    counter.set(2, 10)
    counter.set(step, total)

    assert read_steps(tmp_path / "steps") == {"type": "progress", "step": 2, "total": 10}


WORKLOAD = """
class Reports:
    def __init__(self, config): self.given = config.get("given")
    def setup(self):
        self.progress(7)
    def run(self):
        for step in range(1, 6):
            self.progress(step, 5)
        return {"passed": True, "step_times_ms": [2.5] * 3 if self.given else []}

class Silent(Reports):
    def run(self): return {"passed": True}
"""


def test_the_record_and_the_table_have_them_where_the_workload_returns_none(stage: Stage) -> None:
    stage.write(reports=WORKLOAD)
    result = stage.run("reports.py", "--aorta-trials", "2")
    result.assert_outcomes(passed=4)
    records = {path: record["result"] for path, record in stage.trials().items()}
    assert len(records["Reports/trial_0.json"]["step_times_ms"]) == 4
    assert records["Silent/trial_0.json"]["step_times_ms"] == []
    result.stdout.fnmatch_lines(["cell * step ms", "Reports local-none  0 of 2 * *[0-9]", "Silent local-none *-"])
