"""Where the trials of tests lie, and what went from the history."""

from __future__ import annotations

from support.stage import Stage

TESTS = """
import pytest

@pytest.mark.aorta(trials=3, mitigations=["none", "omp_1"])
def test_marked(aorta_trial):
    aorta_trial("echo")

class TestPlain:
    def test_options(self, aorta_run):
        for index in range(2):
            aorta_run("echo", index=index, config={"a": 1})
        aorta_run("echo", config={"a": 2})
        aorta_run("echo", extra_env={"SHADE": "red"})
        aorta_run("echo", extra_env={"SHADE": "blue"})
        aorta_run("echo", mitigations="omp_1", config={"text": "x y\\n" * 100})
"""


def test_trials_of_tests_lie_in_folders_that_read_like_their_node_ids(echo: Stage) -> None:
    (echo.path / "sub").mkdir()
    (echo.path / "sub" / "test_it.py").write_text(TESTS)
    echo.run_here("sub/test_it.py").assert_outcomes(passed=7)
    plain = "sub.test_it.py@TestPlain.test_options"
    assert echo.files() == [
        *(f"{plain}/echo@local-none/trial_{number}.json" for number in range(5)),
        f"{plain}/echo@local-omp_1/trial_0.json",
        *(
            f"sub.test_it.py@test_marked@local-{name}-{index}/echo@local-{name}/trial_0.json"
            for name in ("none", "omp_1")
            for index in range(3)
        ),
    ]


def test_the_history_is_bounded_and_says_what_has_gone(echo: Stage) -> None:
    run = ("--aorta-workload", "echo", "--aorta-trials", "2", "-o", "aorta_history=2")
    for _ in range(3):
        echo.run_here(*run).stdout.no_fnmatch_line("history:*")
    result = echo.run_here(*run)
    result.stdout.fnmatch_lines(["history: 2 earlier records removed, 2 runs of each workload kept (aorta_history)"])
    assert sorted(set(echo.earlier())) == ["echo/trial_0.json", "echo/trial_1.json"]
    assert len(echo.earlier()) == 4
    assert len([path for path in echo.everything() if path.endswith("stdout.log")]) == 6
    (echo.path / "pytest.ini").write_text("[pytest]\naorta_history = all\n")
    echo.run_here(*run[:4]).stdout.no_fnmatch_line("history:*")
    assert len(echo.earlier()) == 6
