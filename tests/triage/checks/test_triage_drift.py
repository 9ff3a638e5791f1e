from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from pytest_aorta.triage.cells import CellTrials
from pytest_aorta.triage.checks import drift_warnings
from pytest_aorta.triage.facts import CellKey, HostConditions, TrialFacts, steady_steps
from pytest_aorta.triage.verdicts import choose_baselines

MINUTE = 60.0
QUIET = HostConditions(
    "here", load=0.3, clock_mhz=2500, memory_available_bytes=2**34, cpu_pressure=1, memory_pressure=0
)

#: When a trial begins, in minutes: by its position in the plan.
Times = Callable[[int, int], float]


def by_turns(cell: int, index: int) -> float:
    return index * 4 + cell


def grouped(cell: int, index: int) -> float:
    return cell * 20 + index


def cell_of(
    cell: int,
    *,
    fails: Callable[[float], bool] = lambda at: False,
    step_ms: Callable[[float], float] = lambda at: 100.0,
    host: Callable[[float], HostConditions] = lambda at: QUIET,
    times: Times = by_turns,
    trials: int = 20,
) -> CellTrials:
    """A cell of which each trial is given by the time at which it begins: 0 to 1 over its 20 trials by turns."""
    name = ("none", "a", "b", "c")[cell]
    found = CellTrials(CellKey("gemm", f"local-{name}"), "local", (name,))
    for index in range(trials):
        minute = times(cell, index)
        at = minute / 80
        start = datetime(2026, 1, 1, 9, tzinfo=timezone.utc) + timedelta(minutes=minute)
        found.add(
            TrialFacts(
                key=found.key,
                environment="local",
                mitigations=(name,),
                trial_id=f"t{index}",
                index=index,
                file=f"{name}/trial_{index}.json",
                outcome="failed" if fails(at) else "ok",
                steps=steady_steps([step_ms(at)]),
                started_at=start.isoformat(timespec="milliseconds"),
                wall_sec=MINUTE,
                host=host(at),
            )
        )
    return found


def warnings(cells: Sequence[CellTrials]) -> tuple[str, ...]:
    baselines = choose_baselines([cell.statistics for cell in cells])
    return drift_warnings(cells, {base: baselines.family(base) for base in baselines.cells})


def slower(at: float) -> float:
    """Steps of 100 ms that end as 120 ms, with a noise of 3 %."""
    return random.Random(at).gauss(100 + 20 * at, 3)


def test_where_nothing_changes_nothing_is_warned_of() -> None:
    assert warnings([cell_of(0), cell_of(1)]) == ()


def test_failures_only_in_the_second_half_are_a_drift() -> None:
    (found,) = warnings([cell_of(cell, fails=lambda at: at > 0.5) for cell in range(3)])
    assert found == (
        "gemm local-none drifts: failure rate 0% in the first third of 20 trials, 100% in the last, since about trial "
        "11 (2026-01-01 09:44:00 UTC); all cells ran by turns, so that comparisons are fair, but no number holds for "
        "the whole run"
    )


def test_a_cell_that_nothing_is_compared_with_drifts_as_well() -> None:
    (found,) = warnings([cell_of(0, step_ms=slower)])
    assert found.endswith(" UTC); no number holds for the whole run")


def test_cells_that_ran_at_other_times_are_named() -> None:
    for fails in (lambda at: at > 0.125, lambda at: at < 0.125):
        cells = [cell_of(cell, fails=fails, times=grouped) for cell in range(3)]
        (found,) = warnings(cells)
        assert "local-a and local-b ran at other times" in found


