from __future__ import annotations

import re
from itertools import chain

import pytest
from support.triage_facts import triage_of, trials

from pytest_aorta.settings import RequestError
from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.gates import check_gates, explain_gate, parse_gate

FAILS_OFTEN = trials("none", "F" * 15 + "." * 5)
FIXES = trials("omp_1", "." * 20)


def problems(gate: str, *cells: list[TrialFacts], settings: TriageSettings | None = None) -> tuple[str, ...]:
    return tuple(explain_gate(parse_gate(gate), triage_of(chain(*cells), settings)))


def test_it_holds() -> None:
    cases: list[str] = [
        "failure_rate<=0.02",
        "failure_rate <= 2%",
        "failure_rate(none)>=.75",
        "failure_rate(local-none) == 0.75",
        "failures(none)==15",
        "failures<1",
        "infrastructure==0",
        "upper(failure_rate)<0.2",
        "failure_rate_upper<0.2",
        "upper( failure_rate( omp_1 ) ) < 0.2",
        "lower(failure_rate(none))>0.5",
        "verdict(omp_1)==fixes",
        "verdict(none)==baseline",
        "verdict!=worse",
        "verdict!='no cure'",
        "verdict!=no_cure",
    ]
    for gate in cases:
        assert problems(gate, FAILS_OFTEN, FIXES) == ()


def test_where_it_does_not_hold_it_says_why() -> None:
    cases: list[tuple[str, str]] = [
        ("failure_rate(none)<=0.02", "local-none of gemm has failure_rate 0.75; 15 of 20 failed"),
        ("upper(failure_rate)<=0.02", "local-omp_1 of gemm has upper(failure_rate) 0.1611; 0 of 20 failed"),
        ("verdict(omp_1)==no cure", "local-omp_1 of gemm has verdict fixes; 0 of 20 failed"),
        ("failure_rate(tf32_off)<=1", "no trial of 'tf32_off' has run"),
        ("step_ms<5", "local-omp_1 of gemm has no step_ms: no trial has step times"),
        ("speed_ratio(none)<1.1", "local-none of gemm has no speed_ratio: it is compared with no other cell"),
    ]
    for gate, problem in cases:
        assert problems(gate, FAILS_OFTEN, FIXES) == (problem,)


def test_about_which_cells_it_is() -> None:
    cases: list[tuple[str, tuple[list[TrialFacts], ...], int]] = [
        # Without a cell it is about those that are compared, or about the only one; infrastructure is about all.
        ("failure_rate<=0.02", (FAILS_OFTEN, FIXES), 0),
        ("failure_rate<=0.02", (FAILS_OFTEN, trials("a", "F" * 5), trials("b", "F" * 5)), 2),
        ("failure_rate<=0.02", (trials("none", "..."),), 0),
        ("failure_rate<=0.02", (trials("none", "..F"),), 1),
        ("infrastructure==0", (trials("none", "FFF-"), trials("a", "...E")), 2),
        # No trial that counts is no success.
        ("failure_rate<=0.02", (trials("none", "---"),), 1),
    ]
    for gate, cells, number in cases:
        assert len(problems(gate, *cells)) == number


def test_after_a_sequential_run_bounds_are_sequential() -> None:
    gate = "upper(failure_rate)<=0.17"
    assert problems(gate, FAILS_OFTEN, FIXES) == ()
    assert len(problems(gate, FAILS_OFTEN, FIXES, settings=TriageSettings(sequential=True))) == 1


def test_speed_is_compared_with_the_baseline() -> None:
    cells = [trials("none", "F" * 9, step_ms=(10.0, 10.1)), trials("a", "." * 9, step_ms=(20.0, 20.2))]
    assert problems("step_ms>15", *cells) == ()
    assert problems("upper(speed_ratio)<1.15", *cells) != ()
    assert problems("lower(speed_ratio)>1.15", *cells) == ()


def test_what_cannot_be_read_is_named_with_what_is_valid() -> None:
    cases: list[tuple[str, str]] = [
        *(
            (text, "one of <= >= == != < >, and a number or verdict, as in failure_rate<=0.02")
            for text in (
                "",
                "failure_rate",
                "failure_rate=0.1",
                "failure_rate(omp_1<=0.02",
                "failure_rate()<=0.02",
                "upper(failure_rate<0.1",
            )
        ),
        ("rate<1", "one of failure_rate, failures, infrastructure, step_ms, speed_ratio, verdict, not 'rate'"),
        ("failure_rate<=0,02", "a number such as 0.02 or 2% after <=, not '0,02'"),
        ("failure_rate<=0.02 and failures<3", "not '0.02 and failures<3'"),
        ("upper(failures)<3", "one of failure_rate, speed_ratio in upper(), which have an interval, not 'failures'"),
        ("verdict<fixes", "== or != after verdict, not '<'"),
        ("verdict==fixed", "did not run, error after verdict==, not 'fixed'"),
        ("verdict=='fixes", 'not "\'fixes"'),
    ]
    for gate, message in cases:
        with pytest.raises(ValueError, match=re.escape(message)):
            parse_gate(gate)


def test_a_cell_that_is_not_there_is_refused_before_the_run() -> None:
    cells = [("local-none", ("none",)), ("local-a+b", ("a", "b"))]
    check_gates([parse_gate(f"verdict({name})==fixes") for name in ("a,b", "a+b", "local-a+b")], cells)
    with pytest.raises(RequestError, match=r"there is no cell 'a'; there are local-none, local-a\+b"):
        check_gates([parse_gate("verdict(a)==fixes")], cells)
