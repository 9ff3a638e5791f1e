from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

import pytest
from support.records import record

from pytest_aorta.triage.cells import CellTrials
from pytest_aorta.triage.facts import CellKey, Outcome, Place, TrialFacts, facts_of, steady_steps
from pytest_aorta.triage.rates import stratified_tails
from pytest_aorta.triage.where import Association, Associations, associations, dependence


def said(found: Associations) -> list[str]:
    """What is concluded of places, and warned of."""
    return [*([] if found.bad_place is None else [found.bad_place.sentence]), *found.warnings]


GPUS = tuple(Place("node1", (number,), number) for number in range(2))


@dataclass
class Trial:
    """One trial of a made-up run; ``number`` counts them in run order."""

    cell: int
    index: int
    number: int
    place: Place = GPUS[0]
    outcome: Outcome = "ok"
    culprit: tuple[int, int] | None = None
    step_ms: float | None = None


def run(cells: int, trials: int, *change: Callable[[Trial], None], grouped: bool = False) -> list[CellTrials]:
    """Cells that ran by turns, or one after the other; every ``change`` is made to each trial, in run order."""
    found = [CellTrials(CellKey("gemm", f"local-{cell}"), "local", (str(cell),)) for cell in range(cells)]
    order = [(cell, index) for index in range(trials) for cell in range(cells)]
    for number, (cell, index) in enumerate(sorted(order) if grouped else order):
        trial = Trial(cell, index, number)
        for each in change:
            each(trial)
        start = datetime(2026, 1, 1, 9, tzinfo=timezone.utc) + timedelta(minutes=number)
        found[cell].add(
            TrialFacts(
                key=found[cell].key,
                environment="local",
                mitigations=(str(cell),),
                trial_id=f"t{index}",
                index=index,
                file=f"{cell}/trial_{index}.json",
                outcome=trial.outcome,
                started_at=start.isoformat(timespec="milliseconds"),
                place=trial.place,
                culprit=trial.culprit,
                steps=None if trial.step_ms is None else steady_steps([trial.step_ms]),
            )
        )
    return found


def places(*of: Place, seed: int = 0) -> Callable[[Trial], None]:
    """Each place once in so many trials, in an order of its own each time."""
    generator, waiting = random.Random(seed), list[Place]()

    def choose(trial: Trial) -> None:
        if not waiting:
            waiting.extend(generator.sample(of, len(of)))
        trial.place = waiting.pop()

    return choose


def fails(when: Callable[[Trial], bool]) -> Callable[[Trial], None]:
    def change(trial: Trial) -> None:
        trial.outcome = "failed" if when(trial) else "ok"

    return change


def of(found: Associations, factor: str) -> Association:
    return next(test for test in found.tests if test.factor == factor)


def test_a_bad_device_is_named_and_its_slot_is_not_suspected_as_well() -> None:
    chance = random.Random(1)
    found = associations(
        run(2, 20, places(*GPUS), fails(lambda trial: trial.place.devices == (0,) and chance.random() < 0.8))
    )
    assert found.bad_place is not None
    assert (found.bad_place.factor, found.bad_place.value) == ("device", "GPU 0")
    failures = found.bad_place.failures
    assert said(found) == [
        f"{failures} of {failures} failures on GPU 0: suspect the device, not the variables "
        f"(GPU 0 ran 20 of 40 trials; p < 0.0001)",
    ]
    assert [(share.name, share.trials) for share in found.bad_place.shares] == [("GPU 0", 20), ("GPU 1", 20)]
    assert {test.factor for test in found.tests} == {
        *("device", "first trial", "order"),
        *("trial before", "trial before in its cell", "trial before at its place"),
    }


def test_two_bad_hosts_of_eight_are_both_named() -> None:
    at = places(*(Place(f"node{number}") for number in range(8)))
    found = associations(run(3, 24, at, fails(lambda trial: trial.place.host in ("node1", "node2"))))
    assert said(found)[0].startswith("18 of 18 failures on node1 and node2: suspect the hosts, not the variables (")


def test_the_first_trial_of_each_cell_is_a_place_of_its_own() -> None:
    found = associations(run(4, 20, fails(lambda trial: trial.index in (0, 5 + 3 * trial.cell))))
    assert said(found) == [
        "the first trial of a cell fails more often than later ones: 4 of 4, 4 of 76 (p = 0.0001); look at what only "
        "it does, such as to compile or to download"
    ]
    assert dependence(run(4, 20, fails(lambda trial: trial.index in (0, 5 + 3 * trial.cell)))) is None


