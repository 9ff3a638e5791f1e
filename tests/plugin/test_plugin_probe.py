"""What a trial's record says of its process at the end of run(): torch, and who names the plan's variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage

ENDS = """
    class Sets:
        def __init__(self, config): pass
        def setup(self): pass
        def run(self):
            import decimal
            import torch
            torch.use_deterministic_algorithms(True)
            torch.set_num_threads(1)
            return {"passed": True}

    class Raises(Sets):
        def run(self):
            super().run()
            raise ValueError("no")
"""


@pytest.mark.parametrize(("isolation", "name"), [("fork", "Raises"), ("none", "Sets")])
@pytest.mark.slow
def test_the_state_of_torch_is_that_at_the_end_of_run(stage: Stage, isolation: str, name: str) -> None:
    stage.write(ends=ENDS)
    stage.run(f"ends.py::{name}", "--aorta-isolation", isolation)  # torch cannot be imported twice
    end = stage.trial(f"{name}/trial_0.json")["env"]["end"]
    assert end["torch"]["deterministic"]["algorithms"] is True
    assert end["torch"]["threads"]["intraop"] == 1
    assert not end["partial"]
    assert end["libraries"]["count"] > 10


READS = """
    import os
    import subprocess

    class Reads:
        def __init__(self, config): pass
        def setup(self): pass
        def run(self):
            import later
            return {"passed": True}

    class Starts(Reads):
        def run(self):
            subprocess.run(["true"], check=True)
            return {"passed": True}

    class Crashes(Reads):
        def run(self):
            os.kill(os.getpid(), 11)

    class Fails(Reads):
        def run(self):
            raise ValueError("no")
"""
LATER = 'import os\nVALUE = os.environ.get("READ_LATER")\n'
SETS = {"reads": {"READ_LATER": "1"}, "made_up": {"NOT_READ": "1"}}
AXIS = ("--aorta-registry-file", "registry.json", "--aorta-mitigations", "none", "--aorta-mitigations", "reads,made_up")


@pytest.fixture
def cells(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage with two mitigations, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    stage.write(reads=READS, later=LATER)
    stage.write_registry(mitigations=SETS)
    return stage


def evidence(stage: Stage, workload: str, cell: str = "none", trial: int = 0) -> Any:
    return (stage.trial(f"{workload}/local-{cell}/trial_{trial}.json")["env"].get("end") or {}).get("variables")


@pytest.mark.parametrize("isolation", ["fork", "none"])
def test_every_trial_says_who_names_the_variables_of_the_plan(cells: Stage, isolation: str) -> None:
    cells.run("reads.py::Reads", *AXIS, "--aorta-isolation", isolation, "--aorta-trials", "2")
    for cell in ("none", "reads+made_up"):
        for trial in range(2):
            seen = evidence(cells, "Reads", cell, trial)
            assert seen["by"] == {
                "NOT_READ": {"count": 0, "first": []},
                "READ_LATER": {"count": 1, "first": ["later"]},
            }
            assert "unsearched" not in seen
            assert seen["subprocesses"] is False


def test_a_trial_says_no_more_than_it_has_seen(cells: Stage) -> None:
    cells.run_here("reads.py::Starts", "reads.py::Crashes", "reads.py::Fails", *AXIS)
    assert evidence(cells, "Starts")["subprocesses"] is True
    assert evidence(cells, "Crashes") is None
    assert evidence(cells, "Fails")["by"]["NOT_READ"]["count"] == 0


def test_a_plan_that_sets_no_variable_records_and_keeps_nothing(cells: Stage, tmp_path: Path) -> None:
    cells.run_here("reads.py::Reads")
    end = cells.trial("Reads/trial_0.json")["env"]["end"]
    assert end.keys() == {"captured_at", "partial", "partial_reasons", "torch", "libraries", "kernels"}
    assert not (tmp_path / "cache").exists()
