"""Recipes of plain commands, run by pytest."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from support.recipes import noted
from support.stage import Stage

#: Greets each directory, and then takes leave of those that were greeted.
GREETINGS = """
[[action]]
name = "leave"
command = 'cat workspace/{directory}/greeting && echo bye >> log'
previous_actions = ["greet"]

[[action]]
name = "greet"
command = 'test {directory} != bad && echo hello {directory} | tee workspace/{directory}/greeting'
products = ["greeting"]
"""


def make(stage: Stage, recipe: str, *directories: str, name: str = "aorta.toml") -> None:
    """Write a recipe, and make the directories of its workspace."""
    stage.write_file(name, recipe)
    for directory in directories:
        (stage.path / "workspace" / directory).mkdir(parents=True)


def test_each_directory_is_an_item_after_those_of_the_actions_that_it_follows(stage: Stage) -> None:
    make(stage, GREETINGS, "a", "b c")
    result = stage.run_here("-v", "aorta.toml")
    assert result.ret == 0
    names = [line.split(" ")[0] for line in result.outlines if "::" in line]
    assert [name.partition("~")[0] for name in names] == [
        "aorta.toml::greet[a]",
        "aorta.toml::greet[b_c",
        "aorta.toml::leave[a]",
        "aorta.toml::leave[b_c",
    ]
    assert (stage.path / "workspace/b c/greeting").read_text() == "hello b c\n"


def test_a_complete_directory_is_kept_and_what_has_no_products_runs_again(stage: Stage) -> None:
    make(stage, GREETINGS, "a")
    stage.run_here("aorta.toml")
    result = stage.run_here("-v", "aorta.toml")
    result.stdout.fnmatch_lines(["*greet?a? KEPT*", "*leave?a? PASSED*"])
    result.assert_outcomes(passed=2)
    assert (stage.path / "log").read_text() == "bye\nbye\n"


def test_where_a_previous_action_has_failed_the_next_one_is_skipped_with_the_reason(stage: Stage) -> None:
    make(stage, GREETINGS, "a", "bad")
    result = stage.run_here("-rs", "aorta.toml")
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["*the command ended with exit status 1; no greeting in bad*", "SKIPPED*greet?bad? failed"]
    )
    assert noted(stage.path)["greet"] == {"a": "completed", "bad": "failed"}


def test_what_is_not_selected_is_no_reason_to_run_it(stage: Stage) -> None:
    make(stage, GREETINGS, "a")
    result = stage.run_here("-rs", "aorta.toml", "-k", "leave")
    result.assert_outcomes(skipped=1, deselected=1)
    result.stdout.fnmatch_lines(["SKIPPED*greet?a? is not complete, and not selected in this run"])
    stage.run_here("aorta.toml::greet[a]").assert_outcomes(passed=1)
    stage.run_here("aorta.toml", "-k", "leave").assert_outcomes(passed=1, deselected=1)


def test_a_command_that_makes_no_product_fails_and_its_output_is_shown(stage: Stage) -> None:
    make(stage, '[[action]]\nname = "one"\ncommand = "echo seen {directory}"\nproducts = ["x", "y"]', "a")
    result = stage.run_here("aorta.toml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["no x, y in a", "command: echo seen a", "*Captured output call*", "seen a"])


GROUPED = """
[workspace]
value_file = "value.json"

[[action]]
name = "points"
command = '''
echo "$ACTION_NAME $ACTION_PROCESSES $ACTION_WORKSPACE_PATH:" {directories} >> log
for directory in {directories}; do touch workspace/$directory/done; done
'''
products = ["done"]
[action.resources.processes]
per_directory = 2
[action.group]
sort_by = ["/x"]
reverse_sort = true
maximum_size = 2
[[action.group.include]]
condition = ["/type", "==", "point"]

