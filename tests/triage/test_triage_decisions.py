from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.triage_facts import triage_of, trials

from pytest_aorta.triage import DECIDED, Stop, TriageSettings
from pytest_aorta.triage.decisions import Decisions
from pytest_aorta.triage.facts import CellKey, TrialFacts, WatchedVariables
from pytest_aorta.triage.sequential import is_hopeless
from pytest_aorta.triage.verdicts import Triage

SEQUENTIAL = TriageSettings(sequential=True)


class Watched:
    """A run whose cells stop as soon as they are decided."""

    def __init__(
        self, *cells: list[TrialFacts], baseline: str | None = None, goal: Stop = DECIDED, screens: bool = False
    ) -> None:
        self.triage = Triage(TriageSettings(baseline, sequential=True, screens=screens))
        for cell in cells:
            self.triage.declare(cell[0].key, cell[0].environment, cell[0].mitigations)
        self.decisions = Decisions(self.triage, goal)
        self.run: list[TrialFacts] = []
        for facts in chain(*zip(*cells, strict=True)):
            if facts.key not in self.decisions.stopped:
                self.run.append(facts)
                self.triage.add(facts)
                self.decisions.update(facts.key)

    def trials(self, cell: str) -> int:
        return sum(facts.key.cell == cell for facts in self.run)

    def reasons(self) -> dict[str, str]:
        return {key.cell: reason for key, reason in self.decisions.stopped.items()}


def test_a_cell_stops_when_it_is_decided_and_the_baseline_with_the_last() -> None:
    run = Watched(trials("none", "F" * 200), trials("omp_1", "." * 200), trials("half", "F." * 100))
    assert run.trials("local-omp_1") < 12
    assert run.trials("local-omp_1") < run.trials("local-half") == run.trials("local-none") < 40
    n = run.trials("local-omp_1")
    assert run.reasons()["local-omp_1"] == f"decided: fixes (0 of {n} against {n} of {n})"
    assert run.reasons()["local-half"].startswith("decided: reduces (")
    assert run.reasons()["local-none"] == "decided: every cell that is compared with it"


def test_no_cure_and_worse_are_decisions_unless_equivalence_is_asked_for() -> None:
    run = Watched(trials("none", "F." * 200), trials("same", "F." * 200), trials("bad", "F" * 400))
    assert run.reasons()["local-bad"].startswith("decided: worse (")
    assert run.reasons()["local-same"].startswith("decided: no cure (")
    assert run.trials("local-same") < 100
    cells = trials("none", "F." * 100), trials("same", "F." * 100)
    assert Watched(*cells, goal=Stop(decided=True, equivalence=True)).trials("local-same") == 200


def test_of_many_cells_the_hopeless_ones_end_early_and_say_after_how_many_trials() -> None:
    base, same = trials("none", "F." * 50), [trials(name, ".F" * 50) for name in ("a", "b", "c")]
    fix = trials("fix", "." * 100)
    run = Watched(base, *same, fix, screens=True)
    [given_up] = {run.trials(cell[0].key.cell) for cell in same}
    assert 8 <= given_up < 30
    half = f"{given_up // 2} of {given_up}"
    assert run.reasons()["local-a"] == f"decided: no cure? ({half} against {half})"
    assert run.reasons()["local-fix"].startswith("decided: fixes (0 of ")
    row = run.triage.table().row(same[0][0].key)
    assert row.verdict.text.startswith("no cure? (0.")
    failures = f"{given_up // 2} failures against {given_up // 2}"
    assert row.verdict.reason == f"given up after {given_up} trials: {failures}"
    few = Watched(base, *same[:2], fix, screens=True)
    assert few.trials("local-a") > given_up


def test_where_a_cure_is_asked_for_a_hopeless_cell_ends_early_also_where_it_is_the_only_one() -> None:
    cells = trials("none", "F." * 50), trials("a", ".F" * 50)
    triage = Triage(TriageSettings(sequential=True, screens=True, power=True))
    decisions = Decisions(triage, Stop(decided=True, power=True))
    for facts in chain(*zip(*cells, strict=True)):
        if not decisions.stopped:
            triage.add(facts)
            decisions.update(facts.key)
    assert triage.cells[1].statistics.total < 30
    reasons = {key.cell: reason.partition(" (")[0] for key, reason in decisions.stopped.items()}
    assert reasons == {
        "local-a": "decided: no cure?",
        "local-none": "decided: every cell that is compared with it",
    }


def test_what_raises_the_rate_is_not_hopeless_and_neither_is_what_has_not_failed() -> None:
    assert not any(is_hopeless(base, 0, trials) for trials in (8, 50, 200) for base in range(0, trials + 1, 4))
    assert not is_hopeless(2, 12, 20)
    assert is_hopeless(12, 12, 24)
    assert not is_hopeless(3, 3, 7)