def test_seeds_that_decide_are_named_with_a_trial_to_run_again() -> None:
    def seeded(fate: Callable[[Trial], bool]) -> list[CellTrials]:
        found = run(3, 20, fails(fate))
        for cell in found:
            for number, facts in list(cell.trials.items()):
                assert facts is not None
                cell.trials[number] = replace(facts, run_seed=7)
        return found

    made = associations(seeded(lambda trial: trial.index % 3 == 0 and trial.cell < 2))
    assert made.start is not None
    assert made.start.sentence == (
        "the seed decides it: 7 of 20 trials fail, the same ones in each cell that fails: 0, 3, 6, 9 and 3 more "
        "(p < 0.0001); --aorta-replay 0/trial_0.json runs one of them again"
    )
    assert made.warnings == ()
    chance = random.Random(1)
    assert associations(seeded(lambda trial: chance.random() < 0.4)).start is None


def nodes(hosts: Sequence[int], devices: int) -> list[Place]:
    return [Place(f"node{host}", (device,)) for host in hosts for device in range(devices)]


def test_what_all_bad_places_share_is_named() -> None:
    cases: list[tuple[int, list[Place], Callable[[Place], bool], str]] = [
        (40, nodes((1, 2), 4), lambda place: place == Place("node1", (3,)), "on GPU 3 of node1: suspect the device"),
        (40, nodes((1,), 8), lambda place: place.devices[0] in (1, 6), "on GPU 1 and GPU 6: suspect the devices"),
        # Devices that always ran together.
        (20, [Place("n", (0, 1)), Place("n", (2, 3))], lambda place: 2 in place.devices, "on GPU 2 and GPU 3: "),
        (30, [Place("n", job=each) for each in "123"], lambda place: place.job == "2", "in job 2: suspect the job"),
        (30, [Place("n", slot=each) for each in range(4)], lambda place: place.slot == 3, "in slot 3: suspect the"),
    ]
    for trials, at, is_bad, where in cases:
        found = associations(run(2, trials, places(*at), fails(lambda trial: is_bad(trial.place))))  # noqa: B023
        assert f" failures {where}" in said(found)[0]


def test_a_bad_host_is_named_and_its_devices_are_not() -> None:
    at = places(*nodes((1, 2, 10), 2))
    found = associations(run(3, 24, at, fails(lambda trial: trial.place.host == "node2")))
    assert said(found)[0].startswith("24 of 24 failures on node2: suspect the host, not the variables (node2 ran 24")
    assert [share.name for share in of(found, "host").shares] == ["node1", "node2", "node10"]
    assert not of(found, "device").is_significant


def test_a_place_where_failures_are_only_more_frequent_is_not_suspected() -> None:
    found = associations(
        run(4, 60, places(*GPUS), fails(lambda trial: trial.index % 3 < 1 + (trial.place.devices == (0,))))
    )
    assert found.bad_place is None
    assert said(found)[0].startswith("more failures on GPU 0 than elsewhere: ")


def test_where_other_things_matter_too_the_place_is_suspected_as_well() -> None:
    failing = fails(lambda trial: trial.place.devices == (0,))
    assert "suspect the device as well (" in said(associations(run(2, 20, places(*GPUS), failing), differ=True))[0]
    at = places(*(Place(f"node{number}") for number in range(16)))
    found = associations(run(2, 160, at, fails(lambda trial: trial.place.host == "node7" or trial.index % 9 == 0)))
    assert "failures on node7: suspect the host; the others have another cause (" in said(found)[0]


def test_places_that_are_those_of_one_cell_each_say_nothing() -> None:
    """Whether it is the cell or the place cannot be told."""

    def own(trial: Trial) -> None:
        trial.place = Place(f"node{trial.cell}")

    found = associations(run(2, 20, own, fails(lambda trial: trial.cell == 1 and trial.index % 4 != trial.index % 3)))
    assert "host" not in {test.factor for test in found.tests}


