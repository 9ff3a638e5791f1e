"""The last line of a table: what to do next, as one command."""

from __future__ import annotations

import shlex

import pytest
from support.stage import PYTEST, Stage

pytestmark = pytest.mark.usefixtures("as_users_have_it")

SOURCE = """
import os, time

number, name = int(os.environ["AORTA_TRIAL_INDEX"]), os.environ.get("NAME", "")
for step in range(1, 4):
    time.sleep(0.002)
    print("step", step, flush=True)
if os.environ.get("EVERY") and number % int(os.environ["EVERY"]) == 0:
    raise ValueError("bad")
"""

COMMAND = (
    "-p",
    "no:cacheprovider",
    "--tb=no",
    "--aorta-command",
    "python train.py",
    "--aorta-metric",
    r"step (?P<step>\d+)",
)


@pytest.fixture
def train(stage: Stage) -> Stage:
    stage.write(train=SOURCE)
    return stage


def next_lines(result: pytest.RunResult) -> list[str]:
    return [line.removeprefix("next: ") for line in result.outlines if line.startswith("next: ")]


def arguments_in(line: str) -> list[str]:
    """Of the command in a line."""
    return shlex.split(line[line.index(": pytest") + 2 :])


@pytest.mark.slow
def test_of_a_cell_that_is_undecided_the_trials_and_their_time_are_named(train: Stage) -> None:
    sets = ["--aorta-mitigations", "EVERY=2", "--aorta-mitigations", "EVERY=3", "--aorta-baseline", "EVERY=2"]
    result = train.run(*COMMAND, *sets, "--aorta-trials", "4")
    (line,) = next_lines(result)
    more, _, rest = line.partition(" more trials of each cell, about ")
    assert rest
    words = arguments_in(line)
    assert words == ["pytest", *PYTEST[3:], *COMMAND, *sets, "--aorta-trials", str(4 + int(more)), "--aorta-resume"]
    assert result.outlines.index(f"next: {line}") > result.outlines.index("results: results")
    # It is a command that runs as it stands.
    words[words.index("--aorta-trials") + 1] = "6"
    train.run(*words[3:]).stdout.fnmatch_lines(["8 of 12 trials had a result already (--aorta-resume)"])


@pytest.mark.slow
def test_of_a_cure_the_evidence_a_failure_and_the_part_that_acts(train: Stage) -> None:
    sets = ["--aorta-mitigations", "none", "--aorta-mitigations", "EVERY=,OTHER=1", "--aorta-trials", "12"]
    result = train.run(*COMMAND, *sets, env={"EVERY": "1"})
    assert next_lines(result) == [
        "the evidence in one page: pytest-aorta report results",
        "a failure again, with its seeds: pytest --aorta-replay results/command-train/local-none/trial_0.json",
        "which part of it does it: "
        + shlex.join(["pytest-aorta", "minimize", "EVERY=,OTHER=1", *PYTEST[3:], *COMMAND]),
    ]


def test_of_a_cure_that_is_not_confirmed_how_to_go_on(train: Stage) -> None:
    sets = ["--aorta-mitigations", "none", "--aorta-mitigations", "EVERY="]
    result = train.run(
        *COMMAND, *sets, "--aorta-trials", "5", "--aorta-stop", "first-fix,failures=5", env={"EVERY": "1"}
    )
    (line,) = next_lines(result)
    assert line.startswith("5 more trials of each cell, about ")
    assert arguments_in(line)[-5:] == ["--aorta-trials", "10", "--aorta-stop", "first-fix", "--aorta-resume"]


def test_of_a_fault_that_was_not_seen_a_longer_look_at_more_than_the_trial_that_was_chosen(train: Stage) -> None:
    sets = ["--aorta-mitigations", "none", "--aorta-mitigations", "EVERY=", "--aorta-trials", "2"]
    (line,) = next_lines(
        train.run(*COMMAND, *sets, *(f"aorta::command-train[local-{it}-1]" for it in ("none", "EVERY=")))
    )
    assert line.startswith("until each cell fails, for 1h at most: pytest ")
    longer = ["--aorta-trials", "10000", "--aorta-stop", "failures=1,1h"]
    assert arguments_in(line)[-5:] == ["aorta::command-train", *longer]


