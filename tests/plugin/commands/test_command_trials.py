"""``--aorta-command``: what becomes of a command is what becomes of a trial."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import Any

import pytest
from support.stage import Stage, counts, text

PYTHON = shlex.quote(sys.executable)

#: Ends as the number of its trial says.
ENDS = """
import ctypes, os, signal, sys
print("begins")
print("to stderr", file=sys.stderr)
way = int(sys.argv[1])
if way == 1: sys.exit(3)
if way == 2: raise ValueError("too bad")
if way == 3: os.kill(os.getpid(), signal.SIGKILL)
if way == 4: ctypes.string_at(0)
"""

#: Says what its arguments say.
SAYS = """
import sys
for word in sys.argv[2:]:
    print(word)
sys.exit(int(sys.argv[1]))
"""

STEPS = r"step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>\S+)"


def command(words: str) -> tuple[str, str]:
    return "--aorta-command", f"{PYTHON} {words}"


def failures(stage: Stage) -> list[dict[str, Any] | None]:
    return [trial["failure"] for trial in stage.trials().values()]


def test_its_exit_status_is_the_outcome_of_the_trial(stage: Stage) -> None:
    stage.write(ends=ENDS)
    result = stage.run_here(*command("ends.py {trial}"), "--aorta-trials", "5", "-v")
    result.assert_outcomes(passed=1, failed=4)
    assert list(stage.words(result)) == [f"command-ends[local-none-{index}]" for index in range(5)]

    trials = list(stage.trials().values())
    assert [trial["exit_status"] for trial in trials] == ["ok"] + ["workload_failed"] * 4
    assert [trial["result"]["metrics"]["returncode"] for trial in trials] == [0, 3, 1, -9, -11]
    assert [trial["failure"] and trial["failure"]["kind"] for trial in trials] == [
        *(None, "exit_code", "exception", "signal", "signal")
    ]
    assert (trials[1]["failure"]["exit_code"], trials[1]["failure"]["message"]) == (
        3,
        "ended itself with exit code 3: to stderr",
    )
    assert (trials[2]["failure"]["type"], trials[2]["failure"]["message"]) == ("ValueError", "too bad")
    assert "ends.py" in trials[2]["failure"]["traceback"]
    assert [trial["failure"]["signal"] for trial in trials[3:]] == ["SIGKILL", "SIGSEGV"]
    assert "ends.py" in trials[4]["failure"]["traceback"]
    for trial in trials:
        assert (stage.results / "command-ends" / trial["artifacts"]["stdout"]).read_text() == "begins\n"
        assert "to stderr\n" in (stage.results / "command-ends" / trial["artifacts"]["stderr"]).read_text()


def test_its_output_may_say_otherwise(stage: Stage) -> None:
    stage.write(says=SAYS)
    given = ("--aorta-fail-on", "nan", "--aorta-fail-on", "in{2}f", "--aorta-pass-on", "^ *fine$")
    commands = [*command("says.py 7 fine"), *command("says.py 0 'loss nan' fine"), *command("says.py 0 other")]
    stage.run_here(*commands, *given).assert_outcomes(passed=1, failed=2)
    assert [failure and failure["message"] for failure in failures(stage)] == [
        "its output matches 'nan': loss nan",
        "no line of its output matches '^ *fine$'",
        None,
    ]


def test_steps_metrics_and_the_step_of_the_first_failure_are_in_the_result(stage: Stage) -> None:
    stage.write(
        train="""
        import time
        for step, loss in enumerate([0.5, 0.25, float("nan"), 0.125], 1):
            print(f"step {step}/4 loss {loss}")
            time.sleep(0.02)
        """
    )
    result = stage.run_here(*command("train.py"), "--aorta-metric", STEPS, "--aorta-fail-on-nonfinite")
    result.stdout.fnmatch_lines(["workload_failed in run: loss is nan at step 3", "*1x loss is nan*"])
    (trial,) = stage.trials().values()
    found = trial["result"]
    assert found["metrics"] == {"loss": 0.125, "returncode": 0}
    assert (found["failure_count"], found["first_failure_iteration"]) == (1, 3)
    assert (found["total_iterations"], found["executed_iterations"], found["configured_iterations"]) == (4, 4, 4)
    assert len(found["step_times_ms"]) == 3
    assert all(each > 0 for each in found["step_times_ms"])
    assert found["elapsed_sec"] >= 0.08


def test_the_variables_of_a_cell_are_there_and_nothing_else_has_changed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    stage.write(
        looks="""
        import json, os, sys
        json.dump([sys.argv, sys.path, dict(os.environ), os.getcwd()], open(sys.argv[1] + "/seen.json", "w"))
        """
    )
    stage.run_here(*command("looks.py {dir} '{\"a\": {trial}}' x{seed}"), "--aorta-mitigations", "omp_1")
    trial = stage.trial("command-looks/trial_0.json")
    folder = stage.results / "command-looks" / "trial_0" / "files"
    argv, path, variables, cwd = json.loads((folder / "seen.json").read_text())
    assert argv[1:] == [str(folder), '{"a": 0}', f"x{trial['result']['metrics']['seed']}"]
    assert (path[0], cwd) == (str(stage.path), str(stage.path))
    assert not any("bootstrap" in each for each in path)
    added = {"AORTA_TRIAL_INDEX", "AORTA_TRIAL_DIR", "AORTA_TRIAL_SEED", "TMPDIR", "PYTHONUNBUFFERED"}
    added |= {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    changed = {name for name in variables.keys() | os.environ.keys() if variables.get(name) != os.environ.get(name)}
    own = {"PYTEST_AORTA_ZYGOTE", "PYTEST_CURRENT_TEST", "PYTEST_VERSION", "PYTEST_AORTA_GRACE"}
    assert changed - own - {name for name in changed if name.startswith("PYTEST_XDIST")} == added
    assert variables["OMP_NUM_THREADS"] == "1"


def test_a_program_that_is_not_there_has_not_run(stage: Stage) -> None:
    result = stage.run_here("--aorta-command", "trian --steps 4", "--aorta-command", "./folder x")
    assert counts(result) == {"errors": 2}
    result.stdout.fnmatch_lines(
        ["infrastructure_failed in setup: CommandNotFound: there is no program 'trian' in the folders of PATH: */*"]
    )
    assert "Traceback" not in text(result)
    assert set(stage.statuses().values()) == {"infrastructure_failed"}


@pytest.mark.parametrize("ranks", [(), ("--aorta-nproc", "2")], ids=["alone", "ranks"])
def test_a_script_that_is_not_there_has_not_run(stage: Stage, ranks: tuple[str, ...]) -> None:
    result = stage.run_here(*command("-u trian.py --steps 4"), *ranks)
    assert counts(result) == {"errors": 1}
    result.stdout.fnmatch_lines(
        [f"infrastructure_failed in setup: CommandNotFound: there is no file 'trian.py' in {stage.path}"]
    )
    assert list(stage.statuses().values()) == ["infrastructure_failed"]


def test_a_hang_is_ended_with_all_its_processes_and_its_stacks_are_kept(stage: Stage) -> None:
    stage.write(
        hangs="""
        import subprocess, sys, time
        def waits():
            subprocess.run([sys.executable, "-c", "import time; time.sleep(1000)"])
        print("step 7/9 loss 1")
        waits()
        """
    )
    result = stage.run_here(*command("hangs.py"), "--aorta-metric", STEPS, "--aorta-timeout", "3")
    result.stdout.fnmatch_lines(
        ["timeout in run: the deadline of 3 s passed in run(), after step 7 of 9; *waits() at hangs.py*"]
    )
    assert list(stage.statuses().values()) == ["timeout"]
    assert "step 7/9" in (stage.results / "command-hangs" / "trial_0" / "stdout.log").read_text()
    stage.wait_until_alone()
