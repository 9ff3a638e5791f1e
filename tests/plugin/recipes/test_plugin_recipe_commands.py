"""Recipes of plain commands, run by pytest."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.projects import project, short_status
from support.recipes import noted
from support.stage import Stage

from pytest_aorta.cli.project import init

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
    file = stage.write_file(name, recipe)
    for directory in directories:
        (file.parent / "workspace" / directory).mkdir(parents=True, exist_ok=True)


# Which files are recipes


@pytest.mark.parametrize("folder", ["", "deep/below/", "package/"])
def test_recipes_are_collected_in_every_folder(stage: Stage, folder: str) -> None:
    stage.write_file("pytest.ini", "[pytest]")
    stage.write_file("package/__init__.py", "")
    stage.write_file("test_other.py", "def test_other(): pass")
    for name in ("aorta.toml", "nightly.aorta.toml", "workflow.toml"):
        make(stage, GREETINGS, "a", name=f"{folder}{name}")
    for name in ("xaorta.toml", "aorta.toml.old", "pyproject.toml"):
        stage.write_file(f"{folder}{name}", "")

    def collected(*arguments: str) -> list[str]:
        result = stage.run_here("--collect-only", "-q", *arguments)
        return sorted({line.partition("::")[0] for line in result.outlines if "::" in line})

    recipes = [f"{folder}aorta.toml", f"{folder}nightly.aorta.toml"]
    assert collected() == sorted([*recipes, "test_other.py"])
    assert collected("test_other.py") == ["test_other.py"]
    assert collected("test_other.py", folder or ".") == sorted([*recipes, "test_other.py"])
    # A workflow of Row is one only where it is named.
    assert collected(f"{folder}workflow.toml") == [f"{folder}workflow.toml"]
    stage.write_file("pytest.ini", f"[pytest]\ntestpaths = {folder}workflow.toml")
    assert collected() == [f"{folder}workflow.toml"]


@pytest.mark.parametrize("arguments", [("aorta.toml::a",), ("-n", "1")], ids=["item", "xdist"])
def test_a_wrong_recipe_is_one_message_and_a_usage_error(stage: Stage, arguments: tuple[str, ...]) -> None:
    stage.write_file("aorta.toml", "[[action]]\nname = 'a'\nworkload = 'gemm'\ntrails = 3\n")
    result = stage.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stdout.str().count("aorta.toml:4: action 'a': unknown key 'trails'") == 1
    assert "INTERNALERROR" not in f"{result.stdout}{result.stderr}"


def test_another_error_of_the_collection_stays_what_it_is(stage: Stage) -> None:
    stage.write_file("test_it.py", "import nothing_of_this_name")
    stage.write_file("aorta.toml", "[[action]]\nname = 'a'\ncommand = 'true {directory}'\n")
    assert stage.run_here().ret == pytest.ExitCode.INTERRUPTED


# Which directories run


def test_each_directory_is_an_item_after_those_of_the_actions_that_it_follows(stage: Stage) -> None:
    make(stage, GREETINGS, "a", "b c")
    result = stage.run_here("-v", "aorta.toml")
    assert result.ret == 0
    names = [line.split(" ")[0] for line in result.outlines if "::" in line]
    assert [name.partition("~")[0] for name in names] == [
        f"aorta.toml::{action}[{directory}" for action in ("greet", "leave") for directory in ("a]", "b_c")
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
launchers = ["many"]
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
    stage.run_here("-q", "aorta.toml").stdout.fnmatch_lines(["*no launcher is called 'many'; there are *"])
    stage.write_file("aorta.toml", GROUPED.replace('launchers = ["many"]', ""))
    stage.run_here("-q", "aorta.toml").stdout.fnmatch_lines(["*'points' has 2 processes, and no launcher that starts*"])
    stage.write_file("aorta.toml", GROUPED)
    stage.write_file("launchers.toml", "[many.default]\nprocesses = 'env MANY='")
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


# Each makes its product; the second one after the first

CHAIN = """
[[action]]
name = "one"
command = "echo one {directory} >> log; sleep 0.05; touch workspace/{directory}/one"
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
GREET = CHAIN.partition('[[action]]\nname = "all"')[0]


def test_under_xdist_an_item_with_an_incomplete_earlier_action_is_skipped_with_the_line_that_runs_it(
    stage: Stage,
) -> None:
    project(stage.path, CHAIN, 1)
    first = stage.run("-n", "2", "--dist", "load", "-rs", "aorta.toml")
    first.assert_outcomes(passed=1, skipped=2)
    first.stdout.fnmatch_lines_random(
        [
            "SKIPPED*two?dir0?: one?dir0? is not complete, and may run in *; next: pytest --aorta-slots 2 *toml",
            "SKIPPED*all?dir0?: two?dir0? is not complete, and may run in *; next: pytest --aorta-slots 2 *toml",
        ]
    )
    stage.run("--aorta-slots", "2", "aorta.toml").assert_outcomes(passed=3)
    assert (stage.path / "log").read_text().splitlines() == ["one dir0", "two dir0", "all dir0"]


#: Names that file systems allow: 255 bytes, what is no UTF-8, what shells and pytest give a meaning to.
NAMES = [
    *(b"a b", b"a\nb", b"\xff\xfe", b"x" * 255, "\u00fc\u4e2d".encode(), b"-rf", b"[x]", b"\x1b[31m"),
    *(b"q'uo\"te", b"a::b", b"$HOME", b".hidden", b"x\r", "\u2028".encode(), b"{directory}", b"*", b"#", b"\\"),
]


