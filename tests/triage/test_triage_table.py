from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
from support.triage_facts import CRASH, trials

from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.verdicts import Row, Triage, triage_of


def rows(*cells: list[TrialFacts], settings: TriageSettings | None = None) -> dict[str, Row]:
    return {row.cell.key.cell: row for row in triage_of(chain(*cells), settings).rows}


def kinds(*cells: list[TrialFacts], settings: TriageSettings | None = None) -> dict[str, str]:
    return {name: row.verdict.kind for name, row in rows(*cells, settings=settings).items()}


def test_a_mitigation_without_a_failure_fixes_when_the_baseline_fails_often() -> None:
    found = rows(trials("none", "F" * 14 + "." * 6), trials("omp_1", "." * 20))
    assert found["local-none"].verdict.kind == "baseline"
    assert found["local-none"].comparison is None
    fixed = found["local-omp_1"]
    assert fixed.verdict.kind == "fixes"
    assert fixed.comparison is not None
    assert fixed.comparison.difference == pytest.approx(-0.7)
    assert fixed.comparison.interval.high < 0
    assert fixed.rate_below == pytest.approx(1 - 0.05 ** (1 / 20))


def test_one_failure_in_eight_against_none_is_undecided() -> None:
    found = rows(trials("none", "F......."), trials("tf32_off", "." * 8))
    verdict = found["local-tf32_off"].verdict
    assert verdict.kind == "undecided"
    assert verdict.more_trials is not None
    assert verdict.text == f"undecided (about {verdict.more_trials} more trials)"


def test_fewer_failures_reduce_and_more_are_worse() -> None:
    assert kinds(
        trials("none", "F" * 25 + "." * 25), trials("a", "F" * 5 + "." * 45), trials("b", "F" * 45 + "." * 5)
    ) == {"local-none": "baseline", "local-a": "reduces", "local-b": "worse"}


def test_no_effect_has_to_be_shown() -> None:
    few = kinds(trials("none", "F" * 10 + "." * 10), trials("a", "F" * 10 + "." * 10))
    many = kinds(trials("none", "F" * 300 + "." * 300), trials("a", "F" * 300 + "." * 300))
    some = kinds(trials("none", "F" * 20 + "." * 20), trials("a", "F" * 20 + "." * 20))
    assert few["local-a"] == "undecided"
    assert some["local-a"] == "no cure"
    assert many["local-a"] == "no effect"


def test_slower_and_faster_are_verdicts_only_where_nothing_fails() -> None:
    quick, slow = (10.0, 10.1), (13.0, 13.2)
    base = trials("none", "." * 12, step_ms=quick)
    cells = trials("a", "." * 12, step_ms=slow), trials("b", "." * 12, step_ms=(8.0, 8.1)), trials("c", "." * 12)
    assert kinds(base, *cells) == {
        "local-none": "baseline",
        "local-a": "slower",
        "local-b": "faster",
        "local-c": "undecided",
    }
    failing = trials("none", "F" + "." * 11, step_ms=quick)
    assert kinds(failing, cells[0])["local-a"] == "undecided"
    assert kinds(base, trials("a", "F" + "." * 11, step_ms=slow))["local-a"] == "undecided"
    assert kinds(base, trials("a", "F" * 12, step_ms=slow))["local-a"] == "worse"


def test_runs_of_commands_without_steps_are_compared_as_wholes() -> None:
    times = {"none": (1.0, 1.01), "a": (2.0, 2.02)}
    cells = {
        name: [replace(facts, run_sec=run_sec[facts.index % 2]) for facts in trials(name, "." * 8)]
        for name, run_sec in times.items()
    }
    row = rows(*cells.values())["local-a"]
    assert row.verdict.kind == "slower"
    assert row.speed is not None
    assert (row.speed.of, row.speed.change) == ("runs", "+100% (99 to 101%)")
    [*_, steps] = rows(cells["none"], cells["a"], trials("b", "." * 8, step_ms=(5.0,))).values()
    assert steps.speed is not None
    assert steps.speed.kind == "n/a"


def test_hangs_count_as_failures_and_infrastructure_never() -> None:
    found = rows(trials("none", "T" * 15 + "....." + "E" * 2), trials("a", "." * 20 + "E" * 3))
    assert found["local-none"].cell.rate == pytest.approx(15 / 20)
    assert found["local-none"].cell.count("infrastructure") == 2
    assert found["local-a"].verdict.kind == "fixes"


