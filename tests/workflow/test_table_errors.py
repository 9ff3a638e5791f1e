"""A key that a recipe cannot have, or a value of the wrong type: where it is, what it is, and what would be valid."""

from __future__ import annotations

import pytest
from support.recipes import ONE, recipe_of

from pytest_aorta.workflow.finding import RecipeError

MATRIX = "[[action]]\nname = 'matrix'\nworkload = 'gemm'\n"


def message_of(text: str) -> str:
    with pytest.raises(RecipeError) as error:
        recipe_of(text, "/aorta.toml")
    return str(error.value).removeprefix("/aorta.toml:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "actions = 3\n",
            "1: unknown key 'actions'; did you mean 'action'? valid: action, default, environment, mitigation, s",
        ),
        ("[default.action]\ntrails = 3\n", "2: default.action: unknown key 'trails'; did you mean 'trials'? valid: "),
        (
            MATRIX + "distributed.nporc = 2\n",
            "4: action 'matrix': distributed: unknown key 'nporc'; did you mean 'nproc'? valid: elastic, launcher",
        ),
        (
            MATRIX + "[action.submit_options.big]\nacount = 'a'\n",
            "5: action 'matrix': submit_options.big: unknown key 'acount'; did you mean 'account'? valid: account, ",
        ),
        (MATRIX + "[[action]]\nworkload = 'gemm'\nzzz = 1\n", "6: action number 2: unknown key 'zzz'; valid: axes, "),
        (MATRIX + "trials = 'many'\n", "4: action 'matrix': trials = 'many': expected a whole number"),
        (MATRIX + "steps = 1.5\n", "4: action 'matrix': steps = 1.5: expected a whole number"),
        (
            MATRIX + "margin = -0.5\n",
            "4: action 'matrix': margin = -0.5: expected a share of the baseline's rate",
        ),
        (MATRIX + "trials = nan\n", "4: action 'matrix': trials = nan: expected a whole number"),
        (MATRIX + "expect = 'maybe'\n", "4: action 'matrix': expect = 'maybe': expected 'pass' or 'fail'"),
        (MATRIX + "until_decided = 'yes, please'\n", "until_decided = 'yes, please': expected true or false"),
        (MATRIX + "seed = 1979-05-27\n", "4: action 'matrix': seed = 1979-05-27: expected a whole number"),
        (MATRIX + "mitigations = 1\n", "4: action 'matrix': mitigations = 1: expected an array"),
        ("workload = 'gemm'\ntrails = 3\n", "2: action 'gemm': unknown key 'trails'; did you mean 'trials'? valid: "),
        ("comand = 'x'\ntrials = 3\n", "1: action 'trials': unknown key 'comand'; did you mean 'command'? valid: "),
        ("command = 'python t.py'\ntimeout = '5x'\n", "2: action 't': timeout = '5x': expected a number of seconds"),
        (
            "command = 'python t.py'\nmetric = 'a'\n",
            "2: action 't': metric[0] = 'a': expected a regular expression with",
        ),
        (
            "command = 'python t.py'\nproducts = ['a']\n",
            "2: action 't' has trials of a command (trials), for which pro",
        ),
        ("command = 'python t.py'\nsteps = 3\n", "2: action 't' has trials of a command (steps), for which steps"),
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
        (
            MATRIX + "mitigations = [['none', 1]]\n",
            "mitigations[0] = ['none', 1]: expected a string",
        ),
        (MATRIX + "resources.memory = 3\n", "resources.memory = 3: expected a table with per_cpu_mb, per_gpu_mb"),
        (ONE + "group.include = [{condition = ['/a']}]\n", "condition = ['/a']: expected more elements"),
        (
            ONE + "group.include = [{condition = ['/a', '<', 1, 2]}]\n",
            "condition = ['/a', '<', 1, 2]: expected an array of at most 3 elements",
        ),
        (ONE + "resources.processes = {}\n", "5: action 'one': resources.processes: set exactly one of per_submission"),
        ("[action]\nname = 'a'\n", "1: action is a table: expected an array"),
        ("action = [1]\n", "1: action number 1 = 1: expected a table"),
        (MATRIX.replace("'matrix'", "3"), "2: action number 1: name = 3: expected a string"),
    ],
)
def test_a_message_has_the_action_the_key_and_what_is_valid(text: str, message: str) -> None:
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
