"""What a run leaves on disk: complete strict files, logs beside them, earlier results in the history, no secrets."""

from __future__ import annotations

import pytest
from support.stage import Stage

from pytest_aorta import TrialResult


def test_every_file_is_strict_json_and_reads_back(stage: Stage) -> None:
    stage.write(
        odd="""
        import datetime, enum, math, pathlib

        class Colour(enum.Enum):
            RED = "red"

        class Odd:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self):
                return {
                    "passed": False,
                    "step_times_ms": [1.0, math.nan, math.inf],
                    "elapsed_sec": -math.inf,
                    "metrics": {
                        "loss": math.nan, "text": "NaN", 1: "one", "path": pathlib.Path("/x"), "colour": Colour.RED,
                        "when": datetime.date(2020, 1, 2), "bytes": b"\\xff", "object": object(), "set": {1},
                        "lone": "\\ud800", "big": 10**400, "nul": "\\0",
                    },
                    "failure_details": [{"iteration": 3, "worst": math.inf}],
                }
        """
    )
    result = stage.run_here("odd.py")
    result.assert_outcomes(failed=1)
    plain = stage.trial("Odd/trial_0.json")
    assert plain["result"]["step_times_ms"] == [1.0]
    assert plain["result"]["elapsed_sec"] is None
    assert plain["result"]["metrics"]["loss"] == "NaN"
    assert plain["result"]["metrics"]["colour"] == "red"
    read = TrialResult.from_dict(plain)
    assert read.result.metrics["loss"] != read.result.metrics["loss"]
    assert read.result.metrics["text"] == "NaN"
    assert read.result.failure_details[0] == {"iteration": 3, "worst": float("inf")}
    assert read.to_dict() == plain


@pytest.mark.slow
def test_flat_with_one_cell_and_a_folder_per_cell_with_several(echo: Stage) -> None:
    echo.run_here("--aorta-workload", "echo", "--aorta-trials", "2")
    assert echo.files() == ["echo/trial_0.json", "echo/trial_1.json"]
    cells = ("--aorta-mitigations", "none", "--aorta-mitigations", "tf32_off,omp_1", "--aorta-environment", "default")
    echo.run_here("--aorta-workload", "other", *cells, "--aorta-environment", "local")
    folders = [f"{environment}-{names}" for environment in ("default", "local") for names in ("none", "tf32_off+omp_1")]
    assert [path for path in echo.files() if path.startswith("other")] == [
        f"other/{folder}/trial_0.json" for folder in folders
    ]
    ids = [echo.trial(f"other/{folder}/trial_0.json")["trial_id"] for folder in folders]
    assert ids == ["other_d0_m0_t0", "other_d0_m1_t0", "other_d1_m0_t0", "other_d1_m1_t0"]
    # Which of several cells is chosen does not change where its files lie.
    echo.run_here("--aorta-workload", "other", *cells, "other[default-none-0]")
    assert echo.earlier() == ["other/default-none/trial_0.json"]


@pytest.mark.slow
def test_complete_run_clears_away_what_the_plan_no_longer_holds(echo: Stage) -> None:
    both = ("--aorta-workload", "echo", "--aorta-workload", "other")
    echo.run_here(*both, "--aorta-trials", "3")
    # A run of a part of the plan leaves the rest as it is ...
    echo.run_here("--aorta-workload", "echo", "--aorta-trials", "2", "-k", "none-0")
    assert len(echo.files()) == 6
    assert echo.earlier() == ["echo/trial_0.json"]
    # ... and a complete one moves away what is no longer asked for, of its own workloads.
    echo.run_here("--aorta-workload", "echo", "--aorta-trials", "2")
    assert echo.files() == ["echo/trial_0.json", "echo/trial_1.json", *(f"other/trial_{i}.json" for i in range(3))]
    assert echo.earlier() == ["echo/trial_0.json", "echo/trial_0.json", "echo/trial_1.json", "echo/trial_2.json"]
    # Also when the layout changes.
    cells = ("--aorta-mitigations", "none", "--aorta-mitigations", "omp_1")
    echo.run_here("--aorta-workload", "other", *cells)
    assert [path for path in echo.files() if path.startswith("other")] == [
        "other/local-none/trial_0.json",
        "other/local-omp_1/trial_0.json",
    ]
    echo.run_here("--aorta-workload", "other")
    assert sorted(path.name for path in (echo.results / "other").iterdir()) == ["trial_0", "trial_0.json"]