def test_a_cell_of_which_most_trials_were_added_later_is_named() -> None:
    late = cell_of(2, fails=lambda at: at > 0.5, times=lambda cell, index: 60 + index)
    cells = [*(cell_of(cell, fails=lambda at: at > 0.5) for cell in range(2)), late]
    (found,) = warnings(cells)
    assert "; local-b ran at other times" in found


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"load": 1.9}, "load of the host, per CPU 0.3 in the first third of 19 trials, 1.9 in the last"),
        ({"cpu_pressure": 80.0}, "time waiting for a CPU 1% in the first third of 19 trials, 80% in the last"),
        ({"memory_pressure": 30.0}, "time waiting for memory 0% in"),
        ({"clock_mhz": 1800.0}, "clock of the processor 2500 MHz in"),
        ({"memory_available_bytes": 2**33}, "memory available on the host 16.0 GiB in"),
    ],
)
def test_a_change_of_the_host_is_a_drift(change: dict[str, float], text: str) -> None:
    def host(at: float) -> HostConditions:
        return replace(QUIET, **change) if at > 0.5 else QUIET  # type: ignore[arg-type]

    (found,) = warnings([cell_of(cell, host=host) for cell in range(4)])
    assert text in found


def test_a_cell_on_a_busier_host_than_its_baseline_is_named() -> None:
    def busy(at: float) -> HostConditions:
        return replace(QUIET, load=2.0)

    assert warnings([cell_of(0), cell_of(1), cell_of(2, host=busy), cell_of(3, host=busy)]) == (
        "gemm: load of the host, per CPU 2.0 in local-b and 2.0 in local-c, but 0.3 in its baseline local-none",
    )


def test_the_load_of_the_trials_themselves_is_no_drift() -> None:
    def host(at: float) -> HostConditions:
        return replace(QUIET, load=0.1 if at * 80 < 3 else 1.5)

    def times(cell: int, index: int) -> float:
        return index / 4

    assert warnings([cell_of(cell, host=host, times=times) for cell in range(2)]) == ()


def test_small_changes_are_none_however_sure() -> None:
    cells = [
        cell_of(cell, step_ms=lambda at: 100 + at, host=lambda at: replace(QUIET, load=0.3 + at / 10))
        for cell in (0, 1)
    ]
    assert warnings(cells) == ()


def test_few_trials_and_records_without_facts_are_no_reason_to_warn() -> None:
    assert warnings([cell_of(cell, fails=lambda at: at > 0.2, trials=7) for cell in range(2)]) == ()
    bare = [cell_of(cell, host=lambda at: HostConditions()) for cell in range(2)]
    for cell in bare:
        for facts in cell.finished:
            cell.add(replace(facts, started_at="", steps=None, wall_sec=None))
    assert warnings(bare) == ()
    assert drift_warnings([], {}) == ()


def undrifted(generator: random.Random, cells: int, trials: int) -> list[CellTrials]:
    """Cells whose trials are all drawn alike; rates and noise differ from table to table."""
    rate, noise = generator.random(), generator.choice([0.01, 0.03, 0.1])
    number = generator.random

    def host(at: float) -> HostConditions:
        return HostConditions(
            "here", 3 * number(), 1000 + 2000 * number(), round(2**34 * number()), 100 * number(), 100 * number()
        )

    return [
        cell_of(
            cell,
            fails=lambda at: number() < rate,
            step_ms=lambda at: generator.gauss(100, 100 * noise),
            host=host,
            trials=trials,
        )
        for cell in range(cells)
    ]


def warned(tables: int, seed: int) -> int:
    """How many tables without any change are warned of; sizes differ from table to table."""
    generator = random.Random(seed)
    return sum(
        bool(warnings(undrifted(generator, generator.choice([2, 3, 4]), generator.choice([8, 12, 20, 40]))))
        for _ in range(tables)
    )


def test_few_tables_without_a_change_are_warned_of() -> None:
    assert warned(100, seed=1) <= 4  # 1 is expected at most; more than 4 have a chance of 0.4 %


@pytest.mark.slow
@pytest.mark.long
def test_at_most_one_in_a_hundred_of_10_000_tables_without_a_change_is_warned_of() -> None:
    assert warned(10_000, seed=2) <= 100


def test_a_fifth_slower_is_found_nearly_always() -> None:
    def found(seed: int) -> bool:
        generator = random.Random(seed)
        cells = [cell_of(cell, step_ms=lambda at: generator.gauss(100 + 20 * at, 3)) for cell in range(4)]
        return any("drifts: step times" in text for text in warnings(cells))

    assert sum(map(found, range(100))) >= 99
