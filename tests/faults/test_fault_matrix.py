"""Every fault, in every phase and mode: what is recorded is what the table says, and nothing is left running."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fault_table import PHASES, ROWS, Row, as_markdown
from support.stage import Stage

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"

HANGS = [row for row in ROWS if row.fault.hangs]
OTHERS = [row for row in ROWS if not row.fault.hangs]

#: Run by hand: every change is tried with those of ``fork``, and of ranks that end in ``run()``; ranks that hang, and
#: other launchers, are in ``test_rank_fault_table.py``.
BY_HAND = pytest.mark.long

MODES = {
    "fork": (),
    "spawn": ("--aorta-isolation", "spawn"),
    "xdist": ("-n", "2"),
}

LIMITS = ("-o", "aorta_grace=0.5", "-o", "aorta_log_limit=1M")


def run(stage: Stage, workload: str, rows: Sequence[Row], *options: str) -> dict[Row, dict[str, Any]]:
    """Run one trial per row; their records."""
    for name in ("fault_actions.py", "faulty.py"):
        stage.copy(HERE / name)
    script = ".".join(f"{row.fault.name}-{row.phase}" for row in rows)
    options = ("--aorta-trials", str(len(rows)), "--aorta-config", f"script={script}", *LIMITS, *options)
    result = stage.run(f"faulty.py::{workload}", *options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert stage.left_running() == []
    assert stage.files() == sorted(f"{workload}/trial_{index}.json" for index in range(len(rows)))
    return {row: stage.trial(f"{workload}/trial_{index}.json") for index, row in enumerate(rows)}


def mistakes(found: dict[Row, dict[str, Any]], rank: int | None = None) -> list[str]:
    """Rows whose record is not what the table says."""
    wrong = []
    for row, trial in found.items():
        failure = trial["failure"]
        got = (trial["exit_status"], failure and failure["phase"], failure and failure["kind"])
        where = f"{row.fault.name} in {row.phase}"
        if got != row.expected:
            wrong.append(f"{where}: {got} instead of {row.expected}: {failure and failure['message'][:300]}")
            continue
        if failure is not None and failure["signal"] != row.fault.signal:
            wrong.append(f"{where}: signal {failure['signal']} instead of {row.fault.signal}")
        if failure is not None and failure["rank"] != rank:
            wrong.append(f"{where}: rank {failure['rank']} instead of {rank}: {failure['message'][:300]}")
        details = str(trial["result"]["failure_details"])
        if row.fault.note is not None and row.fault.note not in details:
            wrong.append(f"{where}: nothing says {row.fault.note!r}: {details[:300]}")
        if (failure is None or row.phase == "cleanup") and not trial["result"]["metrics"]:
            wrong.append(f"{where}: the result is lost")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fork", *(pytest.param(mode, marks=BY_HAND) for mode in ("spawn", "xdist"))])
def test_every_fault_that_ends_by_itself(stage: Stage, mode: str) -> None:
    options = ("--aorta-timeout", "50", "--aorta-memory", "1G")
    assert mistakes(run(stage, "Faulty", OTHERS, *MODES[mode], *options)) == []


@pytest.mark.slow
@pytest.mark.long
def test_every_fault_after_an_import_in_advance(stage: Stage) -> None:
    found = run(stage, "LazyFaulty", OTHERS, "--aorta-timeout", "50", "--aorta-memory", "1G")
    assert mistakes(found) == []
    assert [trial["preloaded"] for trial in found.values()] == [[], *[["numpy"]] * (len(found) - 1)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fork", *(pytest.param(mode, marks=BY_HAND) for mode in ("spawn", "xdist"))])
def test_every_fault_that_hangs(stage: Stage, mode: str) -> None:
    # They do nothing, so many can wait for their deadlines at the same time.
    slots = () if mode == "xdist" else ("--aorta-slots", "9")
    found = run(stage, "Faulty", HANGS, *MODES[mode], *slots, "--aorta-timeout", "3")
    assert mistakes(found) == []
    for row, trial in found.items():
        if row.fault.name != "stopped":  # which could give its stack only by going on
            assert f"{row.fault.name}() at fault_actions.py line" in trial["failure"]["message"]
            assert trial["failure"]["stacks"] == f"trial_{list(found).index(row)}/stacks.log"


@pytest.mark.slow
@pytest.mark.parametrize("phase", [pytest.param(each, marks=BY_HAND if each != "run" else ()) for each in PHASES])
def test_every_fault_of_a_rank_that_ends_by_itself(stage: Stage, phase: str) -> None:
    rows = [row for row in OTHERS if row.fault.ranks and row.phase == phase]
    assert mistakes(run(stage, "FaultyRanks", rows, "--aorta-timeout", "50", "--aorta-memory", "4G"), rank=1) == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
def test_every_fault_of_a_rank_that_hangs(stage: Stage, phase: str) -> None:
    rows = [row for row in HANGS if row.fault.ranks and row.phase == phase]
    found = run(stage, "FaultyRanks", rows, "--aorta-slots", "3", "--aorta-timeout", "10")
    assert mistakes(found, rank=1) == []
    for row, trial in found.items():
        if row.phase == "run" and row.fault.name != "stopped":
            assert f"rank 1 is missing: {row.fault.name}() at fault_actions.py line" in trial["failure"]["message"]
            assert "rank 0: all_reduce in run() at faulty.py line" in trial["failure"]["message"]


def test_the_table_of_the_documentation_is_this_one() -> None:
    assert as_markdown() in (DOCS / "faults.md").read_text()
