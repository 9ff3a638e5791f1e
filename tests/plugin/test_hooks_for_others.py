"""Hooks that another distribution implements, as docs/reference/hooks.md shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.stage import Stage, text

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "hooks.md").read_text()

_TRAINS = """
    class Trains:
        def __init__(self, config): self.config = config
        def setup(self): pass
        def run(self):
            return {"passed": True, "metrics": {"loss": float(self.config.get("loss", 1)), "acme_loss_is_high": None}}
"""


@pytest.fixture
def others(stage: Stage) -> Stage:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    stage.write_file("acme_detectors.py", code)
    stage.write(trains=_TRAINS.replace(', "acme_loss_is_high": None', ""))
    stage.register(trains="trains:Trains")
    info = "acme-1.0.dist-info"
    stage.write_file(f"{info}/METADATA", "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    stage.write_file(f"{info}/entry_points.txt", "[pytest11]\nacme_detectors = acme_detectors\n")
    return stage


CELLS = ("--aorta-workload", "trains", "--aorta-vary", "config.loss=1,9")


@pytest.mark.parametrize("isolation", ["fork", "none"])
def test_another_distribution_judges_trials_and_adds_metrics(others: Stage, isolation: str) -> None:
    done = others.run(*CELLS, "--aorta-isolation", isolation)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*1x loss * is above *"])
    records = [others.trial(file) for file in others.files()]
    said = {(each["exit_status"], each["result"]["metrics"]["acme_loss_is_high"]) for each in records}
    assert said == {("ok", False), ("workload_failed", True)}
    (failure,) = [each["failure"] for each in records if each["failure"]]
    assert (failure["phase"], failure["kind"], failure["message"]) == ("run", "result", "loss 9 is above 5")


def test_every_hook_is_called_and_its_section_is_in_the_report(others: Stage) -> None:
    others.run(*CELLS, "--aorta-report", "report.html")
    page = (others.path / "report.html").read_text()
    assert "<bdi>Acme</bdi></h2>" in page
    starts = ", ".join(f"started trains[local-config.loss={loss}" for loss in "19")
    assert re.search(r"planned 2, started trains\[.*\], started trains\[.*\], 2 trials in the table", page), starts


def test_workers_of_xdist_call_the_hooks_of_trials(others: Stage) -> None:
    done = others.run(*CELLS, "-n", "2", "--aorta-report", "report.html")
    done.assert_outcomes(passed=1, failed=1)
    assert "2 trials in the table" in (others.path / "report.html").read_text()


def test_a_hook_that_raises_at_the_end_costs_no_result(stage: Stage) -> None:
    stage.write(trains=_TRAINS, conftest="def pytest_aorta_verdict(matrix): matrix['nothing']")
    stage.register(trains="trains:Trains")
    done = stage.run("--aorta-workload", "trains")
    done.assert_outcomes(passed=1)
    assert "pytest_aorta_verdict: KeyError: 'nothing'" in text(done)


def test_what_a_hook_raises_is_a_warning_and_costs_no_result(stage: Stage) -> None:
    stage.write(trains=_TRAINS, conftest="def pytest_aorta_trial_result(record): raise RuntimeError('broken detector')")
    stage.register(trains="trains:Trains")
    done = stage.run("--aorta-workload", "trains")
    done.assert_outcomes(passed=1, warnings=1)
    assert "pytest_aorta_trial_result: RuntimeError: broken detector" in text(done)


def test_a_result_that_is_kept_is_not_judged_again(others: Stage) -> None:
    others.run(*CELLS)
    code = (others.path / "acme_detectors.py").read_text().replace("loss > 5", "loss > 0")
    others.write_file("acme_detectors.py", code)
    others.run(*CELLS, "--aorta-resume").assert_outcomes(passed=1, failed=1)
