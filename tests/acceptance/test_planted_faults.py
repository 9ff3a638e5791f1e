"""What the table says of faults that were planted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage, text

SETS = ("none", "slow", "import", "bugs")


def planted(stage: Stage, *sets: str, trials: int = 20) -> pytest.RunResult:
    stage.copy(Path(__file__).with_name("planted_workload.py"))
    stage.write_registry(mitigations={name: {"PLANTED": name} for name in ("slow", "import", "bugs", "drift")})
    options = [word for name in sets for word in ("--aorta-mitigations", name)]
    return stage.run(
        "planted_workload.py", "--aorta-trials", str(trials), "--aorta-registry-file", "registry.json", *options
    )


def matrix(stage: Stage) -> dict[str, dict[str, Any]]:
    found = json.loads((stage.path / "results" / "matrix.json").read_text())
    return {cell["mitigations"][0]: cell for cell in found["cells"]}


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, pytest.RunResult]]:
    """One run with all faults that need no order."""
    stage = Stage(tmp_path_factory.mktemp("planted") / "stage")
    yield stage, planted(stage, *SETS)
    stage.close()


def test_a_planted_slowdown_is_said(example: tuple[Stage, pytest.RunResult]) -> None:
    stage, done = example
    slow = matrix(stage)["slow"]
    assert slow["verdict"]["kind"] == "fixes"
    assert slow["speed"]["text"].startswith("slower: +30")
    assert slow["speed"]["interval"]["low"] > 1.15
    assert slow["speed"]["change"] in text(done)


def test_a_cell_that_crashes_at_import_did_not_run_and_has_no_speed(example: tuple[Stage, pytest.RunResult]) -> None:
    stage, done = example
    crashed = matrix(stage)["import"]
    assert crashed["verdict"]["kind"] == "did not run"
    assert (crashed["counted"], crashed["failure_rate"]) == (0, None)
    assert crashed["step_times"] is crashed["speed"] is crashed["comparison"] is None
    assert "did not run" in text(done)


def test_two_planted_bugs_give_two_signatures(example: tuple[Stage, pytest.RunResult]) -> None:
    stage, done = example
    cells = matrix(stage)
    assert len(cells["none"]["signatures"]) == 1  # although each message has another number
    nan, crash = cells["bugs"]["signatures"]
    assert (nan["signature"]["type"], len(nan["trials"])) == ("FloatingPointError", 10)
    assert "planted_workload.py" in nan["signature"]["where"]
    assert (crash["signature"]["type"], crash["trials"]) == ("SIGSEGV", [0, 3, 6, 9, 12, 15, 18])
    verdicts = {each["signature"]["type"]: each for each in cells["bugs"]["by_signature"]}
    assert (verdicts["SIGSEGV"]["failures"], verdicts["SIGSEGV"]["base_failures"]) == (7, 0)
    assert verdicts["SIGSEGV"]["verdict"]["kind"] == "worse"
    assert "SIGSEGV" in text(done)


@pytest.mark.slow
def test_a_planted_drift_is_warned_of(example: tuple[Stage, pytest.RunResult], tmp_path: Path) -> None:
    done = example[1]
    assert "over the run" not in text(done)
    stage = Stage(tmp_path / "stage")
    done = planted(stage, "drift", trials=30)
    warnings = json.loads((stage.path / "results" / "matrix.json").read_text())["warnings"]
    stage.close()
    assert any("step times change over the run" in warning for warning in warnings)
    assert "step times change" in text(done)