[[action]]
name = "letters"
command = 'echo {directory} {/letter} >> log'
[[action.group.include]]
condition = ["/type", "==", "letter"]
"""


def test_groups_values_and_variables_are_those_of_row(stage: Stage) -> None:
    make(stage, GROUPED)
    values = [{"type": "point", "x": 5 - index} for index in range(3)] + [{"type": "letter", "letter": "a;b"}]
    for index, value in enumerate(values):
        stage.write_file(f"workspace/d{index}/value.json", json.dumps(value))
    result = stage.run_here("-v", "aorta.toml")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*::points?d0+1? PASSED*", "*::points?d2? PASSED*", "*::letters?d3? PASSED*"])
    assert (stage.path / "log").read_text() == ("points 4 workspace: d0 d1\npoints 2 workspace: d2\nd3 a;b\n")
    (stage.path / "workspace/d1/done").unlink()
    stage.run_here("aorta.toml")
    assert (stage.path / "log").read_text().splitlines()[3:] == ["points 2 workspace: d1", "d3 a;b"]


def test_a_workflow_of_row_runs_only_when_it_is_given(stage: Stage) -> None:
    make(stage, GREETINGS, "a", name="workflow.toml")
    stage.write_file("pyproject.toml", "")
    assert stage.run_here().ret == pytest.ExitCode.NO_TESTS_COLLECTED
    stage.run_here("workflow.toml").assert_outcomes(passed=2)


def test_launchers_begin_the_command(stage: Stage) -> None:
    recipe = """
    [[action]]
    name = "one"
    command = 'bash -c "echo \\$OMP_NUM_THREADS > workspace/{directory}/threads"'
    launchers = ["openmp"]
    products = ["threads"]
    resources.threads_per_process = 3
    """
    make(stage, recipe, "a")
    stage.run_here("aorta.toml").assert_outcomes(passed=1)
    assert (stage.path / "workspace/a/threads").read_text() == "3\n"


def test_a_launcher_that_does_not_exist_is_refused(stage: Stage) -> None:
    make(stage, '[[action]]\nname = "one"\ncommand = "echo {directory}"\nlaunchers = ["pmi"]', "a")
    result = stage.run_here("aorta.toml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*aorta.toml:1: action 'one': no launcher is called 'pmi'; there are openmp, mpi, *"])


def test_directories_of_two_actions_of_one_name_may_not_overlap(stage: Stage) -> None:
    make(stage, '[[action]]\nname = "one"\ncommand = "echo {directory}"\n' * 2, "a")
    result = stage.run_here("aorta.toml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*aorta.toml:4: action 'one' includes directory 'a', and so does*in line 1"])


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_command_with_all_that_it_has_started(stage: Stage) -> None:
    make(
        stage,
        """
        [[action]]
        name = "long"
        command = "sleep 1000 & (setsid sleep 1000 &) ; touch begun {directory}; sleep 1000"
        """,
        "a",
    )
    process = stage.start("aorta.toml")
    stage.wait_until((stage.path / "begun").exists)
    output = stage.press_ctrl_c(process)
    assert "KeyboardInterrupt" in output
    stage.wait_until(lambda: not stage.processes())


def test_what_a_command_leaves_in_its_group_ends_with_it(stage: Stage) -> None:
    make(stage, '[[action]]\nname = "one"\ncommand = "sleep 1000 & echo $! > {directory}.pid"', "a")
    stage.run_here("aorta.toml").assert_outcomes(passed=1)
    pid = int((stage.path / "a.pid").read_text())
    stage.wait_until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid))


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize(("number", "name"), [(signal.SIGSEGV, "SIGSEGV"), (40, "signal 40")])
def test_a_command_that_a_signal_ends_says_which(stage: Stage, number: int, name: str) -> None:
    make(stage, f'[[action]]\nname = "one"\ncommand = "kill -{int(number)} $$ {{directory}}"', "a")
    stage.run_here("aorta.toml").stdout.fnmatch_lines([f"the command ended with {name}"])
    assert os.path.isdir(stage.path / "workspace")
