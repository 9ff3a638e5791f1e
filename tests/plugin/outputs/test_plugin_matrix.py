"""matrix.json and matrix.md are in the results directory while trials run, and after them, however the run ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.stage import Stage

from pytest_aorta.triage.matrix import RunState, matrix_json, schema_text
from pytest_aorta.triage.reading import read_triage

#: Fails in half of its trials, unless STEADY is set; each takes as long as PAUSE says, in seconds.
FLAKY = """
import os
import time

class Flaky:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        failed = int(os.environ["AORTA_TRIAL_INDEX"]) % 2 and not os.environ.get("STEADY")
        return {"passed": not failed, "step_times_ms": [1.5, 2.5], "total_iterations": 2}
"""

CELLS = ("--aorta-mitigations", "none", "--aorta-mitigations", "steady", "--aorta-registry-file", "names.json")
RUN = ("--aorta-workload", "flaky", *CELLS)


@pytest.fixture
def flaky(stage: Stage) -> Stage:
    stage.write(flaky=FLAKY)
    stage.register(flaky="flaky:Flaky")
    stage.write_registry("names.json", mitigations={"steady": {"STEADY": "1"}})
    return stage


def matrix(stage: Stage, folder: str = ".") -> dict[str, Any]:
    content = json.loads((stage.results / folder / "matrix.json").read_text())
    jsonschema.validate(content, json.loads(schema_text()))
    return dict(content)


def seen(content: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {cell["cell"]: (cell["failures"], cell["seen"]) for cell in content["cells"]}


def from_files(results: Path) -> list[dict[str, Any]]:
    """The cells of the matrix that is made of the trial files."""
    triage, _ = read_triage(results)
    return list(json.loads(matrix_json(triage.table(), RunState()))["cells"])


def same_as_files(stage: Stage) -> bool:
    found = [{**cell, "planned": None} for cell in matrix(stage)["cells"]]
    return found == from_files(stage.results)


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("-n", "2"), marks=pytest.mark.slow),
        pytest.param(("--aorta-slots", "2"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_the_matrix_of_a_run_is_that_of_its_trial_files(flaky: Stage, options: tuple[str, ...]) -> None:
    flaky.run(*RUN, "--aorta-trials", "6", *options)
    content = matrix(flaky)
    assert content["complete"]
    assert seen(content) == {"local-none": (3, 6), "local-steady": (0, 6)}
    assert [cell["planned"] for cell in content["cells"]] == [6, 6]
    assert same_as_files(flaky)
    assert (
        "| flaky | local-steady | steady | local | 0 of 6 | 0% (0-39%) |" in (flaky.results / "matrix.md").read_text()
    )


@pytest.mark.slow
@pytest.mark.parametrize("ctrl_c", [False, True])
def test_a_killed_run_leaves_a_valid_matrix_that_a_resumed_one_completes(flaky: Stage, ctrl_c: bool) -> None:
    options = (*RUN, "--aorta-trials", "20")
    for _ in range(1 if ctrl_c else 2):
        (flaky.results / "matrix.json").unlink(missing_ok=True)
        process = flaky.start(*options, "--aorta-resume", env={"PAUSE": "0.15"})
        flaky.wait_until((flaky.results / "matrix.json").exists)
        if ctrl_c:
            flaky.press_ctrl_c(process)
            assert matrix(flaky)["interrupted"] == "KeyboardInterrupt"
        else:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            flaky.wait_until_alone()
        content = matrix(flaky)
        assert not content["complete"]
        number = sum(count for _, count in seen(content).values())
        assert 0 < number < 40
        assert number <= len(flaky.files())
        assert all(
            cell["comparison"] is None or cell["comparison"]["method"] == "sequential" for cell in content["cells"]
        )
    flaky.run_here(*options, "--aorta-resume")
    assert matrix(flaky)["complete"]
    assert seen(matrix(flaky)) == {"local-none": (10, 20), "local-steady": (0, 20)}
    assert {cell["comparison"]["method"] for cell in matrix(flaky)["cells"] if cell["comparison"]} == {"fixed"}
    flaky.close()


def test_an_earlier_matrix_moves_to_the_history_with_its_trials(flaky: Stage) -> None:
    flaky.run_here(*RUN)
    first = (flaky.results / "matrix.json").read_text()
    flaky.run_here(*RUN, "--aorta-resume")
    assert not (flaky.results / ".history").exists()
    second = (flaky.results / "matrix.json").read_text()
    assert first != second
    flaky.run_here(*RUN)
    [folder] = (flaky.results / ".history").iterdir()
    assert (folder / "matrix.json").read_text() == second
    assert (folder / "matrix.md").exists()
    assert (folder / "flaky" / "local-none" / "trial_0.json").exists()


def test_tests_that_run_trials_have_a_matrix_and_others_write_nothing(flaky: Stage) -> None:
    flaky.write(
        test_it="""
        def test_it(aorta_run):
            for _ in range(3):
                aorta_run("flaky")

        def test_other():
            pass
        """
    )
    flaky.run_here("test_it.py", "-k", "other").assert_outcomes(passed=1, deselected=1)
    flaky.run_here("test_it.py", "--collect-only")
    assert not flaky.results.exists()
    flaky.run_here("test_it.py").assert_outcomes(passed=2)
    [cell] = matrix(flaky)["cells"]
    assert (cell["test"], cell["workload"], cell["seen"]) == ("test_it.py::test_it", "flaky", 3)
    assert len(cell["trial_files"]) == 3


def test_the_summary_of_a_step_gets_the_table_of_each_run(simple: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = simple.path / "summary.md"
    summary.write_text("earlier\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    for _ in range(2):
        simple.run_here("--aorta-workload", "simple")
    assert summary.read_text().startswith("earlier\n\n## Trials of simple\n")
    assert summary.read_text().count("## Trials of simple\n") == 2
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(simple.path / "no" / "such" / "folder"))
    result = simple.run_here("--aorta-workload", "simple")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["not written: GITHUB_STEP_SUMMARY: *No such file or directory*"])
