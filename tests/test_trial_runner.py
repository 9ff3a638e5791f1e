"""The trials of a run, with pytest or without: which are found, which are started, and where an earlier result goes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_aorta.plan import Plan, PlanError, Selection, ordered, trials_of
from pytest_aorta.registry import Registry, WorkloadEntry
from pytest_aorta.trial_runner import TrialRunner
from pytest_aorta.trials.execution import Execution

WORKLOAD = """
class Counts:
    name = "counts"
    launch_mode = "single_process"
    min_world_size = 1

    def __init__(self, config):
        pass

    def setup(self):
        pass

    def run(self):
        return {"passed": True}
"""

HERE = Selection(execution=Execution(isolation="none"))


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[Plan]:
    """Two trials of one workload, in this process."""
    file = tmp_path / "counts.py"
    file.write_text(WORKLOAD)
    yield plan_of(file)
    for name in ("counts", "other"):
        sys.modules.pop(name, None)
    while str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


def plan_of(file: Path) -> Plan:
    entry = WorkloadEntry("counts", f"{file}:Counts", f"file:{file.name}")
    return Plan(ordered(trials_of([entry], replace(HERE, trials=2), Registry.load()), "grouped"))


def run_first(runner: TrialRunner, plan: Plan) -> None:
    """Run trial 0 and write its file."""
    spec = plan.trials[0]
    trial = runner.start(spec, plan.paths(spec))
    for phase in ("setup", "run"):
        assert trial.wait(phase)
    runner.store.write(plan.paths(spec), trial.finish().to_dict())


def test_two_workloads_of_one_name_are_refused(tmp_path: Path, plan: Plan) -> None:
    runner = TrialRunner(HERE, tmp_path / "results")
    runner.add_plan(plan)
    (tmp_path / "other.py").write_text(WORKLOAD)

    with pytest.raises(PlanError, match=r"two workloads are named 'counts': .*counts.py:Counts and .*other.py:Counts"):
        runner.add_plan(plan_of(tmp_path / "other.py"))


def test_only_a_run_that_resumes_finds_results(tmp_path: Path, plan: Plan) -> None:
    results = tmp_path / "results"
    run_first(TrialRunner(HERE, results), plan)
    first, second = ((spec, plan.paths(spec)) for spec in plan.trials)

    assert TrialRunner(HERE, results).find(*first) is None
    runner = TrialRunner(replace(HERE, resume=True), results)
    found = runner.find(*first)
    assert found is not None
    assert found.resumed
    assert found.finish().exit_status == "ok"
    assert runner.find(*second) is None


def test_a_changed_workload_or_a_broken_one_has_no_result(tmp_path: Path, plan: Plan) -> None:
    results = tmp_path / "results"
    run_first(TrialRunner(HERE, results), plan)
    spec = plan.trials[0]

    (tmp_path / "counts.py").write_text(WORKLOAD + "# changed\n")
    assert TrialRunner(replace(HERE, resume=True), results).find(spec, plan.paths(spec)) is None
    (tmp_path / "counts.py").write_text("no python")
    assert TrialRunner(replace(HERE, resume=True), results).find(spec, plan.paths(spec)) is None


def test_a_trial_that_is_run_again_is_not_found_but_run(tmp_path: Path, plan: Plan) -> None:
    runner = TrialRunner(replace(HERE, resume=True), tmp_path / "results")
    run_first(runner, plan)

    assert runner.find(plan.trials[0], plan.paths(plan.trials[0])) is None


def test_an_earlier_result_is_retired_when_its_trial_starts(tmp_path: Path, plan: Plan) -> None:
    results = tmp_path / "results"
    run_first(TrialRunner(HERE, results), plan)

    TrialRunner(HERE, results, "now").start(plan.trials[0], plan.paths(plan.trials[0]))

    assert [path.relative_to(results).as_posix() for path in results.rglob("*.json")] == [
        ".history/now/counts/trial_0.json"
    ]


def test_the_engine_is_made_when_it_is_first_used(tmp_path: Path) -> None:
    used = []
    runner = TrialRunner(Selection(), tmp_path, before_use=lambda: used.append(True))
    runner.close()
    assert not used

    assert runner.engine is runner.engine
    runner.close()
    assert used == [True, True]
