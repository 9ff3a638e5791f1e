"""What the live view knows of a run: counts, and when trials and the run will be over."""

from __future__ import annotations

from pytest_aorta.plugin.live_view import CellName, LiveState, RunningTrial
from pytest_aorta.triage.facts import Outcome

NONE, OMP = ("gemm", "local-none"), ("gemm", "local-omp_1")


def expecting(*cells: CellName | None, slots: int = 1) -> LiveState:
    """A run that began at 0, with one item for each cell: item 0, item 1, ..."""
    state = LiveState(0.0, slots)
    state.expect((f"item {number}", cell) for number, cell in enumerate(cells))
    return state


def finish(state: LiveState, number: int, cell: CellName, seconds: float, outcome: Outcome = "ok") -> None:
    state.finished(number, cell, seconds, outcome)
    state.item_over(f"item {number}", ran=True)


def start(state: LiveState, number: int, cell: CellName | None, begun: float) -> RunningTrial:
    trial = state.running[number] = RunningTrial(f"trial {number}", cell, "slot 0", begun)
    return trial


def test_a_run_takes_the_median_of_its_cell_for_each_trial_to_come() -> None:
    state = expecting(NONE, NONE, NONE, NONE, OMP, OMP)
    for number, seconds in enumerate((10.0, 100.0, 12.0)):
        finish(state, number, NONE, seconds)
    finish(state, 4, OMP, 3.0)
    assert (state.done, state.total) == (4, 6)
    assert state.left(now=120.0) == 12.0 + 3.0


def test_a_cell_without_a_finished_trial_takes_as_long_as_the_others() -> None:
    state = expecting(NONE, OMP, OMP)
    finish(state, 0, NONE, 10.0)
    assert state.left(now=10.0) == 20.0


def test_slots_divide_the_time() -> None:
    state = expecting(NONE, NONE, NONE, slots=2)
    finish(state, 0, NONE, 10.0)
    start(state, 1, NONE, begun=10.0)
    assert state.left(now=10.0) == (10.0 + 10.0) / 2
    start(state, 2, NONE, begun=10.0)
    assert state.left(now=16.0) == (4.0 + 4.0) / 2


def test_a_trial_that_takes_longer_than_usual_is_over_soon() -> None:
    state = expecting(NONE, NONE)
    finish(state, 0, NONE, 10.0)
    trial = start(state, 1, NONE, begun=10.0)
    trial.reached(1, 11, now=15.0)  # five seconds of setup say nothing of the steps
    assert state.left_of(trial, now=15.0) == 5.0
    trial.reached(3, 11, now=17.0)
    assert state.left_of(trial, now=17.0) == 8.0


def test_of_a_first_trial_only_its_steps_say_when_the_run_is_over() -> None:
    state = expecting(NONE, NONE)
    trial = start(state, 0, NONE, begun=0.0)
    assert state.left(now=1.0) is None
    trial.reached(1, 5, now=1.0)
    trial.reached(2, 5, now=2.0)
    assert state.left(now=2.0) == 3.0 + 5.0


def test_a_trial_is_slow_that_takes_twice_its_cells_median() -> None:
    state = expecting(NONE, NONE, OMP)
    finish(state, 0, NONE, 4.0)
    trial, other = start(state, 1, NONE, begun=10.0), start(state, 2, OMP, begun=0.0)
    assert [state.is_slow(trial, now) for now in (17.9, 18.0)] == [False, True]
    assert not state.is_slow(other, now=1000.0)
    assert state.left_of(trial, now=18.0) is None


def test_failures_are_those_of_the_workload() -> None:
    state = expecting(*[NONE] * 5)
    outcomes: list[Outcome] = ["ok", "failed", "timeout", "infrastructure", "did not run"]
    for number, outcome in enumerate(outcomes):
        finish(state, number, NONE, 1.0, outcome)
    assert (state.cells[NONE].failed, state.cells[NONE].counted) == (2, 3)
