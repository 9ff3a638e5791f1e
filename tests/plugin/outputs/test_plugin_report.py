"""``--aorta-report``: refused early where it cannot be written, and written whatever happens to the run."""

from __future__ import annotations

import pytest
from support.stage import Stage

VANISHING = """
import shutil

class Vanishing:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        shutil.rmtree("pages", ignore_errors=True)
        return {"passed": True}
"""


def report(stage: Stage, name: str = "report.html") -> str:
    return (stage.path / name).read_text()


def test_a_run_ends_with_its_report(stage: Stage) -> None:
    stage.write(
        flaky="""
        class Flaky:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self):
                import os
                assert "OMP_NUM_THREADS" in os.environ, "too many threads"
                return {"passed": True, "step_times_ms": [1.5, 2.5, 9.0]}
        """
    )
    cells = ("--aorta-mitigations", "none", "--aorta-mitigations", "omp_1")
    result = stage.run_here("flaky.py", "--aorta-trials", "4", *cells, "--aorta-report", "report.html")
    result.assert_outcomes(passed=4, failed=4)
    assert "report: report.html" in result.outlines
    page = report(stage)
    assert "8 trials in 2 cells" in page
    assert page.count("<details") == 4
    assert "too many threads" in page
    assert "--aorta-report" not in next(line for line in result.outlines if line.startswith("run it again:"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nowhere/r.html", "--aorta-report nowhere/r.html: the folder * does not exist; expected the path of*"),
        (".", "--aorta-report .: * is a folder; expected the path of an HTML file"),
        (" ", "*--aorta-report: ' ' is not valid; expected the path of a file"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_first_trial(
    stage: Stage, value: str, message: str
) -> None:
    stage.write(vanishing=VANISHING)
    result = stage.run_here("vanishing.py", "--aorta-report", value)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message}"])
    assert not stage.results.exists()


def test_a_report_that_cannot_be_written_in_the_end_is_said_and_costs_no_result(stage: Stage) -> None:
    stage.write(vanishing=VANISHING)
    (stage.path / "pages").mkdir()
    result = stage.run_here("vanishing.py", "--aorta-trials", "2", "--aorta-report", "pages/r.html", "-W", "error")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["not written: report */pages/r.html: the folder */pages does not exist*"])
    assert set(stage.statuses().values()) == {"ok"}
