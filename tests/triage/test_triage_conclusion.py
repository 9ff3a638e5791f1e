"""The closing sentence names the mitigation, the numbers, and what to do next."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from support.triage_facts import trials

from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.columns import conclusions
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.verdicts import triage_of


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


def test_many_cells_of_which_none_helps_are_said_to_be_dropped() -> None:
    cells = [trials(name, "F." * 12) for name in ("none", "a", "b", "c", "d")]
    settings = TriageSettings(sequential=True, screens=True)
    assert conclusions(triage_of(chain(*cells), settings)) == [
        "No cure was found; a, b, c and d were dropped early, probably leaving more than half of the failures of "
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
    [sentence] = said(trials("none", "F......."), trials("a", "." * 8))
    assert sentence.startswith("Undecided: 8 trials of local-none and as many of a are too few to tell; about ")
    assert sentence.endswith(" more of each cell would be enough (a larger --aorta-trials, with --aorta-resume).")


def test_a_baseline_that_does_not_fail_leaves_nothing_to_fix() -> None:
    assert said(trials("none", "." * 20), trials("a", "." * 20)) == [
        "Nothing to fix: local-none has not failed in 20 trials; its failure rate is below 14%."
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