def test_what_did_not_run_is_compared_with_nothing() -> None:
    found = rows(trials("none", "F" * 10), trials("a", "-" * 10), trials("b", "E" * 10))
    assert found["local-a"].verdict.kind == "did not run"
    assert found["local-b"].verdict.kind == "error"
    assert found["local-a"].comparison is found["local-b"].comparison is None


def test_a_cell_is_compared_with_the_baseline_of_its_environment() -> None:
    cells = [
        trials(name, "F" * 10 + "." * 10, environment=where) for where in ("local", "rocm") for name in ("none", "a")
    ]
    found = rows(*cells)
    compared = {name: row.comparison.baseline.cell for name, row in found.items() if row.comparison is not None}
    assert compared == {"local-a": "local-none", "rocm-a": "rocm-none", "rocm-none": "local-none"}


def test_an_explicit_baseline_that_did_not_run_is_said() -> None:
    found = rows(trials("none", "-" * 5), trials("a", "." * 5), settings=TriageSettings(baseline="none"))
    assert found["local-a"].verdict.kind == "undecided"
    assert "local-none did not run" in found["local-a"].verdict.reason


def test_more_cells_need_more_evidence() -> None:
    one = rows(trials("none", "F" * 6 + "." * 6), trials("a", "." * 12))
    many = rows(
        trials("none", "F" * 6 + "." * 6),
        *(trials(f"m{i}", "." * 12 if i == 0 else "F" * 6 + "." * 6) for i in range(12)),
    )
    few, lots = one["local-a"].comparison, many["local-m0"].comparison
    assert few is not None
    assert lots is not None
    assert few.p == lots.p
    assert lots.p_adjusted == pytest.approx(12 * lots.p)
    assert (one["local-a"].verdict.kind, many["local-m0"].verdict.kind) == ("fixes", "undecided")


def test_two_bugs_are_judged_one_by_one() -> None:
    crash = {"C": CRASH}
    found = rows(
        trials("none", "F" * 20 + "C" * 2 + "." * 18, signatures=crash), trials("a", "CCC" + "." * 37, signatures=crash)
    )
    by_type = {each.signature.kind: each for each in found["local-a"].by_signature}
    assert by_type["result"].verdict.kind == "fixes"
    assert by_type["signal"].verdict.kind == "undecided"
    assert (by_type["signal"].failures, by_type["signal"].base_failures) == (3, 2)


def test_the_speed_of_a_cell_is_judged_where_it_has_step_times() -> None:
    base = trials("none", "F" * 10 + "." * 10, step_ms=(10.0, 10.2, 9.9))
    found = rows(base, trials("slow", "." * 20, step_ms=(13.0, 13.2, 12.9)), trials("untimed", "." * 20))
    slow, untimed = found["local-slow"].speed, found["local-untimed"].speed
    assert slow is not None
    assert slow.text == "slower: +30% (29 to 31%)"
    assert untimed is not None
    assert (untimed.kind, untimed.text) == ("n/a", "-")


def test_while_trials_run_only_pairs_that_are_over_count() -> None:
    triage = Triage()
    base, cell = trials("none", "F" * 30), trials("a", "." * 30)
    for one, two in zip(base, cell, strict=True):
        for each in (one, two):
            triage.declare(each.key, each.environment, each.mitigations)
            triage.begin(each.key, each.index)
            if each.index != 0 or each is two:
                triage.add(each)
    held_up = triage.table(running=True).row(cell[0].key)
    assert held_up.comparison is not None
    assert held_up.comparison.p == 1
    triage.add(base[0])
    assert triage.table(running=True).row(cell[0].key).verdict.kind == "fixes"


def test_sequential_statistics_do_not_depend_on_when_they_were_asked_for() -> None:
    base, cell = trials("none", "F.FF.F.FFF..F"), trials("a", "...F...........")
    watched, unwatched = (Triage(TriageSettings(sequential=True)) for _ in range(2))
    for each in chain(*zip(base, cell, strict=False), cell[len(base) :]):
        for triage in (watched, unwatched):
            triage.add(each)
        watched.table(running=True)
    key = CellKey("gemm", "local-a")
    one, other = watched.table().row(key).comparison, unwatched.table().row(key).comparison
    assert one is not None
    assert other is not None
    assert one.p == pytest.approx(other.p)
    assert one.interval == other.interval