def test_the_rank_that_is_the_cause_is_named() -> None:
    def cause(trial: Trial) -> None:
        if trial.index % 2:
            trial.outcome, trial.culprit = "failed", (5 if trial.index != 7 else 2, 8)

    found = associations(run(1, 36, cause))
    assert said(found)[0].startswith("rank 5 is the cause in 17 of 18 failures: look at its device")
    assert found.bad_place is None
    assert [share.failures for share in of(found, "rank").shares] == [0, 0, 1, 0, 0, 17, 0, 0]


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2), (2, 4, 4), (3, 3, 3)])
def test_the_p_value_of_ranks_is_that_of_all_possibilities(sizes: tuple[int, ...]) -> None:
    for causes in itertools.product(*map(range, sizes)):
        cases = iter(zip(causes, sizes, strict=True))

        def cause(trial: Trial, cases: Iterator[tuple[int, int]] = cases) -> None:
            trial.outcome, trial.culprit = "failed", next(cases)

        found = of(associations(run(1, len(sizes), cause)), "rank")
        rank = int(found.value.removeprefix("rank "))
        as_many = [each for each in itertools.product(*map(range, sizes)) if each.count(rank) >= causes.count(rank)]
        total = len(list(itertools.product(*map(range, sizes))))
        assert found.p == pytest.approx(min(1.0, max(sizes) * len(as_many) / total))


def test_a_rank_is_the_culprit_where_all_others_failed_because_of_it() -> None:
    """Of each rank whether it failed because of another; ``None`` for one that has not failed."""
    cases: list[tuple[list[tuple[int, bool | None]], tuple[int, int] | None]] = [
        ([(0, True), (1, False), (2, True)], (1, 3)),
        ([(0, False), (1, False)], None),
        ([(0, None), (1, False), (2, None)], (1, 3)),
        ([(1, False)], None),
    ]
    for ranks, culprit in cases:
        failure = {"kind": "exception", "phase": "run"}
        listed = [
            {"rank": rank, "failure": None if because is None else failure, "collateral": bool(because)}
            for rank, because in ranks
        ]
        found = facts_of(
            record(exit_status="workload_failed", failure={**failure, "rank": 1}, ranks=listed), "trial_0.json"
        )
        assert found.culprit == culprit


def test_a_change_in_the_middle_of_the_run_is_named_and_what_it_means_for_cells() -> None:
    by_turns = associations(run(3, 20, fails(lambda trial: trial.number >= 30)))
    change = "the failure rate changes over the run: 0 of 20 in its first third, 20 of 20 in its last ("
    assert said(by_turns)[0].startswith(change)
    assert said(by_turns)[0].endswith("; no number holds for the whole run")
    assert by_turns.bad_place is None
    grouped = associations(run(3, 20, fails(lambda trial: trial.index >= 10), grouped=True))
    assert said(grouped)[0].endswith(
        "cells ran at different times, so that a difference between them may be this change"
    )


def in_runs(generator: random.Random, mean: float, rate: float) -> Iterator[bool]:
    """Failures in runs of this mean length."""
    fails = generator.random() < rate
    while True:
        yield fails
        leave = 1 / mean if fails else rate / (1 - rate) / mean
        fails = not fails if generator.random() < leave else fails


@pytest.mark.parametrize("per_cell", [True, False])
def test_failures_in_runs_are_found_within_a_cell_and_over_the_run(per_cell: bool) -> None:
    found = doubts = together = 0
    for seed in range(40):
        generator = random.Random(seed)
        series = [in_runs(generator, 5, 0.4) for _ in range(4)]

        def failing(trial: Trial, series: Sequence[Iterator[bool]] = series) -> bool:
            return next(series[trial.cell if per_cell else 0])

        cells = run(4, 20, fails(failing))
        made = associations(cells)
        found += made.runs is not None
        doubts += dependence(cells) is not None
        together += any("failures come and go over the run, in all cells together" in each for each in said(made))
        if made.runs is not None:
            assert made.runs.independent is not None
            assert made.runs.independent < 50
    assert found >= 36
    # Only runs within a cell make a difference between cells doubtful.
    assert doubts >= 38 if per_cell else doubts <= 4
    assert together <= 2 if per_cell else together >= 34


def test_a_bad_device_does_not_look_like_runs() -> None:
    """Consecutive trials of one device all fail, but no trial because of the one before."""
    for seed in range(20):
        chance = random.Random(seed).random

        def bad(trial: Trial, number: Callable[[], float] = chance) -> bool:
            return trial.place.devices == (0,) and number() < 0.7

        made = associations(run(2, 40, places(*GPUS, seed=seed), fails(bad)))
        assert made.bad_place is not None
        assert made.runs is None


