"""Recipe files: what their keys mean, and what is refused, with its line and what would be valid."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.recipes import ONE, recipe_of

from pytest_aorta.workflow.finding import RecipeError, UnknownKey, find_recipe
from pytest_aorta.workflow.recipe import Every, parse_recipe, present, read_recipe


def test_a_key_that_a_later_row_may_have_is_a_warning_in_files_of_row_unless_it_looks_mistyped(tmp_path: Path) -> None:
    text = "[[action]]\nname = 'one'\ncommand = 'echo {directory}'\nof_the_future = 3\n"
    with pytest.warns(
        UnknownKey, match=r"workflow.toml: unknown key 'of_the_future', perhaps of a later version of Row"
    ):
        assert parse_recipe(text, tmp_path / "workflow.toml").actions[0].name == "one"
    for wrong, file in ((text, "aorta.toml"), (text.replace("of_the_future", "previous_action"), "workflow.toml")):
        with pytest.raises(RecipeError, match="unknown key"):
            parse_recipe(wrong, tmp_path / file)


def test_an_empty_recipe_has_no_actions_and_rows_workspace() -> None:
    recipe = recipe_of("")
    assert recipe.actions == ()
    assert recipe.directories == Path("/project/workspace")


def test_keys_come_from_the_action_then_from_another_then_from_the_defaults() -> None:
    recipe = recipe_of("""
[default.action]
launchers = ["openmp"]
previous_actions = []
[default.action.resources]
threads_per_process = 2
walltime.per_submission = "12:00:00"
[default.action.submit_options.big]
account = "a"
setup = "module load x"

[[action]]
name = "first"
command = "first {directory}"
products = ["first.out"]
[action.resources]
threads_per_process = 8
processes.per_directory = 3

[[action]]
name = "second"
from = "first"
command = "second {directory}"
[action.resources]
processes.per_submission = 4
[action.submit_options.big]
account = "b"
""")
    second = recipe.actions[1].table
    assert second.command == "second {directory}"
    assert second.products == ("first.out",)
    assert second.launchers == ("openmp",)
    assert second.resources.threads_per_process == 8
    assert second.resources.total_processes(10) == 4
    assert second.resources.total_walltime(10) == timedelta(hours=12)
    assert second.submit_options["big"].account == "b"
    assert second.submit_options["big"].setup == "module load x"


def test_a_matrix_takes_the_tables_of_its_defaults_key_by_key() -> None:
    recipe = recipe_of("""
[default.action]
config = {dtype = "bf16", size = 4}
[[action]]
name = "matrix"
workload = "gemm"
config.size = 8
""")
    assert recipe.actions[0].is_matrix
    assert recipe.actions[0].table.config == {"dtype": "bf16", "size": 8}


def test_a_command_with_keys_of_trials_is_a_matrix_of_trials() -> None:
    top = recipe_of(
        "command = 'python train.py'\ntrials = 20\nmitigations = 'A=1,B=2'\ntimeout = '5m'\n[workspace]\npath = 'w'"
    )
    several = recipe_of("[default.action]\ntrials = 20\n[[action]]\nname = 'train'\ncommand = 'python train.py'\n")
    for recipe in (top, several):
        (action,) = recipe.actions
        assert (action.name, action.is_matrix, action.table.trials) == ("train", True, 20)
    assert (top.actions[0].table.timeout, top.actions[0].line, top.workspace.path) == (300, 1, Path("w"))
    assert recipe_of("command = 'python train.py'").actions[0].is_matrix
    assert not recipe_of("command = 'ls {directory}'\nproducts = ['x']").actions[0].is_matrix


def test_actions_may_share_a_name_for_different_directories() -> None:
    text = """
