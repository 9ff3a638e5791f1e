"""How many trials of each cell show a cure in 90 %, and runs that end when they have had them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, fisher_exact
from support.triage_facts import triage_of, trials

from pytest_aorta.settings import MOST_OF_AUTO
from pytest_aorta.triage import Stop, TriageSettings
from pytest_aorta.triage.columns import conclusions
from pytest_aorta.triage.decisions import Decisions
from pytest_aorta.triage.power import smallest_fault, trials_needed
from pytest_aorta.triage.verdicts import Triage


def letters(rate: float, number: int, generator: np.random.Generator) -> str:
    return "".join("F" if lot < rate else "." for lot in generator.random(number))


def test_so_many_trials_call_a_cure_so_in_nine_of_ten_tables() -> None:
    for sequential in [False, True]:
        for rate in [0.3, 0.5]:
            needed = trials_needed(rate, sequential=sequential)
            assert needed is not None
            generator = np.random.default_rng(7)
            found = 0
            for _ in range(60):
                cells = trials("none", letters(rate, needed, generator)), trials("cure", "." * needed)
                table = triage_of([each for cell in cells for each in cell], TriageSettings(sequential=sequential))
                # The veto on failures in runs is another question.
                found += table.rows[1].verdict.kind == "fixes" or "come in runs" in table.rows[1].verdict.reason
            assert 48 <= found <= 59


@pytest.mark.parametrize(("trials", "comparisons"), [(8, 1), (20, 7), (120, 3)])
def test_the_forecast_is_the_power_of_fishers_test_and_of_the_bound(trials: int, comparisons: int) -> None:
    rate = smallest_fault(trials, comparisons)
    assert rate is not None
    bound = 1 - 0.05 ** (1 / trials)

    def power(rate: float) -> float:
        shown = [
            fisher_exact(np.array([[0, failures], [trials, trials - failures]])).pvalue * comparisons < 0.05
            and bound < failures / trials / 2
            for failures in range(trials + 1)
        ]
        return float(sum(binom.pmf(failures, trials, rate) for failures in range(trials + 1) if shown[failures]))

    assert power(rate) >= 0.9 > power(rate - 0.002)
    # The header and the sentence below the table are one promise.
    assert trials_needed(float(f"{rate:.2g}"), comparisons) in range(trials - 3, trials + 4)


def test_rarer_faults_more_cells_and_tests_at_any_time_need_more_trials() -> None:
    numbers = [trials_needed(rate) or 0 for rate in (0.9, 0.5, 0.3, 0.1, 0.03)]
    assert numbers == sorted(numbers)
    assert (trials_needed(0.3, 6) or 0) > (trials_needed(0.3) or 0)
    assert (trials_needed(0.5, sequential=True, confirm=True) or 0) > (trials_needed(0.5, sequential=True) or 0)
    assert (trials_needed(0.5, sequential=True) or 0) >= (trials_needed(0.5) or 0)
    assert trials_needed(0.0) is None
    assert trials_needed(0.001) is None
    assert smallest_fault(3) is None


def test_the_table_says_how_many_trials_show_a_cure_while_that_is_open() -> None:
    few = triage_of([*trials("none", "..F..F...F" * 1), *trials("a", ".....F....")])
    assert conclusions(few)[0].endswith(" At 30%, 29 trials of each cell show a cure in 90%.")
    many = triage_of([*trials("none", "..F..F...F" * 4), *trials("a", "F.....F..." * 4)])
    assert "A cure would have shown in 90%: at 30%, 29 trials of each cell do." in conclusions(many)[0]
    decided = triage_of([*trials("none", "F.F.FF.FF." * 4), *trials("a", "." * 40)])
    assert "show a cure" not in conclusions(decided)[0]


def test_cells_end_when_they_are_decided_or_have_had_the_trials_that_show_a_cure() -> None:
    generator = np.random.default_rng(3)
    number = MOST_OF_AUTO
    cells = [trials("none", letters(0.5, number, generator)), trials("cure", "." * number)]
    cells.append(trials("nothing", letters(0.42, number, generator)))
    triage = Triage(TriageSettings(sequential=True))
    for cell in cells:
        triage.declare(cell[0].key, cell[0].environment, cell[0].mitigations)
    decisions = Decisions(triage, Stop(decided=True, power=True))
    for facts in (each for turn in zip(*cells, strict=True) for each in turn):
        if facts.key not in decisions.stopped:
            triage.add(facts)
            decisions.update(facts.key)
    reasons = {key.cell: reason for key, reason in decisions.stopped.items()}
    assert reasons["local-cure"].startswith("decided: fixes (0 of ")
    assert reasons["local-nothing"].startswith("decided: undecided with 90% power (")
    needed = trials_needed(0.5, 2, sequential=True) or 0
    assert all(cell.statistics.total <= needed + 6 for cell in triage.cells)


def test_a_cell_that_leads_has_more_trials_than_one_that_does_not() -> None:
    ends = {}
    for name, mine in (("leads", "F...." * 100), ("does not", "FF.F." * 100)):
        triage = Triage(TriageSettings(sequential=True))
        decisions = Decisions(triage, Stop(decided=True, power=True))
        for facts in (
            each for turn in zip(trials("none", ".FF.F" * 100), trials("a", mine), strict=True) for each in turn
        ):
            if not decisions.stopped:
                triage.add(facts)
                decisions.update(facts.key)
        ends[name] = triage.cells[1].statistics.total
        assert decisions.stopped
    assert ends["leads"] > ends["does not"]
