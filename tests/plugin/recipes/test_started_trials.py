"""A trial that takes its job along each time is not started for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stage import Stage

from pytest_aorta.plugin.recipes.runs import MAXIMUM_STARTS


def test_a_trial_with_too_many_starts_is_skipped_with_the_reason(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.write(
        work="""
        class Fine:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self): return {"passed": True}
        """
    )
    stage.register(fine="work:Fine")
    stage.write_file("aorta.toml", '[[action]]\nname = "matrix"\nworkload = "fine"\ntrials = 2')
    (tmp_path / "job").mkdir()
    (tmp_path / "job/started-0").write_text('"local-none/0"\n' * MAXIMUM_STARTS)
    monkeypatch.setenv("AORTA_JOB", str(tmp_path / "job"))
    result = stage.run_here("-rs", "aorta.toml")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*matrix: started 3 times by this job*"])
