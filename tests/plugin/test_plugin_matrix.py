"""matrix.json, matrix.md and the report: they are there while trials run, and after them, however the run ends."""

from __future__ import annotations

import json
import os
import signal
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stage import Stage, counts

from pytest_aorta.plugin import writer as matrix_writer
from pytest_aorta.plugin.writer import MatrixWriter
from pytest_aorta.triage.matrix import RunState, matrix_json
from pytest_aorta.triage.reading import read_triage
from pytest_aorta.triage.verdicts import Triage
from pytest_aorta.workspace.trial_store import TrialStore

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
        assert not failed, "too many threads"
        return {"passed": True, "step_times_ms": [1.5, 2.5], "total_iterations": 2}
"""
CELLS = ("--aorta-mitigations", "none", "--aorta-mitigations", "steady", "--aorta-registry-file", "names.json")
RUN = ("--aorta-workload", "flaky", *CELLS)


@pytest.fixture
def flaky(stage: Stage) -> Stage:
    stage.write(flaky=FLAKY)
    stage.register(flaky="flaky:Flaky")
    stage.write_registry("names.json", mitigations={"steady": {"STEADY": "1"}})
    return stage


def matrix(stage: Stage) -> dict[str, Any]:
    return dict(json.loads((stage.results / "matrix.json").read_text()))


def seen(content: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {cell["cell"]: (cell["failures"], cell["seen"]) for cell in content["cells"]}


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize(
    "options",
    [(), pytest.param(("-n", "2"), marks=[pytest.mark.slow, pytest.mark.long])],
    ids=" ".join,
)
def test_matrix_and_report_of_a_run_are_those_of_its_trial_files(flaky: Stage, options: tuple[str, ...]) -> None:
    result = flaky.run(*RUN, "--aorta-trials", "6", "--aorta-report", "report.html", *options)
    content = matrix(flaky)
    assert content["complete"]
    assert seen(content) == {"local-none": (3, 6), "local-steady": (0, 6)}
    assert [cell["planned"] for cell in content["cells"]] == [6, 6]
    triage, _ = read_triage(flaky.results)
    from_files = json.loads(matrix_json(triage.table(), RunState()))["cells"]
    by_name = itemgetter("cell")  # workers begin in any order
    assert sorted(({**cell, "planned": None} for cell in content["cells"]), key=by_name) == sorted(
        from_files, key=by_name
    )
    line = "| flaky | local-steady | steady | local | 0 of 6 | 0% (&lt;40%) |"
    assert line in (flaky.results / "matrix.md").read_text()

    assert "report: report.html" in result.outlines
    page = (flaky.path / "report.html").read_text()
    assert "12 trials in 2 cells" in page
    assert page.count('<details class="detail"') == 3
    assert "too many threads" in page
    assert "--aorta-report" not in next(line for line in result.outlines if line.startswith("run it again:"))


@pytest.mark.slow
@pytest.mark.parametrize("ctrl_c", [False, pytest.param(True, marks=pytest.mark.long)])
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
        assert {cell["comparison"]["method"] for cell in content["cells"] if cell["comparison"]} <= {"sequential"}
    flaky.run(*options, "--aorta-resume")
    content = matrix(flaky)
    assert content["complete"]
    assert seen(content) == {"local-none": (10, 20), "local-steady": (0, 20)}
    assert {cell["comparison"]["method"] for cell in content["cells"] if cell["comparison"]} == {"fixed"}
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


class Times:
    """A clock that stands still but for the steps it is given, and for what each write takes."""

    def __init__(self, costs: list[float]) -> None:
        self.now = 0.0
        self.costs = costs
        self.writes: list[tuple[float, float]] = []

    def write(self, path: Path, text: str) -> None:
        if path.name == "matrix.json":
            cost = self.costs[len(self.writes) % len(self.costs)]
            self.writes.append((self.now, cost))
            self.now += cost


@given(
    costs=st.lists(st.floats(0.0001, 0.2), min_size=1, max_size=5),
    pauses=st.lists(st.floats(0.001, 3.0), min_size=1, max_size=200),
)
def test_writes_take_one_percent_at_most_and_are_half_a_second_apart(costs: list[float], pauses: list[float]) -> None:
    times, triage = Times(costs), Triage()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix_writer, "write_text", times.write)
        writer = MatrixWriter(triage, TrialStore(Path("none"), "stamp"), Path("none"), [], lambda: times.now)
        for pause in pauses:
            times.now += pause
            writer.trial_is_over()
    spent = 0.0
    for number, (at, cost) in enumerate(times.writes):
        before = times.writes[number - 1] if number else (0.0, 0.0)
        assert at - sum(before) >= 0.5 - 1e-9
        assert spent <= 0.01 * at + 1e-9
        spent += cost


VANISHING = FLAKY.replace("time.sleep(", "import shutil; shutil.rmtree('pages', ignore_errors=True); time.sleep(")


def test_a_report_that_cannot_be_written_in_the_end_is_said_and_costs_no_result(flaky: Stage) -> None:
    flaky.write(flaky=VANISHING)
    (flaky.path / "pages").mkdir()
    result = flaky.run(*RUN, "--aorta-report", "pages/r.html", "-W", "error")
    assert (result.ret, counts(result)) == (pytest.ExitCode.TESTS_FAILED, {"passed": 2})
    result.stdout.fnmatch_lines(["not written: report */pages/r.html: the folder */pages does not exist*"])
    assert set(flaky.statuses().values()) == {"ok"}