def test_step_times_that_rise_are_named_and_small_changes_are_not() -> None:
    def times(rise: float, seed: int) -> Callable[[Trial], None]:
        noise = random.Random(seed)

        def change(trial: Trial) -> None:
            trial.step_ms = (100 + 50 * trial.cell) * (1 + rise * trial.index / 20) * noise.gauss(1, 0.03)

        return change

    found = [associations(run(4, 20, times(0.2, seed))) for seed in range(50)]
    assert sum(any("step times change over the run: +1" in text for text in said(each)) for each in found) >= 49
    assert associations(run(4, 20, times(0.001, 0))).significant == ()


def test_nothing_is_asked_of_few_or_equal_trials_and_of_records_without_times() -> None:
    assert associations([]).tests == ()
    assert associations(run(1, 1)).tests == ()
    assert associations(run(2, 20, places(*GPUS), fails(lambda trial: True))).significant == ()
    assert associations(run(2, 20, places(*GPUS))).significant == ()
    (cell,) = run(1, 20)
    for facts in cell.finished:
        cell.add(
            TrialFacts(cell.key, "local", ("0",), "t", facts.index, facts.file, "failed" if facts.index > 9 else "ok")
        )
    assert associations([cell]).tests == ()


def test_nothing_is_said_of_the_order_of_few_failures() -> None:
    for few in (2, 4):
        cells = run(2, 400, fails(lambda trial, last=100 + few: 100 <= trial.number < last))  # type: ignore[misc]
        assert said(associations(cells)) == []
        assert dependence(cells) is None


def test_independent_trials_rarely_leave_a_doubt() -> None:
    generator = random.Random(5)
    doubts = [dependence(run(2, 20, fails(lambda trial: generator.random() < 0.4))) for _ in range(200)]
    assert sum(doubt is not None for doubt in doubts) <= 20  # 10 are expected; more than 20 have a chance of 0.1 %


def test_trials_that_do_not_count_are_left_out() -> None:
    def lose(trial: Trial) -> None:
        if trial.place.devices == (0,):
            trial.outcome = "infrastructure"

    assert associations(run(2, 20, places(*GPUS), fails(lambda trial: trial.index % 2 == 0), lose)).bad_place is None


def test_the_tails_of_strata_are_those_of_all_ways_to_spread_the_failures() -> None:
    cases: list[Sequence[tuple[int, int, int, int]]] = [
        [(3, 5, 0, 4)],
        [(2, 3, 1, 4), (1, 2, 0, 3)],
        [(0, 3, 2, 3), (3, 3, 1, 2)],
        [(2, 2, 2, 2), (0, 1, 0, 4)],
    ]
    for tables in cases:
        spread = [
            [
                sum(index < trials for index in chosen)
                for chosen in itertools.combinations(range(trials + others), a + b)
            ]
            for a, trials, b, others in tables
        ]
        sums = [sum(each) for each in itertools.product(*spread)]
        seen = sum(table[0] for table in tables)
        expected = sum(each <= seen for each in sums) / len(sums), sum(each >= seen for each in sums) / len(sums)
        assert stratified_tails(tables) == pytest.approx(expected)


def exchangeable(generator: random.Random) -> list[CellTrials]:
    """A run in which nothing but the cell matters; sizes, places and rates differ from run to run."""
    cells, trials = generator.choice([1, 2, 3, 8]), generator.choice([5, 10, 20, 40])
    hosts, devices = generator.choice([1, 2, 4]), generator.choice([1, 2, 4])
    rates = [generator.random() ** 2 for _ in range(cells)]
    all_places = [Place(f"node{host}", (device,), device) for host in range(hosts) for device in range(devices)]

    def chance(trial: Trial) -> None:
        trial.outcome = "failed" if generator.random() < rates[trial.cell] else "ok"
        trial.step_ms = generator.gauss(100, 10)
        if trial.outcome == "failed":
            trial.culprit = generator.randrange(4), 4

    return run(cells, trials, places(*all_places, seed=generator.randrange(10**6)), chance)


@pytest.mark.parametrize(
    # Of 100, 1 is expected at most; more than 4 have a chance of 0.4 %.
    ("tables", "most"),
    [(100, 4), pytest.param(3_000, 40, marks=[pytest.mark.slow, pytest.mark.long])],
)
def test_at_most_one_in_a_hundred_tables_in_which_only_the_cell_matters_has_an_association(
    tables: int, most: int
) -> None:
    generator = random.Random(1)
    assert sum(bool(associations(exchangeable(generator)).significant) for _ in range(tables)) <= most
