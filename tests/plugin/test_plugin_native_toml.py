"""Options in the native TOML of pytest 9, which has numbers and switches besides texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stage import Stage

pytestmark = pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest has native TOML since 9.0")

FAULTY = Path(__file__).with_name("faulty_workloads.py")


def test_numbers_and_switches_are_taken_as_texts_are(stage: Stage) -> None:
    stage.copy(FAULTY)
    stage.register(passes="faulty_workloads:Passes")
    stage.write_file(
        "pytest.toml",
        """
        [pytest]
        aorta_workload = ["passes"]
        aorta_trials = 2
        aorta_timeout = 20.5
        aorta_resume = true
        """,
    )
    result = stage.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["0 of 2 trials had a result already (--aorta-resume)"])
