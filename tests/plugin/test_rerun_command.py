"""The command that runs one item again: from the same directory, with what its trial depends on, without secrets."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_aorta.plugin.failures import rerun_line
from pytest_aorta.settings import SETTINGS

NODE_ID = "aorta::fsdp[local-none-3]"

TOP = Path("/project")


def item(node_id: str = NODE_ID, *, here: Path = TOP, others: dict[str, Any] | None = None, **own: Any) -> pytest.Item:
    """As much of an item as is looked at; options as the command line gave them, ``own`` ones without ``aorta_``."""
    given = argparse.Namespace(**{each.ini: None for each in SETTINGS}, **(others or {}))
    for name, value in own.items():
        setattr(given, f"aorta_{name}", value)
    config = SimpleNamespace(option=given, rootpath=TOP, invocation_params=SimpleNamespace(dir=here))
    return cast(pytest.Item, SimpleNamespace(nodeid=node_id, config=config))


def test_the_command_to_run_again_has_the_options_that_shape_the_plan() -> None:
    line = rerun_line(
        item(workload=["fsdp"], trials="8", mitigations=["none", "tf32_off,xnack"], config=["note=two words"])
    )

    assert shlex.split(line) == [
        *("pytest", "--aorta-workload", "fsdp", "--aorta-trials", "8"),
        *("--aorta-mitigations", "none", "--aorta-mitigations", "tf32_off,xnack"),
        *("--aorta-config", "note=two words"),
        NODE_ID,
    ]


def test_the_command_to_run_again_names_variables_without_their_values() -> None:
    line = rerun_line(item(extra_env=["TOKEN=hunter2,B=x,y", "C="]))

    assert "hunter2" not in line
    assert shlex.split(line)[1:-1] == ["--aorta-extra-env", "TOKEN=...,B=...", "--aorta-extra-env", "C=..."]


def test_the_rerun_line_shows_no_value_of_a_host_s_variables() -> None:
    line = rerun_line(item(host=["popen//env:TOKEN=hunter2//id=a"]))

    assert line == f"pytest --aorta-host popen//env:TOKEN=...//id=a '{NODE_ID}'"


@pytest.mark.parametrize(
    ("node_id", "here", "shown"),
    [
        ("sub/repro.py::Hangs[local-none-0]", TOP, "sub/repro.py::Hangs[local-none-0]"),
        ("sub/repro.py::Hangs[local-none-0]", TOP / "sub", "repro.py::Hangs[local-none-0]"),
        ("sub/repro.py::Hangs[local-none-0]", TOP / "other/below", "../../sub/repro.py::Hangs[local-none-0]"),
        (NODE_ID, TOP / "sub", NODE_ID),
    ],
)
def test_files_are_relative_to_the_directory_that_pytest_was_started_in(node_id: str, here: Path, shown: str) -> None:
    assert shlex.split(rerun_line(item(node_id, here=here))) == ["pytest", shown]


def test_limits_and_configuration_files_of_pytest_are_kept() -> None:
    others = {"timeout": 2.5, "inifilename": "other.ini", "rootdir": "..", "override_ini": ["x=1 2"], "verbose": 2}
    words = shlex.split(rerun_line(item(others=others)))
    assert words == ["pytest", "-c", "other.ini", "--rootdir", "..", "-o", "x=1 2", "--timeout", "2.5", NODE_ID]
