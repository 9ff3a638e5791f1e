"""Trials in this process, started without pytest: variables, exits, and what cannot be had."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta import Execution, RunRequest, run_trials
from pytest_aorta.launch.launch_mode import LaunchModeError
from pytest_aorta.trials.result import TrialResult

HERE = Execution(isolation="none")


class Sees:
    """Reports a variable that it changes."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def setup(self) -> None:
        pass

    def run(self) -> dict[str, Any]:
        seen = os.environ.get("AORTA_SEEN")
        os.environ["AORTA_SEEN"] = "changed"
        os.environ["AORTA_LEFT"] = "behind"
        return {"passed": True, "metrics": {"seen": seen}}


class Exits(Sees):
    """Ends the interpreter."""

    def run(self) -> dict[str, Any]:
        raise SystemExit(3)


def run(cls: type[Sees], folder: Path, **options: Any) -> list[TrialResult]:
    request = RunRequest(f"{__file__}:{cls.__name__}", 2, results_dir=folder / "results", execution=HERE, **options)
    return run_trials(request)


@pytest.fixture
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_aorta.registry import Registry, WorkloadEntry

    def workload(self: Registry, name: str) -> WorkloadEntry:
        return WorkloadEntry(name=name.rpartition(":")[2], target=name, source_package="tests")

    monkeypatch.setattr(Registry, "workload", workload)


@pytest.mark.usefixtures("_registered")
def test_the_variables_of_a_trial_are_set_and_taken_back(tmp_path: Path) -> None:
    before = dict(os.environ)
    records = run(Sees, tmp_path, extra_env={"AORTA_SEEN": "1"})
    assert [record.result.metrics["seen"] for record in records] == ["1", "1"]
    assert dict(os.environ) == before


@pytest.mark.usefixtures("_registered")
def test_an_exit_of_the_workload_is_a_result(tmp_path: Path) -> None:
    records = run(Exits, tmp_path)
    assert [record.exit_status for record in records] == ["workload_failed"] * 2
    assert records[0].failure is not None
    assert records[0].failure.exit_code == 3


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize(("fields", "what"), [({"venv": "/opt/venv"}, "a venv"), ({"launcher": "nice"}, "a launcher")])
def test_what_needs_a_process_of_its_own_is_refused(tmp_path: Path, fields: dict[str, Any], what: str) -> None:
    file = tmp_path / "registry.json"
    file.write_text(json.dumps({"version": 1, "environments": {"elsewhere": fields}}))
    with pytest.raises(
        LaunchModeError, match=f"environment 'elsewhere' .* has {what}, but with --aorta-isolation none"
    ):
        run(Sees, tmp_path, environment="elsewhere", registry_files=(file,))
