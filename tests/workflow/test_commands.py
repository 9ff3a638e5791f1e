"""Commands of actions: placeholders, quoting, variables."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_aorta.settings import RequestError
from pytest_aorta.workflow.groups import action_variables
from pytest_aorta.workflow.recipe import Cost, Resources, check_command, shell_commands

WORKSPACE = Path("/w s")


def test_one_command_per_directory() -> None:
    lines = shell_commands(
        "run {directory} --in {workspace_path} --lr {/lr} {/a/b}", ["x"], [{"lr": 0.1, "a": {"b": "t u"}}], WORKSPACE
    )
    assert lines == ["run x --in '/w s' --lr 0.1 't u'"]


def test_one_command_for_all_directories() -> None:
    assert shell_commands("run {directories}", ["a", "b c"], [None, None], WORKSPACE) == ["run a 'b c'"]


def test_braces_of_the_shell_stay() -> None:
    command = "for x in {1..3}; do echo ${x} {directory}; done"
    check_command(command)
    assert shell_commands(command, ["d"], [None], WORKSPACE) == ["for x in {1..3}; do echo ${x} d; done"]


def test_an_element_that_is_missing_names_its_directory() -> None:
    with pytest.raises(RequestError, match="directory 'd' has no element '/k'"):
        shell_commands("run {directory} {/k}", ["d"], [{}], WORKSPACE)


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), st.text(max_size=8))
def test_no_name_and_no_value_is_read_by_the_shell(name: str, value: str) -> None:
    value = value.replace("\0", "").encode("utf-8", "ignore").decode()
    (line,) = shell_commands("printf '%s\\0' {directory} {/v}", [name], [{"v": value}], WORKSPACE)
    assert (
        subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True).stdout == f"{name}\0{value}\0".encode()
    )
    assert shlex.split(line)[2:] == [name, value]


def test_variables_say_what_a_job_is() -> None:
    resources = Resources.model_validate(
        {
            "processes": {"per_directory": 2},
            "threads_per_process": 4,
            "gpus_per_process": 1,
            "walltime": {"per_directory": "00:01:30"},
        }
    )
    assert action_variables("act", resources, 3, WORKSPACE, "none") == {
        "ACTION_CLUSTER": "none",
        "ACTION_NAME": "act",
        "ACTION_WORKSPACE_PATH": "/w s",
        "ACTION_PROCESSES": "6",
        "ACTION_PROCESSES_PER_DIRECTORY": "2",
        "ACTION_WALLTIME_IN_MINUTES": "5",
        "ACTION_THREADS_PER_PROCESS": "4",
        "ACTION_GPUS_PER_PROCESS": "1",
    }
    plain = action_variables("act", Resources(), 3, WORKSPACE, "none")
    assert plain["ACTION_PROCESSES"] == "1"
    assert plain["ACTION_WALLTIME_IN_MINUTES"] == "180"
    assert not plain.keys() & {
        "ACTION_PROCESSES_PER_DIRECTORY",
        "ACTION_THREADS_PER_PROCESS",
        "ACTION_GPUS_PER_PROCESS",
    }


def test_costs_count_gpus_instead_of_cores() -> None:
    walltime = {"per_submission": "02:00:00"}
    assert Resources.model_validate({"walltime": walltime, "threads_per_process": 8}).cost(5) == Cost(cpu_hours=16)
    gpus = Resources.model_validate({"walltime": walltime, "gpus_per_process": 2, "processes": {"per_directory": 3}})
    assert gpus.cost(5) == Cost(gpu_hours=60)
    assert str(gpus.cost(5) + Cost(cpu_hours=1234.4)) == "1,234 CPU-hours and 60 GPU-hours"
    assert str(Cost()) == "0 CPU-hours"