def test_directories_may_have_any_name(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    project(stage.path, GREET)
    for name in NAMES:
        os.makedirs(os.path.join(os.fsencode(stage.path / "workspace"), name))
    stage.run_here("aorta.toml").assert_outcomes(passed=2 * len(NAMES))
    monkeypatch.chdir(stage.path)
    assert sorted(map(os.fsencode, noted(stage.path)["two"])) == sorted(NAMES)
    assert short_status() == {name: [len(NAMES), 0, 0, 0, 0, 0] for name in ("one", "two")}
    stage.run_here("aorta.toml", "-q").stdout.fnmatch_lines(["k" * 2 * len(NAMES) + "*"])


def test_where_the_index_cannot_be_written_the_run_works_and_warns_once(stage: Stage) -> None:
    project(stage.path, GREET, 3)
    (stage.path / ".aorta").touch()  # root may write into any folder
    for _ in range(2):
        result = stage.run("aorta.toml")
        result.assert_outcomes(passed=6, warnings=1)
        result.stdout.fnmatch_lines(["*.aorta: what this run completes cannot be noted (*); pytest-aorta scan finds*"])
    assert len((stage.path / "log").read_text().splitlines()) == 6


# Ends


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_command_with_all_that_it_has_started(stage: Stage) -> None:
    command = "sleep 1000 & (setsid sleep 1000 &) ; touch begun {directory}; sleep 1000"
    make(stage, f'[[action]]\nname = "long"\ncommand = "{command}"', "a")
    process = stage.start("aorta.toml")
    stage.wait_until((stage.path / "begun").exists)
    assert "KeyboardInterrupt" in stage.press_ctrl_c(process)
    stage.wait_until(lambda: not stage.processes())


def test_what_a_command_leaves_in_its_group_ends_with_it(stage: Stage) -> None:
    make(stage, '[[action]]\nname = "one"\ncommand = "sleep 1000 & echo {directory}"', "a")
    stage.run_here("aorta.toml").assert_outcomes(passed=1)
    stage.wait_until(lambda: not stage.processes())


def test_a_command_does_not_outlive_a_killed_pytest(stage: Stage) -> None:
    make(stage, '[[action]]\nname = "long"\ncommand = "sleep 1000 & touch begun {directory}; sleep 1000"', "a")
    process = stage.start("aorta.toml")
    stage.wait_until((stage.path / "begun").exists)
    process.kill()
    process.communicate()
    stage.wait_until_alone()


@pytest.mark.slow
def test_killed_at_any_moment_nothing_is_lost(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project(stage.path, GREET, 40))
    chance = random.Random(20)
    for _ in range(10):
        process = stage.start("-q", "aorta.toml")
        time.sleep(chance.uniform(0.05, 0.9))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        # The index names completed directories only, with their products.
        for action, outcomes in noted(stage.path).items():
            for directory, outcome in outcomes.items():
                assert (outcome, Path("workspace", directory, action).exists()) == ("completed", True)
    stage.run_here("aorta.toml").assert_outcomes(passed=80)
    assert short_status() == {name: [40, 0, 0, 0, 0, 0] for name in ("one", "two")}
    ran = [line for line in Path("log").read_text().splitlines() if line.startswith("one")]
    assert len(ran) <= 50  # a killed shell may have written its line, and not yet made its product
    assert set(ran) == {f"one dir{number}" for number in range(40)}


# A recipe that is one command with trials, the one that ``init`` writes, and one without items

SCRIPT = "import os\nassert os.environ.get('FIX') == '1', 'not fixed'\nprint('loss nan')\n"

WITH_TRIALS = """
command = "python train.py"
trials = 2
mitigations = ["none", "FIX=1"]
fail_on = "loss [0-9]"
gate = "failure_rate(FIX=1)<=10%"
"""


@pytest.mark.slow
def test_a_command_with_trials_at_the_top_is_run_in_the_folder_of_its_recipe(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.write_file("below/train.py", SCRIPT)
    stage.write_file("below/aorta.toml", WITH_TRIALS)
    result = stage.run_here("below")
    result.assert_outcomes(passed=2, failed=2)
    assert result.ret == 0  # which the gate decides
    result.stdout.fnmatch_lines(["*trials of train*", "holds: train: failure_rate(FIX=1)<=10%"])
    monkeypatch.chdir(stage.path / "below")
    assert noted(stage.path / "below")["train"] == {
        **{f"local-none/{index}": "workload_failed" for index in range(2)},
        **{f"local-FIX=1/{index}": "ok" for index in range(2)},
    }
    again = stage.run_here("-v", "aorta.toml")  # what was run from above is complete
    assert stage.words(again)["train[local-FIX=1-0]"] == ["KEPT"]
    stage.write_file("below/train.py", f"{SCRIPT}print('loss 1')\n")
    stage.run_here("aorta.toml", "-k", "FIX").assert_outcomes(failed=2)  # the script has changed


def test_what_init_writes_runs_as_it_is(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stage.path)
    CliRunner().invoke(init, ["."], catch_exceptions=False)
    outcomes = stage.run_here("aorta.toml").parseoutcomes()
    assert outcomes.get("passed", 0) + outcomes.get("failed", 0) == 10
    assert "errors" not in outcomes


def test_a_recipe_without_items_says_why(stage: Stage) -> None:
    stage.write_file("aorta.toml", "")
    stage.write_file("some.aorta.toml", '[[action]]\nname = "one"\ncommand = "ls {directory}"\nproducts = ["x"]\n')
    result = stage.run_here("aorta.toml", "some.aorta.toml")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(
        [
            "collected 0 items",
            "aorta.toml: it has no action; command = *",
            "some.aorta.toml: one: a command runs on each directory of */workspace, and there is none",
        ]
    )