def test_logs_hold_what_python_and_native_code_wrote(stage: Stage) -> None:
    stage.write(
        noisy="""
        import os
        import subprocess
        import sys

        class Noisy:
            def __init__(self, config): print("in constructor")
            def setup(self): print("in setup", file=sys.stderr)
            def run(self):
                print("python before")
                os.write(1, b"native, not UTF-8: \\xff\\xfe\\n")
                os.write(2, b"native error\\n")
                subprocess.run(["sh", "-c", "echo of a child"])
                print("gr\\u00fc\\u00dfe, \\ud800, \\x1b[31mred\\x1b[0m")
                sys.stdout.write("without newline")
                return {"passed": False}
            def cleanup(self):
                print(", in cleanup")
        """
    )
    result = stage.run_here("noisy.py")
    result.assert_outcomes(failed=1)
    trial = stage.trial("Noisy/trial_0.json")
    assert trial["artifacts"] == {"stderr": "trial_0/stderr.log", "stdout": "trial_0/stdout.log"}
    logs = {name: (stage.results / "Noisy" / path).read_bytes() for name, path in trial["artifacts"].items()}
    assert logs["stdout"].splitlines() == [
        b"in constructor",
        b"python before",
        b"native, not UTF-8: \xff\xfe",
        b"of a child",
        "grüße, \\ud800, \x1b[31mred\x1b[0m".encode(),
        b"without newline, in cleanup",
    ]
    assert logs["stderr"].splitlines() == [b"in setup", b"native error"]
    # Of a failed trial, the ends of the logs are shown, as far as a terminal can take them.
    result.stdout.fnmatch_lines(
        ["--- end of stderr (trial_0/stderr.log) ---", "in setup", "--- end of stdout*", "in constructor", "native, *"]
    )
    assert "\x1b[31m" not in result.stdout.str()


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.slow
def test_tasks_of_a_step_of_slurm_that_would_share_a_results_directory_are_refused(
    simple: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = ("--aorta-workload", "simple")
    simple.run_here(*trials, "--aorta-results-dir", "there").assert_outcomes(passed=1)
    step = {"JOB_ID": "12", "STEP_ID": "0", "STEP_NUM_NODES": "1", "STEP_NUM_TASKS": "2", "PROCID": "1"}
    for name, value in step.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for arguments in (trials, (*trials, "-n", "2"), ("--aorta-replay", "there")):
        result = simple.run(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: step 12.0 of SLURM has SLURM_STEP_NUM_TASKS=2, *--aorta-results-dir *"])
    assert not simple.results.exists()
    simple.run_here("test_other.py").assert_outcomes(passed=1)
    simple.run(*trials, "-n", "2", "--aorta-results-dir", "results-1").assert_outcomes(passed=1)


TESTS = """
import pytest

@pytest.mark.aorta(trials=3, mitigations=["none", "omp_1"])
def test_marked(aorta_run):
    aorta_run("echo")

class TestPlain:
    def test_options(self, aorta_run):
        for index in range(2):
            aorta_run("echo", index=index, config={"a": 1})
        aorta_run("echo", config={"a": 2})
        aorta_run("echo", extra_env={"SHADE": "red"})
        aorta_run("echo", extra_env={"SHADE": "blue"})
        aorta_run("echo", mitigations="omp_1", config={"text": "x y\\n" * 100})
"""


@pytest.mark.slow
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


@pytest.mark.slow
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
