"""Trials that share a process: no difference is concluded from them as if each were a draw of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import fisher_exact
from support.records import record
from support.triage_facts import triage_of, trials

from benchmarks.simulated_worlds import simulate, worlds
from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.columns import bound_text, conclusions
from pytest_aorta.triage.draws import Start, check_forks, group_by_start, independent, more_starts, starts_p
from pytest_aorta.triage.facts import TrialFacts, facts_of
from pytest_aorta.triage.matrix import RunState, markdown, matrix_json
from pytest_aorta.triage.rates import difference_p
from pytest_aorta.triage.sequential import PairedEProcess
from pytest_aorta.triage.verdicts import Table, Triage


def in_starts(
    mitigations: str, *starts: str, timed: bool = False, seeds: Sequence[int | None] | None = None
) -> list[TrialFacts]:
    """Trials of a cell, start after start; a start of one letter is a process of its own."""
    found = trials(mitigations, "".join(starts), timed=timed)
    numbers = [number for number, start in enumerate(starts) for _ in start]
    known = seeds or [None] * len(starts)
    return [
        replace(facts, start=number if len(starts[number]) > 1 else None, hash_seed=known[number])
        for facts, number in zip(found, numbers, strict=True)
    ]


def pure(failed: int, all_: int, trials: int = 8) -> tuple[Start, ...]:
    return tuple(Start(trials if number < failed else 0, trials) for number in range(all_))


def kinds(table: Table) -> list[str]:
    return [row.verdict.kind for row in table.rows]


def said(table: Table) -> str:
    return " | ".join([*conclusions(table), *table.warnings])


def test_starts_that_are_alike_are_compared_as_by_fisher() -> None:
    cases: list[tuple[tuple[int, int], tuple[int, int]]] = [
        ((0, 5), (5, 5)),
        ((1, 8), (6, 8)),
        ((3, 4), (1, 6)),
        ((0, 30), (9, 30)),
    ]
    for cell, base in cases:
        table = [[cell[0], cell[1] - cell[0]], [base[0], base[1] - base[0]]]
        tails = min(fisher_exact(np.array(table), alternative=side).pvalue for side in ("less", "greater"))
        assert starts_p(pure(*cell), pure(*base)) == pytest.approx(min(1, 2 * tails))


def test_the_p_value_is_the_share_of_exchanges_that_are_as_extreme() -> None:
    cell = (Start(1, 6), Start(0, 5), Start(0, 1), Start(2, 9))
    base = (Start(4, 6), Start(5, 7), Start(1, 1), Start(0, 1))
    both = [*cell, *base]
    weights = [start.trials / (1 + 0.5 * (start.trials - 1)) for start in both]
    mean = sum(w * start.share for w, start in zip(weights, both, strict=True)) / sum(weights)
    scores = [w * (start.share - mean) for w, start in zip(weights, both, strict=True)]
    sums = [sum(scores[each] for each in chosen) for chosen in itertools.combinations(range(8), 4)]
    as_small = sum(each <= sums[0] + 1e-5 for each in sums) / len(sums)
    assert starts_p(cell, base) == pytest.approx(2 * as_small)


def test_starts_are_exchanged_within_their_place() -> None:
    def at(place: str, *shares: int) -> tuple[Start, ...]:
        return tuple(Start(share, 4, place) for share in shares)

    # Where one place fails always, and the other never, cells do not differ.
    assert starts_p((*at("a", 4, 4, 4), *at("b", 0)), (*at("a", 4), *at("b", 0, 0, 0))) == 1


def test_many_starts_are_exchanged_by_lot_and_always_with_the_same_result() -> None:
    generator = np.random.default_rng(1)
    sides = [tuple(Start(int(each), 20 + number) for number, each in enumerate(generator.integers(0, 20, 40)))
             for _ in range(2)]  # fmt: skip
    first = starts_p(*sides)
    starts_p.cache_clear()
    assert starts_p(*sides) == first
    assert 0 < first <= 1


def test_how_many_more_processes_a_difference_needs() -> None:
    cases: list[tuple[tuple[Start, ...], tuple[Start, ...], int, int | None]] = [
        (pure(0, 1), pure(1, 1), 1, 3),  # four of each: 2 / C(8, 4) is below 0.05
        (pure(0, 1), pure(1, 1), 2, 4),
        (pure(0, 5), pure(5, 5), 2, 0),
        (pure(0, 4), pure(2, 4), 1, 6),  # one in four fails: five, all in one cell of ten
        (pure(0, 2), (Start(3, 8), Start(4, 8)), 1, 2),
        (pure(0, 3), pure(0, 3), 1, None),
        ((), pure(1, 1), 1, None),
    ]
    for cell, base, comparisons, more in cases:
        assert more_starts(cell, base, comparisons) == more
        # Which cell fails does not matter, so that a run may go on to this number.
        assert more_starts(base, cell, comparisons) == more


def test_trials_that_are_alike_in_a_process_decide_nothing_but_say_what_would() -> None:
    triage = Triage()
    for facts in (*in_starts("none", "F" * 10, "F" * 10), *in_starts("a", "." * 10, "." * 10)):
        triage.add(facts)
    table = triage.table()
    assert kinds(table) == ["baseline", "undecided"]
    reason = "the trials of a process are alike here; 2 more processes of each cell (about 4 s) decide"
    assert table.rows[1].verdict.reason == reason
    assert f"Undecided: {reason}." in conclusions(table)
    assert triage.more_starts(running=False) == dict.fromkeys((row.cell.key for row in table.rows), 2)


@pytest.mark.parametrize(("starts", "kind", "p"), [(4, "reduces", 2 / 70), (5, "fixes", 2 / 252)])
def test_as_many_starts_as_a_test_needs_decide(starts: int, kind: str, p: float) -> None:
    # Four processes without a failure, whatever the number of their trials, leave more than half of a rate of 100 %.
    triage = Triage()
    for facts in (*in_starts("none", *["F" * 8] * starts), *in_starts("a", *["." * 8] * starts)):
        triage.add(facts)
    table = triage.table()
    assert kinds(table) == ["baseline", kind]
    assert table.rows[1].comparison is not None
    assert table.rows[1].comparison.p == pytest.approx(p)
    assert not triage.more_starts(running=False)


def test_a_cure_of_independent_trials_in_five_starts_is_found() -> None:
    base = ["F..F.F..", ".F.F...F", "..FF..F.", "F....F.F", "...F.FF."]
    table = triage_of([*in_starts("none", *base), *in_starts("a", *["." * 8] * 5)])
    assert kinds(table) == ["baseline", "fixes"]
    assert "its failure rate is below 7.3%; below 46% for what a process draws once (5 processes)" in said(table)


def test_trials_of_processes_of_their_own_are_compared_as_ever() -> None:
    one, other = trials("none", "F" * 14 + "." * 6), trials("a", "." * 20)
    numbered = [replace(facts, start=facts.index) for facts in (*one, *other)]
    plain = triage_of([*one, *other])
    assert [(row.verdict, row.comparison, row.start_rate_below) for row in triage_of(numbered).rows] == [
        (row.verdict, row.comparison, row.start_rate_below) for row in plain.rows
    ]


def test_cells_that_share_one_process_are_compared_by_their_trials() -> None:
    facts = [*trials("none", "F" * 14 + "." * 6), *trials("a", "." * 20)]
    assert kinds(triage_of(replace(each, start=0, in_one_process=True) for each in facts)) == ["baseline", "fixes"]
    # Of one fork server for each cell, nobody knows what these have drawn.
    assert kinds(triage_of(replace(each, start=0) for each in facts)) == ["baseline", "undecided"]


def test_a_bound_says_what_it_bounds() -> None:
    assert bound_text(1 - 0.05 ** (1 / 200)) == "below 1.5%"
    assert (
        bound_text(0.0149, 1 - 0.05 ** (1 / 10), 10)
        == "below 1.5%; below 26% for what a process draws once (10 processes)"
    )
    table = triage_of([*in_starts("none", "." * 20, "." * 20), *in_starts("a", "." * 20, "." * 20)])
    assert said(table) == (
        "No failure: local-none has not failed in 40 trials; its failure rate is below 7.3%; below 78% for what a "
        "process draws once (2 processes)."
    )


def test_the_table_says_from_how_many_starts_trials_come() -> None:
    table = triage_of([*in_starts("none", ".", "F.F", "..F"), *trials("a", "......")])
    text = markdown(table, RunState())
    assert "| From |" in text
    assert "| 3 starts |" in text
    assert [cell["starts"] for cell in json.loads(matrix_json(table, RunState()))["cells"]] == [3, None]
    assert "From" not in markdown(triage_of(trials("a", "......")), RunState())


def test_failures_that_go_with_starts_are_named() -> None:
    expected = "failures depend on what a process draws at its start: all 12 in starts 0 and 2, none of 8 in start 1"
    found = said(triage_of(in_starts("none", "F" * 6, "." * 8, "F" * 6, timed=True)))
    assert found.startswith(expected)
    assert "come in runs" not in found


def commands(outcomes: dict[str, str], seeds: Sequence[int]) -> list[TrialFacts]:
    return [
        replace(facts, hash_seed=seeds[facts.index])
        for name, text in outcomes.items()
        for facts in trials(name, text, timed=True)
    ]


SEEDS = (11, 87, 4, 52, 7, 23, 42, 99, 63, 18)


def test_a_hash_seed_that_decides_is_named_for_commands() -> None:
    same = "FF..F.F.F."
    found = said(triage_of(commands({"none": same, "a": same, "b": same}, SEEDS)))
    assert (
        "PYTHONHASHSEED decides it: fails with 7, 11, 42, 63 and 1 more, passes with 4, 18, 23, 52 and 1 more" in found
    )


def test_one_exception_or_a_shared_seed_of_all_generators_and_nothing_is_said_of_the_hash_seed() -> None:
    same = "FF..F.F.F."
    table = triage_of(commands({"none": same, "a": same, "b": "FF..F.F..F"}, SEEDS))
    assert "PYTHONHASHSEED" not in said(table)
    seeded = [replace(facts, run_seed=7) for facts in commands({"none": same, "a": same, "b": same}, SEEDS)]
    assert "PYTHONHASHSEED" not in said(triage_of(seeded))


def test_the_hash_seed_of_starts_takes_the_place_of_the_starts() -> None:
    starts = ["FFF", "...", "FFF", "...", "FFF", "...", "FFF", "..."]
    cells = [facts for name in ("none", "a", "b") for facts in in_starts(name, *starts, timed=True, seeds=SEEDS[:8])]
    found = said(triage_of(cells))
    assert "PYTHONHASHSEED decides it: fails with 4, 7, 11 and 42, passes with 23, 52, 87 and 99" in found
    assert "at its start" not in found


def test_processes_of_their_own_that_differ_from_forks_are_told() -> None:
    cell = in_starts("none", "F", "F", "." * 20, "F", "." * 20, "F", ".")
    check = check_forks(cell)
    assert (check.own_failures, check.own, check.fork_failures, check.forks) == (4, 5, 0, 40)
    assert check.p == difference_p(4, 5, 0, 40) < 0.0001
    assert check.differ
    sentence = "processes of their own fail in 4 of 5, forks in 0 of 40: trials go on as processes of their own"
    assert sentence in said(triage_of(cell))
    assert not check_forks(in_starts("none", "F", ".", "F." * 10, ".")).differ
    assert not check_forks([]).differ


def test_a_start_is_one_observation_while_trials_run() -> None:
    settings = TriageSettings(sequential=True)
    naive = triage_of([*trials("none", "F" * 40), *trials("a", "." * 40)], settings)
    assert kinds(naive) == ["baseline", "fixes"]
    shared = triage_of([*in_starts("none", *["F" * 20] * 2), *in_starts("a", *["." * 20] * 2)], settings)
    assert kinds(shared) == ["baseline", "undecided"]
    many = triage_of([*in_starts("none", *["FF"] * 20), *in_starts("a", *[".."] * 20)], settings)
    assert kinds(many)[1] in ("fixes", "reduces")


def test_the_last_start_does_not_count_while_it_serves() -> None:
    triage = Triage(TriageSettings(sequential=True))
    for facts in (*in_starts("none", "FF", "FF"), *in_starts("a", "..", "..")):
        triage.add(facts)
    key, baseline = (cell.key for cell in reversed(triage.cells))
    assert triage._test(key, baseline).pairs == [(1.0, 0.0)]
    assert triage._test(key, baseline, ended=True).pairs == [(1.0, 0.0)] * 2


def test_the_bet_on_a_share_is_the_mean_of_bets_on_its_trials() -> None:
    before = [(True, False)] * 3
    shares = PairedEProcess([0.0])
    shares.extend([*before, (0.25, 0.5)])
    expected = np.zeros(2)
    for base, cell in itertools.product((False, False, False, True), (False, True)):
        one = PairedEProcess([0.0])
        one.extend([*before, (base, cell)])
        expected += np.exp(one.log_capital) / 8
    assert np.exp(shares.log_capital) == pytest.approx(expected)


def test_how_many_independent_trials_starts_are() -> None:
    assert independent(pure(0, 5, 8)) == pytest.approx(5)
    assert independent([Start(0, 1)] * 7) == pytest.approx(7)
    assert independent([Start(0, 38), Start(0, 1), Start(0, 1)]) == pytest.approx(1600 / 1446)


def test_facts_have_the_start_and_the_hash_seed_of_a_record() -> None:
    seeds = {"seed": 1, "generators": {}, "hash": 11}
    facts = facts_of(record(zygote=2, seeds=seeds), "probe/trial_0.json")
    assert (facts.start, facts.hash_seed, facts.in_one_process) == (2, 11, False)
    ranks = [{"rank": 1, "seeds": {**seeds, "hash": 5}}, {"rank": 0, "seeds": {**seeds, "hash": 4}}]
    facts = facts_of(record(ranks=ranks, request={"isolation": "none"}), "probe/trial_0.json")
    assert (facts.start, facts.hash_seed, facts.in_one_process) == (None, 4, True)
    assert facts_of(record(), "probe/trial_0.json").hash_seed is None


def test_starts_are_the_processes_of_counted_trials() -> None:
    assert [(start.failures, start.trials) for start in group_by_start(in_starts("none", "F", "FE.", ".", "--"))] == [
        (1, 1),
        (1, 2),
        (0, 1),
    ]


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("3 cells alike, 40 commands, the hash seed decides", 36),
        ("3 cells, 40 trials of 5 starts, correlation 1.0", 36),
    ],
)
def test_what_depends_on_a_start_is_named(name: str, least: int) -> None:
    world = next(world for world in worlds()["starts"] if world.name == name)
    seen = simulate(world, range(40))
    assert seen.causes >= least, seen.example
