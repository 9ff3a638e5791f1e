"""Which cell is compared with which, the verdicts, where trials were lost, and the closing sentence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from support.records import record
from support.triage_facts import CRASH, triage_of, trials

from pytest_aorta.settings import RequestError
from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.cells import CellStatistics
from pytest_aorta.triage.columns import conclusions
from pytest_aorta.triage.facts import CellKey, Place, TrialFacts, facts_of
from pytest_aorta.triage.verdicts import Baselines, Row, Table, Triage, check_baseline, choose_baselines


def cells(*of: list[TrialFacts]) -> list[CellStatistics]:
    triage = Triage()
    for facts in (each for found in of for each in found):
        triage.add(facts)
    return [cell.statistics for cell in triage.cells]


def chosen(found: Baselines) -> dict[str, str]:
    """Which cell each is compared with, by name."""
    return {key.cell: base.cell for key, base in found.of.items()}


def test_with_which_cell_each_is_compared() -> None:
    cases: list[tuple[str, str | None, dict[str, str]]] = [
        # Within its environment, and the baseline with that of the first one.
        (
            "local-a local-none rocm7-a rocm7-none",
            None,
            {"local-a": "local-none", "rocm7-a": "rocm7-none", "rocm7-none": "local-none"},
        ),
        # Without an empty set, the first cell.
        ("local-b local-a", None, {"local-a": "local-b"}),
        # A cell that is called baseline comes first.
        (
            "local-none local-a baseline-rocm6-b baseline-rocm6-none",
            None,
            dict.fromkeys(["local-none", "local-a", "baseline-rocm6-none"], "baseline-rocm6-b"),
        ),
        # A set that was asked for, in each environment; a cell that was, for all.
        *(
            (
                "local-none local-a+b rocm7-none rocm7-a+b",
                wanted,
                {"local-none": "local-a+b", "rocm7-none": "rocm7-a+b", "rocm7-a+b": "local-a+b"},
            )
            for wanted in ("a,b", "a+b")
        ),
        (
            "local-none local-a rocm7-none rocm7-a",
            "rocm7-none",
            dict.fromkeys(["local-none", "local-a", "rocm7-a"], "rocm7-none"),
        ),
    ]
    for names, wanted, compared in cases:
        pairs = [name.rsplit("-", 1) for name in names.split()]
        found = choose_baselines(
            cells(*(trials(name.replace("+", ","), "..", environment=place) for place, name in pairs)), wanted
        )
        assert chosen(found) == compared
        assert {key.cell for key in found.cells} == {*compared.values()}


def test_a_baseline_that_did_not_run_is_passed_over_unless_it_was_asked_for() -> None:
    found = cells(trials("none", "--"), trials("a", "-."), trials("b", ".."))
    assert chosen(choose_baselines(found)) == {"local-none": "local-a", "local-b": "local-a"}
    assert chosen(choose_baselines(found, "none")) == {"local-a": "local-none", "local-b": "local-none"}
    assert choose_baselines(cells(trials("none", "--"), trials("a", "--"))) == Baselines({}, ())


def test_workloads_are_not_compared_with_each_other() -> None:
    found = choose_baselines(
        cells(*(trials(name, "..", workload=workload) for name in ("none", "a") for workload in ("gemm", "fsdp")))
    )
    assert {(key.workload, base.workload) for key, base in found.of.items()} == {("gemm", "gemm"), ("fsdp", "fsdp")}
    assert len(found.cells) == 2


def test_a_cell_of_the_plan_may_be_asked_for() -> None:
    for wanted in ["local-a+b", "a,b", "a+b", "none"]:
        check_baseline(wanted, [("local-none", ["none"]), ("local-a+b", ["a", "b"])])


@pytest.mark.parametrize("wanted", ["b,a", "rocm7-none", ""])
def test_another_one_is_refused_with_the_names_that_there_are(wanted: str) -> None:
    with pytest.raises(RequestError) as refusal:
        check_baseline(wanted, [("local-none", ["none"]), ("local-a+b", ["a", "b"])])
    assert str(refusal.value) == (f"--aorta-baseline: there is no cell {wanted!r}; there are local-none, local-a+b")


def rows(*cells: list[TrialFacts], settings: TriageSettings | None = None) -> dict[str, Row]:
    return {row.cell.key.cell: row for row in triage_of(chain(*cells), settings).rows}


def kinds(*cells: list[TrialFacts], settings: TriageSettings | None = None) -> dict[str, str]:
    return {name: row.verdict.kind for name, row in rows(*cells, settings=settings).items()}


def test_a_comparison_has_a_difference_with_its_interval_and_a_bound_without_failures() -> None:
    found = rows(trials("none", "F" * 14 + "." * 6), trials("omp_1", "." * 20))
    assert found["local-none"].verdict.kind == "baseline"
    assert found["local-none"].comparison is None
    fixed = found["local-omp_1"]
    assert fixed.comparison is not None
    assert fixed.comparison.difference == pytest.approx(-0.7)
    assert fixed.comparison.interval.high < 0
    assert fixed.rate_below == pytest.approx(1 - 0.05 ** (1 / 20))


def test_failures_beside_those_of_the_baseline_have_a_verdict() -> None:
    cases: list[tuple[str, str, str]] = [
        ("F" * 14 + "." * 6, "." * 20, "fixes"),
        ("F" * 25 + "." * 25, "F" * 5 + "." * 45, "reduces"),
        ("F" * 25 + "." * 25, "F" * 45 + "." * 5, "worse"),
        # That it is no cure has to be shown.
        ("F." * 10, "F." * 10, "undecided"),
        ("F." * 20, "F." * 20, "no cure"),
        ("F." * 300, "F." * 300, "no cure"),
        ("F" * 5 + "." * 295, "F" * 5 + "." * 295, "undecided"),  # it may have become twice as frequent
        # Hangs count as failures, and infrastructure never.
        ("T" * 15 + "." * 5 + "E" * 2, "." * 20 + "E" * 3, "fixes"),
        ("F" * 10, "-" * 10, "did not run"),
        ("F" * 10, "E" * 10, "error"),
    ]
    for base, cell, kind in cases:
        found = rows(trials("none", base), trials("a", cell))["local-a"]
        assert found.verdict.kind == kind
        assert (found.comparison is None) == (kind in ("did not run", "error"))


def test_no_cure_says_how_often_it_fails_in_relation_to_the_baseline() -> None:
    few, many = (rows(trials("none", "F." * n), trials("a", "F." * n))["local-a"].verdict for n in (20, 300))
    assert (few.text, few.is_same) == ("no cure (0.57-1.8x)", False)
    assert (many.text, many.is_same) == ("no cure (0.86-1.2x)", True)


def test_trials_are_compared_with_those_at_their_place_or_with_their_seeds() -> None:
    def compared(*cells: list[TrialFacts]) -> float:
        found = rows(*cells)["local-a"].comparison
        assert found is not None
        return found.p

    # All that ran on one device have failed, and most of one cell did.
    cells = trials("none", "FF" + "." * 10), trials("a", "F" * 10 + "..")
    placed = ([replace(each, place=Place("n", (int(each.is_failure),))) for each in cell] for cell in cells)
    assert compared(*placed) == 1 > compared(*cells)

    cells = trials("none", "F" * 10 + "." * 10), trials("a", "F" * 4 + "." * 16)
    seeded = ([replace(each, run_seed=7) for each in cell] for cell in cells)
    assert compared(*seeded) == pytest.approx(0.5**6)


def test_trials_of_one_round_are_compared_with_each_other_where_cells_fail_together() -> None:
    bad = "FFFFFFF" + "." * 9 + "FFFF"  # rounds, in which all fail but the cured cell
    also = [trials(name, bad) for name in "bc"]
    found = rows(trials("none", bad), trials("a", "." * 20), *also)["local-a"]
    assert found.verdict.kind == "fixes"
    assert found.comparison is not None
    assert found.comparison.p == pytest.approx(0.5**11)


def test_a_baseline_that_ran_sooner_is_compared_where_both_ran() -> None:
    def at(minute: int, facts: TrialFacts) -> TrialFacts:
        return replace(facts, started_at=f"2026-01-01T{9 + minute // 60:02}:{minute % 60:02}:00.000+00:00")

    # The machine was bad while the baseline ran alone; later, nothing fails any more.
    base = [at(minute, facts) for minute, facts in enumerate(trials("none", "F" * 20 + "." * 20))]
    later = [at(20 + minute, facts) for minute, facts in enumerate(trials("a", "." * 20))]
    assert kinds(base, later)["local-a"] == "confounded"
    watched = Triage(TriageSettings(sequential=True))
    for facts in (*base, *later):
        watched.add(facts)
    assert watched.table().rows[1].verdict.kind == "undecided"
    cured = [at(minute, facts) for minute, facts in enumerate(trials("none", "F" * 20 + "F." * 10))]
    assert kinds(cured, later)["local-a"] == "fixes"


def test_three_failures_in_eight_against_none_need_more_trials() -> None:
    verdict = rows(trials("none", "FFF....."), trials("tf32_off", "." * 8))["local-tf32_off"].verdict
    assert verdict.more_trials is not None
    assert verdict.text == f"undecided (about {verdict.more_trials} more trials)"


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
    assert (steps.speed.kind, steps.speed.text) == ("n/a", "-")


def test_an_explicit_baseline_that_did_not_run_is_said() -> None:
    found = rows(trials("none", "-" * 5), trials("a", "." * 5), settings=TriageSettings(baseline="none"))
    assert found["local-a"].verdict.kind == "undecided"
    assert "local-none did not run" in found["local-a"].verdict.reason


def test_more_cells_need_more_evidence() -> None:
    def mixed(seed: int) -> str:
        return "".join(random.Random(seed).sample("F" * 6 + "." * 6, 12))

    one = rows(trials("none", "F" * 6 + "." * 6), trials("a", "." * 12))
    many = rows(
        trials("none", "F" * 6 + "." * 6),
        *(trials(f"m{i}", "." * 12 if i == 0 else mixed(i)) for i in range(12)),
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


def test_a_fault_that_another_one_has_hidden_is_no_exchange() -> None:
    crash = {"C": CRASH}
    base = trials("none", "F" * 20, signatures=crash)
    hidden = trials("a", "C" * 18 + "..", signatures=crash)
    table = triage_of([*base, *hidden])
    assert table.row(hidden[0].key).verdict.text == "leaves SIGSEGV"
    assert conclusions(table) == [
        "a fixes one way to fail: loss is nan in 0 of 20 (20 of 20 without it); "
        "SIGSEGV shows in 18 of 20 (it may have been hidden in 20 of 20)."
    ]
    fewer = conclusions(triage_of([*base, *trials("a", "C" * 6 + "." * 14, signatures=crash)]))
    assert "; SIGSEGV shows in 6 of 20 (it may have been hidden in 20 of 20)" in fewer[0]


def test_a_fault_is_not_rarer_for_time_outs_that_end_trials_first() -> None:
    base = trials("none", "FFFFFFFF" + "." * 12)
    cell = trials("a", "TTTTTTTTTTTT" + "FFF" + "." * 5)
    row = triage_of([*base, *cell]).row(cell[0].key)
    assert {way.signature.short: way.verdict.kind for way in row.by_signature} == {
        "timeout": "worse",
        "loss is nan": "undecided",
    }
    assert row.verdict.kind != "exchanges"


def test_while_trials_run_only_pairs_that_are_over_count() -> None:
    triage = Triage()
    base, cell = trials("none", "F" * 30), trials("a", "." * 30)
    for one, two in zip(base, cell, strict=True):
        for each in (one, two):
            triage.declare(each.key, each.environment, each.mitigations, each.index)
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


#: The contents of a trial file.
Record = dict[str, Any]

OK = record()
FAILED = record(exit_status="workload_failed", failure={"phase": "run", "kind": "exception", "message": "loss is nan"})
#: One process has hung in an import, before any trial of its cell had one.
IMPORT_HUNG = record(
    exit_status="timeout",
    failure={"phase": "import", "kind": "timeout", "message": "the deadline of 60 s passed in importing"},
    wall_clock_sec=None,
)
DIED_EARLY = record(
    exit_status="infrastructure_failed", failure={"phase": "setup", "kind": "signal", "message": "ended by SIGKILL"}
)


def facts(mitigation: str, *trials: Record) -> Iterator[Any]:
    in_some_order = random.Random(mitigation).sample(trials, len(trials))
    for index, each in enumerate(in_some_order):
        own: Record = {"cell": f"local-{mitigation}", "mitigations_applied": [mitigation], "trial_index": index}
        own["started_at"] = f"2026-01-01T00:{index:02}:{mitigation == 'none':02}.000+00:00"
        yield facts_of({**each, **own}, f"probe/local-{mitigation}/trial_{index}.json")


def judged(none: list[Record], m_a: list[Record]) -> tuple[Table, Row]:
    table = triage_of([*facts("none", *none), *facts("m_a", *m_a)])
    return table, next(row for row in table.rows if row.cell.key.cell == "local-m_a")


@pytest.mark.parametrize("hung", ["none", "m_a"])
def test_one_import_that_hung_is_no_effect_of_a_mitigation(hung: str) -> None:
    cells = {"none": [OK] * 10, "m_a": [OK] * 10, hung: [IMPORT_HUNG] * 10}
    table, row = judged(cells["none"], cells["m_a"])
    assert row.verdict.kind in ("baseline", "undecided", "did not run")
    assert not any(" fixes " in sentence or " worse" in sentence for sentence in conclusions(table))
    of_hung = next(row.cell for row in table.rows if row.cell.key.cell == f"local-{hung}")
    assert (of_hung.lost, of_hung.loss_events, of_hung.failures) == (10, 1, 0)


def test_where_many_trials_were_lost_nothing_is_said() -> None:
    cases: list[tuple[list[Record], list[Record], tuple[str, str]]] = [
        # One event does not take a verdict from the trials that ran, nor do a few losses.
        ([FAILED] * 10 + [OK] * 2, [IMPORT_HUNG] * 10 + [OK] * 10, ("fixes", "")),
        ([FAILED] * 18 + [DIED_EARLY] * 2, [OK] * 18 + [DIED_EARLY] * 2, ("fixes", "")),
        ([FAILED] * 12 + [OK] * 8, [DIED_EARLY] * 14 + [OK] * 6, ("undecided", "14 of 20 trials were lost")),
        (
            [DIED_EARLY] * 14 + [OK] * 6,
            [FAILED] * 14 + [OK] * 6,
            ("undecided", "14 of 20 trials of local-none were lost"),
        ),
        # Few, but those that might have failed.
        ([FAILED] * 7 + [OK] * 13, [DIED_EARLY] * 3 + [OK] * 20, ("undecided", "3 of 23 trials were lost")),
    ]
    for none, m_a, verdict in cases:
        _, row = judged(none, m_a)
        assert (row.verdict.kind, row.verdict.reason) == verdict


def said(*cells: list[TrialFacts]) -> list[str]:
    return conclusions(triage_of(chain(*cells)))


def test_what_fixes_is_named_with_its_evidence() -> None:
    assert said(trials("none", "F" * 14 + "." * 6), trials("omp_1", "." * 20)) == [
        "omp_1 fixes it: 0 of 20 failed, 14 of 20 without it (p < 0.0001); it removes at least 61% of the failures, "
        "and its failure rate is below 14%."
    ]


def test_of_several_the_one_that_is_not_slower_comes_first() -> None:
    base = trials("none", "F" * 14 + "." * 6, step_ms=(10.0, 11.0))
    slow, fast = trials("a", "." * 20, step_ms=(30.0, 31.0)), trials("b", "." * 20, step_ms=(10.0, 11.0))
    [sentence] = said(base, slow, fast)
    assert sentence.startswith("b fixes it: ")
    assert sentence.endswith("So does a. Slower steps: a +191% (184 to 198%).")
    [sentence] = said(base, slow)
    assert sentence.endswith("A fault of timing can hide in slower steps. Slower steps: a +191% (184 to 198%).")


def test_slower_and_faster_steps_are_said_whatever_becomes_of_failures() -> None:
    base = trials("none", "." * 20, step_ms=(10.0, 10.1))
    slow, fast = trials("a", "." * 20, step_ms=(11.0, 11.1)), trials("b", "." * 20, step_ms=(9.0, 9.1))
    [sentence] = said(base, slow, fast)
    assert sentence == (
        "Slower steps: a +10.0% (9.6 to 10.3%). Faster steps: b -10.0% (-10.3 to -9.6%). "
        "No failure: local-none has not failed in 20 trials; its failure rate is below 14%."
    )
    failing = trials("none", "F" + "." * 19, step_ms=(10.0, 10.1))
    assert said(failing, slow)[0].startswith("Undecided: ")
    assert said(failing, slow)[0].endswith(" Slower steps: a +10.0% (9.6 to 10.3%).")


def test_many_cells_of_which_none_helps_are_said_to_be_given_up() -> None:
    cells = [trials(name, "F." * 12) for name in ("none", "a", "b", "c", "d")]
    settings = TriageSettings(sequential=True, screens=True)
    assert conclusions(triage_of(chain(*cells), settings)) == [
        "No cure was found; a, b, c and d were given up early, probably leaving more than half of the failures of "
        "local-none."
    ]


def test_rarer_worse_and_equal_are_told_from_fixed() -> None:
    base = trials("none", "F" * 25 + "." * 25)
    assert said(base, trials("a", "F" * 5 + "." * 45))[0].startswith("a makes it rarer: 5 of 50 failed")
    assert said(base, trials("a", "F" * 48 + "."))[0].startswith("a makes it worse: 48 of 49 failed")
    many = "F" * 300 + "." * 300
    assert said(trials("none", many), trials("a", many)) == [
        "a does not change the failure rate of local-none by more than 50% of it or 10 points."
    ]


def test_too_few_trials_are_said_to_be_with_how_many_more() -> None:
    few = said(trials("none", "F......."), trials("a", "." * 8))
    assert few == [
        "Undecided: 8 trials of local-none and as many of a are too few to tell. "
        "At 12%, 76 trials of each cell show a cure in 90%."
    ]
    [sentence] = said(trials("none", "FFF....."), trials("a", "." * 8))
    assert sentence.startswith("Undecided: 8 trials of local-none and as many of a are too few to tell; about ")
    assert " more of each cell would be enough (a larger --aorta-trials, with --aorta-resume). At 38%, " in sentence


def test_a_baseline_that_does_not_fail_leaves_nothing_to_fix() -> None:
    assert said(trials("none", "." * 20), trials("a", "." * 20)) == [
        "No failure: local-none has not failed in 20 trials; its failure rate is below 14%."
    ]


def test_what_the_output_of_passed_trials_says_may_be_the_fault() -> None:
    base = trials("none", "." * 6)
    base[:3] = [replace(trial, detected=("nan",)) for trial in base[:3]]
    [sentence] = said(base, trials("a", "." * 6))
    assert sentence.startswith("No failure: local-none has not failed in 6 trials; ")
    assert sentence.endswith(" The output of 3 says nan: failures, if you add --aorta-fail-on=@nan.")


def test_a_cell_on_its_own_needs_no_sentence_and_workloads_have_one_each() -> None:
    assert said(trials("none", "F.F")) == []
    cells = [trials(name, text, workload=workload) for workload in ("gemm", "fsdp") for name, text in _PAIR.items()]
    assert [text.partition(":")[0] for text in said(*cells)] == ["gemm", "fsdp"]


_PAIR = {"none": "F" * 14 + "." * 6, "omp_1": "." * 20}
