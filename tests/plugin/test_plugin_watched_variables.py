"""What a trial's file says of the variables that its plan sets: who could have read them at the end of run()."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage

from pytest_aorta.triage.cells import CellTrials
from pytest_aorta.triage.checks import MitigationEffect, effects
from pytest_aorta.triage.facts import CellKey, facts_of
from pytest_aorta.triage.verdicts import choose_baselines

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
    """The section of a trial's file."""
    return (stage.trial(f"{workload}/local-{cell}/trial_{trial}.json")["env"].get("end") or {}).get("variables")


@pytest.mark.parametrize("isolation", ["fork", pytest.param("spawn", marks=pytest.mark.slow), "none"])
def test_every_trial_says_who_names_the_variables_of_the_plan(cells: Stage, isolation: str) -> None:
    cells.run("reads.py::Reads", *AXIS, "--aorta-isolation", isolation, "--aorta-trials", "2")
    for cell in ("none", "reads+made_up"):
        for trial in range(2):
            found = evidence(cells, "Reads", cell, trial)
            assert found["by"] == {
                "NOT_READ": {"count": 0, "first": []},
                "READ_LATER": {"count": 1, "first": ["later"]},
            }
            assert "unsearched" not in found
            assert found["subprocesses"] is False


def test_a_trial_says_no_more_than_it_has_seen(cells: Stage) -> None:
    cells.run("reads.py::Starts", "reads.py::Crashes", "reads.py::Fails", *AXIS)
    assert evidence(cells, "Starts")["subprocesses"] is True
    assert evidence(cells, "Crashes") is None
    assert evidence(cells, "Fails")["by"]["NOT_READ"]["count"] == 0


def test_a_plan_that_sets_no_variable_records_and_keeps_nothing(cells: Stage, tmp_path: Path) -> None:
    cells.run("reads.py::Reads")
    end = cells.trial("Reads/trial_0.json")["env"]["end"]
    assert end.keys() == {"captured_at", "partial", "partial_reasons", "torch", "libraries", "modules", "parts_ms"}
    assert end["parts_ms"].keys() == {"torch", "libraries", "modules"}
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_a_rank_says_it_of_itself(cells: Stage) -> None:
    cells.write(
        ranks="""
        from pytest_aorta import Workload

        class Ranks(Workload):
            launch_mode = "distributed"
            def setup(self): pass
            def run(self):
                import later
                return {"passed": True}
        """
    )
    cells.run("ranks.py::Ranks", *AXIS, "--aorta-nproc", "2").assert_outcomes(passed=2)
    found = evidence(cells, "Ranks")
    assert {name: named["count"] for name, named in found["by"].items()} == {"NOT_READ": 0, "READ_LATER": 1}
    assert found["subprocesses"] is False


@pytest.mark.slow
@pytest.mark.long
def test_the_example_tells_mitigations_that_act_from_those_that_do_not(stage: Stage) -> None:
    """With torch, and a value that is there already."""
    stage.write_registry(mitigations={"made_up": {"A_MADE_UP_VARIABLE": "1"}, "same": {"OMP_NUM_THREADS": "2"}})
    names = ["none", "omp_1", "tf32_off", "made_up", "same", "onednn_isa_sse41"]
    axis = [word for name in names for word in ("--aorta-mitigations", name)]
    options = ("--aorta-workload", "determinism", "--aorta-registry-file", "registry.json")
    stage.run(*options, *axis, env={"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"})
    found = judged(stage)
    assert {label: (effect.is_inert, effect.is_second_baseline) for label, effect in found.items()} == {
        "local-omp_1": (False, False),
        "local-tf32_off": (True, False),
        "local-made_up": (True, False),
        "local-same": (True, True),
        "local-onednn_isa_sse41": (False, False),
    }
    assert found["local-made_up"].sentences == (
        "made_up: A_MADE_UP_VARIABLE is named by no loaded library or imported source",
    )


def judged(stage: Stage) -> dict[str, MitigationEffect]:
    """By the label of the cell."""
    trials: dict[CellKey, CellTrials] = {}
    for path, record in sorted(stage.trials().items(), key=lambda item: item[1]["started_at"]):
        facts = facts_of(record, path)
        trials.setdefault(facts.key, CellTrials(facts.key, facts.environment, facts.mitigations)).add(facts)
    statistics = {key: cell.statistics for key, cell in trials.items()}
    found = effects(statistics, choose_baselines(list(statistics.values())).of)
    return {key.cell: effect for key, effect in found.items()}