def test_of_failures_alone_one_again(train: Stage) -> None:
    lines = next_lines(train.run(*COMMAND, "--aorta-trials", "2", env={"EVERY": "1"}))
    assert lines == ["a failure again, with its seeds: pytest --aorta-replay results/command-train/trial_0.json"]


def test_of_a_run_that_was_ended_its_rest(train: Stage) -> None:
    (line,) = next_lines(train.run(*COMMAND, "--aorta-trials", "4", "-x", env={"EVERY": "1"}))
    assert line.startswith("the rest of the plan: pytest ")
    words = arguments_in(line)
    assert words[-2:] == ["--maxfail=0", "--aorta-resume"]
    train.run(*words[3:], env={"EVERY": "1"}).assert_outcomes(failed=4)


@pytest.mark.parametrize("other", ["PAUSE=1", "SAME=1"])
@pytest.mark.slow
def test_a_question_about_speed_is_answered_with_speed(stage: Stage, other: str) -> None:
    stage.write(
        train="""
        import os, time
        for step in range(1, 4):
            time.sleep(0.1 if os.environ.get("PAUSE") else 0.01)  # whatever runs beside it
            print("step", step, flush=True)
        """
    )
    sets = ["--aorta-mitigations", "none", "--aorta-mitigations", other]
    result = stage.run(*COMMAND, *sets, "--aorta-trials", "14", "--aorta-stop", "speed")
    assert not any("undecided" in line.split()[:6] and " 1 " in line for line in result.outlines)
    kind = "slower" if other == "PAUSE=1" else "*"
    result.stdout.fnmatch_lines(
        [
            "cell * failed * rate (95%) * speed * step ms",
            f"  local-{other} * {kind}: *% (* to *%) *",
            f"*: {other} *% (* to *%)*",
        ]
    )
    if other == "PAUSE=1":
        letters = next(line for line in result.outlines if line.startswith("aorta ....")).split()[1]
        assert "s" not in letters
        result.stdout.fnmatch_lines(
            ["1 of 1 cell decided, * trials saved (--aorta-stop=speed)", "* passed, * skipped in *"]
        )


@pytest.mark.slow
def test_long_names_are_shortened_by_what_they_share(train: Stage) -> None:
    values = [f"MYLIB_FAST_ATTN={one},MYLIB_FUSED_ADAM={other}" for one in "01" for other in "01"]
    sets = [word for value in ("none", *values) for word in ("--aorta-mitigations", value)]
    result = train.run(*COMMAND, "-v", *sets, "--aorta-trials", "2")
    result.stdout.fnmatch_lines(
        [
            "aorta::command-train[[]local-MYLIB_FAST_ATTN=0+MYLIB_FUSED_ADAM=0-0[]] PASSED*",
            "  none                      0 of 2 *",
            "  FAST_ATTN=0 FUSED_ADAM=0  0 of 2 *",
        ]
    )


def test_of_a_fault_that_the_hash_seed_decides_a_failure_is_run_again(stage: Stage) -> None:
    stage.write(train='import sys\nsys.exit(hash("x") % 2)')
    sets = ["--aorta-mitigations", "none", "--aorta-mitigations", "omp_1", "--tb=no", "--aorta-slots", "2"]
    result = stage.run("--aorta-command", "python train.py", "--aorta-trials", "24", *sets)
    assert "PYTHONHASHSEED decides it: fails with " in result.stdout.str()
    (line,) = next_lines(result)
    assert line.startswith("a failure again, with its hash seed: pytest --aorta-replay results/")
    assert stage.run(*arguments_in(line)[1:]).ret == 1
