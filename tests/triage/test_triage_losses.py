"""What is concluded where trials were lost: counted are events, and a lost trial might have failed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.records import record

from pytest_aorta.triage.columns import conclusions
from pytest_aorta.triage.facts import facts_of
from pytest_aorta.triage.verdicts import Row, Table, triage_of

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


def test_one_event_does_not_take_a_verdict_from_the_trials_that_ran() -> None:
    _, row = judged([FAILED] * 10 + [OK] * 2, [IMPORT_HUNG] * 10 + [OK] * 10)
    assert row.verdict.kind == "fixes"


def test_a_cell_whose_trials_die_early_is_no_fix() -> None:
    _, row = judged([FAILED] * 12 + [OK] * 8, [DIED_EARLY] * 14 + [OK] * 6)
    assert (row.verdict.kind, row.verdict.reason) == ("undecided", "14 of 20 trials were lost")


def test_what_dies_early_in_the_baseline_is_no_fault_of_a_mitigation() -> None:
    _, row = judged([DIED_EARLY] * 14 + [OK] * 6, [FAILED] * 14 + [OK] * 6)
    assert (row.verdict.kind, row.verdict.reason) == ("undecided", "14 of 20 trials of local-none were lost")


def test_a_few_losses_leave_a_clear_verdict() -> None:
    _, row = judged([FAILED] * 18 + [DIED_EARLY] * 2, [OK] * 18 + [DIED_EARLY] * 2)
    assert row.verdict.kind == "fixes"
