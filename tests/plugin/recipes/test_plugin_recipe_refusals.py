"""A recipe that cannot be carried out ends the run as a wrong option does, however its items are distributed."""

from __future__ import annotations

import pytest
from support.stage import Stage

BAD = {
    "unknown key": ("[[action]]\nname = 'a'\nworkload = 'gemm'\ntrails = 3\n", "4: action 'a': unknown key 'trails'"),
    "unknown workload": ("[[action]]\nname = 'a'\nworkload = 'gem'\n", "1: action 'a': unknown workload 'gem'"),
}


@pytest.mark.parametrize(
    ("case", "arguments"),
    [("unknown key", ()), ("unknown key", ("aorta.toml::a",)), ("unknown workload", ("aorta.toml",))],
    ids=["folder", "item", "file"],
)
def test_a_wrong_recipe_is_one_message_and_a_usage_error(stage: Stage, case: str, arguments: tuple[str, ...]) -> None:
    text, message = BAD[case]
    stage.write_file("aorta.toml", text)
    result = stage.run_here(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stdout.str().count(f"aorta.toml:{message}") == 1


@pytest.mark.parametrize(
    "distribution",
    ["load"],
)
def test_so_it_is_in_a_worker_of_xdist(stage: Stage, distribution: str) -> None:
    text, message = BAD["unknown key"]
    stage.write_file("aorta.toml", text)
    stage.write_file("test_it.py", "def test_it(): pass")
    result = stage.run("-n", "2", "--dist", distribution)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"aorta.toml:{message}" in result.stdout.str()
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_another_error_of_the_collection_stays_what_it_is(stage: Stage) -> None:
    stage.write_file("test_it.py", "import nothing_of_this_name")
    stage.write_file("aorta.toml", "[[action]]\nname = 'a'\ncommand = 'true {directory}'\n")
    assert stage.run_here().ret == pytest.ExitCode.INTERRUPTED
