"""A command that starts its own ranks: which rank is the cause, and how it failed, is known as under ``auto``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage

FAULTS = Path(__file__).parents[1] / "support" / "rank_faults.py"

EXPECTED: dict[str, dict[str, Any]] = {
    "raises": {"kind": "exception", "type": "ValueError", "message": "rank 1: rank 1 has a bug"},
    "segfaults": {"kind": "signal", "signal": "SIGSEGV"},
    "sleeps": {"kind": "timeout"},
}


@pytest.mark.slow
def test_the_rank_that_is_the_cause_is_named_as_typed_and_in_forks(stage: Stage) -> None:
    stage.copy(FAULTS)
    parts = ("raises", "sleeps", "raises", "segfaults")  # the first trial learns what to import before the forks
    command = f"torchrun --nproc-per-node 3 rank_faults.py {'.'.join(parts)}"
    stage.run_here("--aorta-command", command, "--aorta-trials", "4", "--aorta-timeout", "30")

    records = [stage.trial(f"command-rank_faults/trial_{trial}.json") for trial in range(len(parts))]
    for part, trial in zip(parts, records, strict=True):
        assert {name: trial["failure"][name] for name in EXPECTED[part]} == EXPECTED[part]
        assert [rank["blame"] for rank in trial["ranks"]] == ["collateral", "cause", "collateral"], part
        assert trial["failure"]["rank"] == 1
    assert not (stage.results / "processes").exists()
    assert stage.left_running() == []
    _, slept, _, segfaulted = records

    assert "rank 1 is missing: play_alone() at rank_faults.py" in slept["failure"]["message"]
    assert slept["ranks"][0]["collective"].startswith("gloo:all_reduce number ")
    stacks = [(stage.results / "command-rank_faults" / rank["stacks"]).read_text() for rank in slept["ranks"]]
    assert all("/launch/child/script.py" in text for text in stacks)  # as the first frame of forked programs
    assert "in string_at" in (segfaulted["failure"]["traceback"] or "")
