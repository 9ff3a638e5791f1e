"""Nothing finished is overwritten: whatever runs follow each other, no newest record is lost, no trial has two.

A trial file is absent or complete.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from support.records import record
from support.stage import Stage

from pytest_aorta.plan import Plan, Selection, ordered, trials_of
from pytest_aorta.registry import Registry, WorkloadEntry
from pytest_aorta.workspace.trial_store import TrialStore

MITIGATIONS = (("none",), ("omp_1",), ("tf32_off",))


class PytestRun(NamedTuple):
    """A selection of mitigation sets, a number of trials, those that ``-k`` leaves, and ``--aorta-resume``."""

    cells: tuple[int, ...]
    trials: int
    chosen: tuple[bool, ...]
    resume: bool


runs = st.builds(
    PytestRun,
    cells=st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True).map(tuple),
    trials=st.integers(1, 3),
    chosen=st.tuples(*[st.booleans()] * 9) | st.just((True,) * 9),
    resume=st.booleans(),
)


REGISTRY = Registry.load()


def plan_of(run: PytestRun) -> Plan:
    selection = Selection(trials=run.trials, mitigations=tuple(MITIGATIONS[index] for index in run.cells))
    entry = WorkloadEntry("probe", "probe:Probe", "tests")
    return Plan(ordered(trials_of([entry], selection, REGISTRY), "interleaved"))


def carry_out(results: Path, number: int, run: PytestRun) -> dict[tuple[str, int], int]:
    """What a run of pytest does to the results, without its processes; which run each trial's newest record is of."""
    plan = plan_of(run)
    store = TrialStore(results, f"run{number:02}", resume=run.resume)
    store.sort_into_cells(plan.flat_cells)
    made = {}
    for spec, chosen in zip(plan.trials, run.chosen, strict=False):
        if chosen:
            paths = plan.paths(spec)
            store.retire(paths)
            store.artifacts(paths).mkdir(parents=True)
            (store.artifacts(paths) / "stdout.log").write_text(str(number))
            store.write(paths, content(spec.cell, spec.trial_index, number))
            made[spec.cell, spec.trial_index] = number
    store.retire_unplanned({plan.paths(spec) for spec in plan.trials})
    return made


def content(cell: str, index: int, number: int) -> dict[str, Any]:
    started = f"2026-01-01T00:00:{number:02}.000+00:00"
    artifacts = {"stdout": f"trial_{index}/stdout.log"}
    return record(cell=cell, trial_index=index, started_at=started, artifacts=artifacts, wall_clock_sec=float(number))


def records(results: Path) -> Iterator[tuple[Path, tuple[str, int], int]]:
    for file in results.rglob("trial_*.json*"):
        found = json.loads(file.read_text())
        yield file, (found["cell"], found["trial_index"]), int(found["wall_clock_sec"])


@settings(max_examples=40)
@given(st.lists(runs, min_size=1, max_size=5))
def test_no_sequence_of_runs_loses_or_doubles_a_record(sequence: list[PytestRun]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        written: list[tuple[tuple[str, int], int]] = []
        newest: dict[tuple[str, int], int] = {}
        for number, run in enumerate(sequence):
            made = carry_out(results, number, run)
            written += made.items()
            complete = len(made) == len(plan_of(run).trials) and not run.resume
            newest = made if complete else newest | made  # a whole plan moves to the history what it does not hold
            found = list(records(results))
            assert sorted((trial, of) for _, trial, of in found) == sorted(written)
            outside = [each for each in found if ".history" not in each[0].parts]
            assert sorted((trial, of) for _, trial, of in outside) == sorted(newest.items())
            for file, (cell, index), of in outside:
                assert (file.with_suffix("") / "stdout.log").read_text() == str(of)
                assert {their for other, (their, _), _ in outside if other.parent == file.parent} == {cell}
                assert file.name == f"trial_{index}.json"


def test_run_trials_keeps_the_results_of_other_cells(echo: Stage) -> None:
    echo.write(
        script="""
        from pytest_aorta import RunRequest, run_trials

        for name in ("none", "omp_1", "none"):
            run_trials(RunRequest("echo", 2, mitigations=(name,), history=1))
        """
    )
    assert echo.command(sys.executable, "script.py").ret == 0
    found = {path: trial["cell"] for path, trial in echo.trials().items()}
    folders = {"echo": "local-none", "echo/local-omp_1": "local-omp_1"}
    assert found == {f"{folder}/trial_{i}.json": cell for folder, cell in folders.items() for i in (0, 1)}
    assert echo.earlier() == ["echo/trial_0.json", "echo/trial_1.json"]


def test_two_runs_at_once_lose_nothing(echo: Stage) -> None:
    started = [
        echo.start("--aorta-workload", "echo", "--aorta-trials", "6", "--aorta-config", f"run={number}", *cells)
        for number, cells in enumerate([(), ("-n", "2"), ("--aorta-mitigations", "omp_1", "--aorta-slots", "2")])
    ]
    assert [echo.finish(process).ret for process in started] == [0, 0, 0]
    files = list(echo.results.rglob("trial_*.json*"))
    seen = Counter(tuple(json.loads(path.read_text())[key] for key in ("cell", "trial_index")) for path in files)
    assert seen == {("local-none", index): 2 for index in range(6)} | {("local-omp_1", index): 1 for index in range(6)}
    outside = Counter((trial["cell"], trial["trial_index"]) for trial in echo.trials().values())
    assert set(outside.values()) == {1}


def test_no_temporary_files_are_left_and_files_can_be_shared(stage: Stage) -> None:
    stage.copy(Path(__file__).parents[1] / "plugin" / "faulty_workloads.py")
    stage.run_here("faulty_workloads.py::Passes", "faulty_workloads.py::SegfaultsInRun", "--aorta-trials", "2")
    expected = ["matrix.json", "matrix.md"]
    for name in ("Passes", "SegfaultsInRun"):
        for index in range(2):
            expected += [f"{name}/trial_{index}.json"]
            expected += [f"{name}/trial_{index}/{stream}.log" for stream in ("stderr", "stdout")]
    [packages] = [path for path in stage.everything() if path.startswith("packages-")]
    assert stage.everything() == sorted([*expected, packages])
    assert {(stage.results / path).stat().st_mode & 0o777 for path in stage.files()} == {0o644}
