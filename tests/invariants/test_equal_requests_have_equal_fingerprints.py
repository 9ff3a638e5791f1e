"""The same request has always the same fingerprint, and another one has another."""

from __future__ import annotations

import pytest
from support.stage import Stage
from support.workloads import ECHO


@pytest.mark.slow
def test_same_request_has_the_same_fingerprint_and_another_has_not(echo: Stage) -> None:
    def fingerprint(*arguments: str) -> str:
        echo.run_here("--aorta-workload", "echo", *arguments).assert_outcomes(passed=1)
        found = echo.trials().popitem()[1]["request_fingerprint"]
        assert isinstance(found, str)
        return found

    first = fingerprint()
    assert fingerprint() == first
    assert fingerprint("--aorta-timeout", "50", "--aorta-results-dir", "results") == first
    different = {
        first,
        fingerprint("--aorta-steps", "3"),
        fingerprint("--aorta-mitigations", "omp_1"),
        fingerprint("--aorta-extra-env", "OMP_NUM_THREADS=1"),
        fingerprint("--aorta-isolation", "spawn"),
    }
    (echo.path / "echo.py").write_text(ECHO + "\n# changed\n")
    different.add(fingerprint())
    assert len(different) == 6