def test_step_times_decide_where_that_is_asked_for_and_nothing_fails() -> None:
    quick, slow = (10.0, 10.1), (13.0, 13.2)
    cells = trials("none", "." * 40, step_ms=quick), trials("a", "." * 40, step_ms=slow)
    assert Watched(*cells).trials("local-a") == 40
    run = Watched(*cells, goal=Stop(decided=True, speed=True))
    assert run.trials("local-a") < 15
    assert run.reasons()["local-a"].startswith("decided: slower (+30% (")
    failing = trials("none", "F" + "." * 39, step_ms=quick)
    assert Watched(failing, cells[1], goal=Stop(decided=True, speed=True)).trials("local-a") == 40


def variables(**overlay: str) -> WatchedVariables:
    """Of a trial in a plan that watches two; nothing names NEVER_READ."""
    watched = ("NEVER_READ", "OMP_NUM_THREADS")
    resolved = tuple((name, overlay.get(name)) for name in watched)
    unset = tuple((name, None) for name in watched)
    return WatchedVariables(watched, tuple(overlay.items()), unset, resolved, frozenset({"NEVER_READ"}))


def test_for_inert_cells_alone_no_more_trials_are_run() -> None:
    base = trials("none", "F" * 200, variables=variables())
    inert = trials("inert", "F" * 200, variables=variables(NEVER_READ="1"))
    run = Watched(base, inert, trials("omp_1", "." * 200, variables=variables(OMP_NUM_THREADS="1")))
    assert run.trials("local-inert") <= run.trials("local-none") < 30
    assert run.reasons()["local-inert"] == "inert? (named by nothing that is loaded), and all others decided"
    assert "local-none" in run.reasons()


def test_undecided_cells_go_on_to_the_end_and_so_does_their_baseline() -> None:
    run = Watched(trials("none", "F...." * 4), trials("a", "....." * 4))
    assert (run.trials("local-none"), run.trials("local-a"), run.reasons()) == (20, 20, {})


def test_a_cell_that_never_runs_is_given_up_and_so_are_those_that_were_to_be_compared_with_it() -> None:
    run = Watched(trials("none", "F" * 20), trials("crash", "-" * 20), trials("late", "--" + "." * 18))
    assert run.trials("local-crash") == 3
    assert run.reasons()["local-crash"] == "decided: did not run (3 of 3 trials)"
    assert run.reasons()["local-late"].startswith("decided: fixes")
    assert Watched(trials("none", "-" * 20), trials("a", "." * 20), baseline="none").reasons() == {
        "local-none": "decided: did not run (3 of 3 trials)",
        "local-a": "not to be decided: its baseline local-none did not run",
    }
    # A baseline that was not asked for gives way to the next cell.
    run = Watched(trials("none", "-" * 20), trials("a", "F" * 20), trials("b", "." * 20))
    assert run.reasons()["local-b"].startswith("decided: fixes (0 of ")


def test_the_baseline_of_a_further_environment_goes_on_for_its_own_cells() -> None:
    venv_none = trials("none", "." * 60, environment="venv")
    venv_a = trials("a", "....F" * 12, environment="venv")
    run = Watched(trials("none", "F" * 60), venv_none, venv_a)
    assert run.decisions.decided[venv_none[0].key].startswith("fixes")  # against local-none, which needs few trials
    assert run.trials("local-none") < 12 < run.trials("venv-none") == run.trials("venv-a")


@pytest.mark.parametrize(("cells", "pairs"), [(2, 6), (9, 6)])
def test_cells_without_trials_share_the_level_from_the_beginning(cells: int, pairs: int) -> None:
    """As many pairs as are needed do not depend on which cells have begun: later ones take no decision back."""
    names = [f"m{number}" for number in range(1, cells)]
    triage = Triage(SEQUENTIAL)
    for cell in ["none", *names]:
        triage.declare(CellKey("gemm", f"local-{cell}"), "local", (cell,))
    decisions = Decisions(triage)
    fixed = trials("m1", "." * 40)
    for number, two in enumerate(zip(trials("none", "F" * 40), fixed, strict=True), start=1):
        for facts in two:
            triage.add(facts)
            decisions.update(facts.key)
        assert (fixed[0].key in decisions.decided) == (number >= pairs)
        if number == pairs:
            break
    assert triage.table().row(fixed[0].key).verdict.kind == "fixes"
    for name in names[1:]:
        for facts in trials(name, "F" * pairs):
            triage.add(facts)
    assert triage.table().row(fixed[0].key).verdict.kind == "fixes"


LETTERS = st.text(".F", min_size=25, max_size=25)


@settings(max_examples=15, deadline=None)
@given(LETTERS, LETTERS, LETTERS)
def test_what_was_decided_is_read_again_from_the_trials(base: str, one: str, other: str) -> None:
    run = Watched(trials("none", "F" * 4 + base), trials("a", "...." + one), trials("b", "FFFF" + other))
    table = triage_of(run.run, SEQUENTIAL)
    for row in table.rows:
        if row.cell.key in run.decisions.decided:
            said = run.decisions.decided[row.cell.key].partition(" (")[0]
            # Without failures, it may have had a baseline that failed more often by then; which cell fails more often
            # may change.
            assert said in (row.verdict.kind, "no cure") or {said, row.verdict.kind} == {"fixes", "reduces"}
