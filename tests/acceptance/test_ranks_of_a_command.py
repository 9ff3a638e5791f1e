"""A command that starts its own ranks: which rank is the cause, and how it failed, is known as under ``auto``."""

from __future__ import annotations

import os
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
def test_the_rank_that_is_the_cause_is_named(stage: Stage) -> None:
    stage.copy(FAULTS)
    commands = [
        word for part in EXPECTED for word in ("--aorta-command", f"torchrun --nproc-per-node 3 rank_faults.py {part}")
    ]
    stage.run_here(*commands, "--aorta-trials", "1", "--aorta-timeout", "60")
    records = {str(trial["config"]["command"]).split()[-1]: trial for trial in stage.trials().values()}
    for part, said in EXPECTED.items():
        trial = records[part]
        assert {name: trial["failure"][name] for name in said} == said
        assert [rank["blame"] for rank in trial["ranks"]] == ["collateral", "cause", "collateral"], part
        assert trial["failure"]["rank"] == 1
    assert "rank 1 is missing: play_alone() at rank_faults.py" in records["sleeps"]["failure"]["message"]
    assert records["sleeps"]["ranks"][0]["collective"].startswith("gloo:all_reduce number ")
    assert all(rank["stacks"] for rank in records["sleeps"]["ranks"])
    assert "in string_at" in (records["segfaults"]["failure"]["traceback"] or "")
    assert not os.path.exists(stage.results / "processes")
    assert stage.left_running() == []