[[action]]
name = "one"
command = "echo {directory}"
[action.resources]
processes.per_submission = 8
[[action]]
from = "one"
name = "one"
[action.resources]
processes.per_submission = 1
"""
    assert [action.table.resources.total_processes(1) for action in recipe_of(text).by_name["one"]] == [8, 1]


def test_what_is_wrong_is_one_message_with_its_line() -> None:
    cases: list[tuple[str, int | None, str]] = [
        ("[[action]\n", None, "is not valid TOML"),
        (ONE + "[action.group]\nsort_by = ['a/b']\n", 6, "'a/b' is not a JSON pointer"),
        (
            ONE + "[[action.group.include]]\ncondition = ['/a', '!=', 1]\n",
            6,
            "action 'one': group.include[0].condition[1] = '!=': expected '<', '<=', '==', '>=' or '>'",
        ),
        ("each = 'node'\nworkload = 'gemm'\nuntil_decided = true\n", 3, "for which until_decided cannot act"),
        ("workload = 'gemm'\nnodes = 'n0'\n", 2, "has nodes; it needs each = 'node'"),
        (ONE + "[[action.group.include]]\nall = []\nany = []\n", 5, "set exactly one of condition, all, any"),
        (ONE + "[action.resources.processes]\nper_directory = 1\nper_submission = 2\n", 5, "set exactly one of"),
        ("[[action]]\ncommand = 'a {directory}'\n", 1, "an action has no name"),
        ("[[action]]\nname = 'a'\n", 1, "action 'a' has neither of command and workload"),
        ("[[action]]\nname = 'a'\ncommand = 'x {directory}'\nworkload = 'w'\n", 1, "action 'a' has both"),
        (
            "[[action]]\nname = 'a'\nworkload = 'w'\nproducts = ['p']\n",
            4,
            "action 'a' has a workload, for which products",
        ),
        (
            "[[action]]\nname = 'a'\ncommand = 'x'\n",
            3,
            "has neither of {directory} and {directories}; it needs one of them, o",
        ),
        ("[[action]]\nname = 'a'\ncommand = 'x {directory} {directories}'\n", 3, "has both of"),
        ("[[action]]\nname = 'a'\ncommand = 'x {/k} {directories}'\n", 3, "cannot be used with {directories}"),
        (ONE + "previous_actions = ['two']\n", 2, "previous action 'two' of 'one' does not exist; there are one"),
        (ONE + "[[action]]\nfrom = 'two'\n", 6, "from = 'two' names no action; there are one"),
        (
            ONE + ONE + "products = ['x']\n",
            6,
            "products of 'one' differs from that of the action of the same name in line 2",
        ),
        (
            "[signatures]\nlink = ['down', 'lost(']\n",
            2,
            "signatures.link[1] = 'lost(': expected a regular expression of Python (missing )",
        ),
        ("[default.action]\nfrom = 'one'\n" + ONE, 2, "default.action cannot have from"),
        (
            ONE + "[[action]]\nname = 'two'\nfrom = 'one'\n[[action]]\nname = 'three'\nfrom = 'two'\n",
            10,
            "names an action that has from itself",
        ),
    ]
    for text, line, message in cases:
        with pytest.raises(RecipeError) as error:
            recipe_of(text)
        place = "/project/aorta.toml: " if line is None else f"/project/aorta.toml:{line}: "
        assert str(error.value).startswith(place)
        assert message in str(error.value)
        assert "\n" not in str(error.value)


def test_names_of_ways_to_fail_are_those_of_all_actions_in_the_order_of_the_file() -> None:
    rules = "[signatures]\nlink = ['down', 'lost']\ncable = 'pulled'\n"
    (action,) = recipe_of(rules + ONE).actions
    assert action.signatures == (("link", "down"), ("link", "lost"), ("cable", "pulled"))


def test_circles_over_several_actions_are_named() -> None:
    actions = [("a", "c"), ("b", "a"), ("c", "b")]
    text = "".join(
        f"[[action]]\nname='{name}'\ncommand='x {{directory}}'\nprevious_actions=['{on}']\n" for name, on in actions
    )
    with pytest.raises(
        RecipeError, match=r"actions wait for each other: (a -> c -> b -> a|b -> a -> c -> b|c -> b -> a -> c)"
    ):
        recipe_of(text)


def test_a_recipe_is_found_from_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / "workflow.toml").write_text(ONE)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_recipe(below) == tmp_path / "workflow.toml"
    (tmp_path / "aorta.toml").write_text(ONE)
    assert find_recipe(below) == tmp_path / "aorta.toml"
    assert read_recipe(find_recipe(below)).root == tmp_path


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "aorta.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match="cannot be read"):
        read_recipe(tmp_path / "aorta.toml")


MATRIX = "[[action]]\nname = 'matrix'\nworkload = 'gemm'\n"


def message_of(text: str) -> str:
    with pytest.raises(RecipeError) as error:
        recipe_of(text, "/aorta.toml")
    return str(error.value).removeprefix("/aorta.toml:")


def test_a_message_has_the_action_the_key_and_what_is_valid() -> None:
    cases: list[tuple[str, str]] = [
        (
            "actions = 3\n",
            "1: unknown key 'actions'; did you mean 'action'? valid: action, default, environment, mitigation, s",
        ),
        (
            MATRIX + "distributed.nporc = 2\n",
            "4: action 'matrix': distributed: unknown key 'nporc'; did you mean 'nproc'? valid: elastic, launcher",
        ),
        (MATRIX + "[[action]]\nworkload = 'gemm'\nzzz = 1\n", "6: action number 2: unknown key 'zzz'; valid: axes, "),
        (MATRIX + "trials = 'many'\n", "4: action 'matrix': trials = 'many': expected a whole number"),
        (
            MATRIX + "margin = -0.5\n",
            "4: action 'matrix': margin = -0.5: expected a share of the baseline's rate",
        ),
        (MATRIX + "expect = 'maybe'\n", "4: action 'matrix': expect = 'maybe': expected 'pass' or 'fail'"),
        (MATRIX + "until_decided = 'yes, please'\n", "until_decided = 'yes, please': expected true or false"),
        (MATRIX + "mitigations = 1\n", "4: action 'matrix': mitigations = 1: expected an array"),
        ("workload = 'gemm'\ntrails = 3\n", "2: action 'gemm': unknown key 'trails'; did you mean 'trials'? valid: "),
        ("command = 'python t.py'\ntimeout = '5x'\n", "2: action 't': timeout = '5x': expected a number of seconds"),
        (
            "command = 'python t.py'\nmetric = 'a'\n",
            "2: action 't': metric[0] = 'a': expected a regular expression with",
        ),
        (
            "command = 'python t.py'\nproducts = ['a']\n",
            "2: action 't' has trials of a command (trials), for which pro",
        ),
        ("command = 'ls {directory}'\ntrials = 3\n", "1: action 'trials': the command 'ls {directory}' works on direc"),
        (
            "command = 'A=secret t | u'\n",
            "1: action 'trials': the command 'A=... t | u' is not valid; expected a program",
        ),
        ("trials = 3\n" + ONE, "1: 'trials' is a key of an action: below [[action]], or below [default.action]"),
        (
            MATRIX + "mitigations = ['none', 1]\n",
            "4: action 'matrix': mitigations[1] = 1: expected a string or an array",
        ),
        (MATRIX + "resources.memory = 3\n", "resources.memory = 3: expected a table with per_cpu_mb, per_gpu_mb"),
        (ONE + "group.include = [{condition = ['/a']}]\n", "condition = ['/a']: expected more elements"),
        ("[action]\nname = 'a'\n", "1: action is a table: expected an array"),
    ]
    for text, message in cases:
        found = message_of(text)
        assert found.startswith(message) if message[0].isdigit() else message in found
        assert "\n" not in found


@pytest.mark.parametrize("table", ["extra_env", "config"])
def test_what_may_be_a_secret_is_not_shown(table: str) -> None:
    assert message_of(f"{MATRIX}{table} = 'TOKEN=hunter2'\n").endswith(f"{table} is a string: expected a table")
    assert "hunter2" not in message_of(f"{MATRIX}extra_env.TOKEN = ['hunter2']\n")
    assert "hunter2" not in message_of(f"[action]\nname = 'a'\n{table}.TOKEN = 'hunter2'\n")


def test_a_long_value_is_cut_and_a_hostile_name_is_escaped() -> None:
    assert len(message_of(f"{MATRIX}trials = '{'9' * 500}x'\n")) < 250
    assert "\x1b" not in message_of('[[action]]\nname = "\\u001b[31m"\nstepz = 1\n')


@pytest.mark.parametrize(
    ("every", "expected"), [("day", "2026-11-28"), ("week", "2026-11-23"), ("month", "2026-11-01")]
)
def test_the_present_day_week_and_month(every: Every, expected: str) -> None:
    saturday = datetime(2026, 11, 28, 5, 30, tzinfo=timezone.utc)
    assert present(every, saturday).isoformat() == f"{expected}T00:00:00+00:00"
