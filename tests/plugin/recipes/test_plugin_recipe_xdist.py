"""Under xdist, actions keep their order, and nothing runs twice."""

from __future__ import annotations

import pytest
from support.projects import project
from support.recipes import noted
from support.stage import Stage, counts

#: Each command writes a line when it begins, and one when it ends; ``two`` fails where ``one`` has not ended.
CHAIN = """
[[action]]
name = "one"
command = "echo one {directory} >> log; sleep 0.1; touch workspace/{directory}/one"
products = ["one"]

[[action]]
name = "two"
command = "echo two {directory} >> log; test -e workspace/{directory}/one && touch workspace/{directory}/two"
products = ["two"]
previous_actions = ["one"]

[[action]]
name = "all"
command = "echo all {directories} >> log; for d in {directories}; do touch workspace/$d/all; done"
products = ["all"]
previous_actions = ["two"]
"""


@pytest.mark.parametrize(
    "distribution",
    ["load", pytest.param("worksteal", marks=pytest.mark.slow)],
)
def test_actions_keep_their_order(stage: Stage, distribution: str) -> None:
    project(stage.path, CHAIN, 6)
    result = stage.run("-n", "2", "--dist", distribution, "aorta.toml")
    if distribution != "worksteal":  # which may give an item to the worker that waits for it
        result.assert_outcomes(passed=13)
    else:
        result = stage.run("-n", "2", "aorta.toml")
        result.assert_outcomes(passed=13)
    log = (stage.path / "log").read_text().splitlines()
    assert sorted(log) == sorted([*(f"{name} dir{number}" for name in ("one", "two") for number in range(6)), log[-1]])
    assert log[-1].split()[0] == "all"
    assert all(log.index(f"one dir{number}") < log.index(f"two dir{number}") for number in range(6))


KILLED = """
[[action]]
name = "one"
command = '''
echo one {directory} >> log
if test {directory} = dir2 -a ! -e killed; then touch killed; kill -9 $PPID; exec sleep 60; fi
touch workspace/{directory}/one
'''
products = ["one"]

[[action]]
name = "two"
command = "echo two {directory} >> log; touch workspace/{directory}/two"
products = ["two"]
previous_actions = ["one"]
"""


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_one_directory_which_runs_the_next_time(stage: Stage) -> None:
    project(stage.path, KILLED, 6)
    result = stage.run("-n", "2", "--dist", "loadgroup", "-rs", "aorta.toml")
    # xdist moves what the worker still had to the end: behind items that wait for it, and are skipped.
    assert counts(result)["failed"] == 1
    assert set(counts(result)) == {"passed", "failed", "skipped"}
    result.stdout.fnmatch_lines(["SKIPPED*one?dir2? ended with its process"])
    stage.wait_until_alone()
    done = noted(stage.path)
    assert sorted(done["one"]) == [f"dir{n}" for n in (0, 1, 3, 4, 5)]
    assert set(done["two"]) <= set(done["one"])
    stage.run("-n", "2", "aorta.toml").assert_outcomes(passed=12)
    log = (stage.path / "log").read_text().splitlines()
    expected = [f"{name} dir{number}" for name in ("one", "two") for number in range(6)]
    assert sorted(log) == sorted([*expected, "one dir2"])
