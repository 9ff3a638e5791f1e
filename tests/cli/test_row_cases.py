"""The cases of Row's own command line tests, as a table: what is done before, the command, and what it writes.

Row's commands are on the left of ``docs/guides/row.md``. A line with a number of columns has two more than Row's: what
has failed, and what is stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from support.projects import COMMANDS, command, complete, project

NAMES = "".join(f"dir{number}\n" for number in range(10))


class Case(NamedTuple):
    """``before``: commands, or changes of the folder. ``lines``: expressions, each for a whole line of the output.

    ``others``: for no line; ``whole``: all of the output; ``said``: a part of what is written to stderr.
    """

    words: str
    lines: Sequence[str] = ()
    others: Sequence[str] = ()
    before: Sequence[str | Callable[[Path], object]] = ()
    whole: str | None = None
    said: str = ""
    status: int = 0
    stdin: str | None = None


def one_and_two(folder: Path) -> None:
    complete(folder, "one", 8)
    complete(folder, "two", 4)


def no_recipe(folder: Path) -> None:
    (folder / "aorta.toml").unlink()


ONE, TWO, THREE = r"one +0 +0 +0 +0 +10 +0 .*", r"two +0 +0 +0 +0 +0 +10 .*", r"three .*"
DIRECTORIES = r"Directory +Status +Job ID"

CASES = {
    "requires_subcommand": Case("", said="Usage: ", status=2),
    "help": Case("--help", [r"Usage: .*"]),
    "no_workflow_file": Case("status", before=[no_recipe], said="no aorta.toml or workflow.toml in ", status=2),
    "empty_workflow": Case(
        "status --cluster none",
        before=[lambda folder: (folder / "aorta.toml").rename(folder / "workflow.toml").write_text("")],
        whole="",
        said="No actions match",
    ),
    "status": Case("status --cluster none", [r"Action +Completed .* Remaining cost", ONE, TWO], [THREE]),
    "status_waiting": Case("status --waiting", [TWO], [ONE, THREE]),
    "status_eligible": Case("status --eligible", [ONE], [TWO, THREE]),
    "status_submitted": Case("status --submitted", whole="", said="No actions match"),
    "status_all": Case("status --all", [ONE, TWO, r"three +0 +0 +0 +0 +0 +0 .*"]),
    "status_completed": Case(
        "status --completed", [r"one +10 +0 +0 +0 +0 +0 .*"], [r"two .*"], before=["submit --cluster none -a one"]
    ),
    "status_action_selection": Case("status -a one", [ONE], [TWO]),
    "status_directories": Case(
        "status dir1 dir2 nodir", [r"one +0 +0 +0 +0 +2 +0 .*", r"two .* 2 .*"], said="'nodir' not found in workspace"
    ),
    "status_directories_stdin": Case(
        "status -", [r"one +0 +0 +0 +0 +2 +0 .*"], said="'nodir' not found in workspace", stdin="dir1\ndir2\nnodir\n"
    ),
    "scan": Case(
        "status", [r"one +8 +0 +0 +0 +2 +0 .*", r"two +4 +0 +0 +0 +4 +2 .*"], before=["status", one_and_two, "scan"]
    ),
    "... before it": Case("status", [ONE, TWO], before=["status", one_and_two]),
    "scan_action": Case(
        "status", [r"one +8 .*", r"two +0 +0 +0 +0 +8 +2 .*"], before=["status", one_and_two, "scan -a one"]
    ),
    "scan_directories": Case(
        "status", [r"one +5 .*", r"two +0 .*"], before=[lambda folder: complete(folder, "one", 8), "scan " + NAMES[:24]]
    ),
    "submit": Case("status", [r"one +10 +0 .*", r"two +0 +0 +0 +0 +10 +0 .*"], before=["submit --cluster none"]),
    "directories_no_action": Case("show directories", whole=NAMES),
    "directories": Case("show directories -a one", [DIRECTORIES, *(rf"dir{n} +eligible" for n in range(10))]),
    "directories_select_directories": Case(
        "show directories -a one dir3 dir9", [r"dir3 +eligible", r"dir9 +eligible"], [r"dir[0124-8] .*"]
    ),
    "directories_no_header": Case("show directories -a one --no-header", [r"dir0 +eligible"], [r"Directory .*"]),
    "directories_value": Case(
        "show directories --value /v --value /half -a one dir3 dir9",
        [rf"{DIRECTORIES} +/v +/half", r"dir3 +eligible +3 +1", r"dir9 +eligible +9 +4"],
    ),
    "directories_short": Case("show directories -a one --short", whole=NAMES),
    "directories_short_no_action": Case("show directories --short", whole=NAMES),  # in Row, an error
    "show_cluster": Case("show cluster --cluster none", [r'name = "none"']),
    "show_cluster_short": Case("show cluster --cluster none --short", whole="none\n"),
    "show_launchers": Case("show launchers --cluster none", [r'executable = "mpirun"']),
    "show_launchers_short": Case("show launchers --cluster none --short", ["mpi", "openmp", "rayon"]),
    "init_conflicting_args": Case("init --signac --workspace test new", said="use one of them", status=2),
    "init_invalid_path": Case("init --workspace /test/one new", said="expected the name of a folder", status=2),
    "init_workflow_exists": Case("init .", said="aorta.toml is there already", status=2),
    "init_parent_exists": Case("init sub", said="aorta.toml is there already", status=2),
    "init_cache_exists": Case(
        "init .", before=["scan", no_recipe], said=".aorta is there already, the index of another", status=2
    ),
    "init": Case("init .", [r"recipe: aorta.toml"], before=[no_recipe]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_case_of_row(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.chdir(project(tmp_path, COMMANDS, 10))
    for each in case.before:
        if isinstance(each, str):
            assert command(*each.split()).exit_code == 0
        else:
            each(tmp_path)
    result = command(*case.words.split(), stdin=case.stdin)
    assert result.exit_code == case.status, result.output
    lines = result.stdout.splitlines()
    for expected in case.lines:
        assert any(re.fullmatch(expected, line) for line in lines), (expected, result.stdout)
    for expected in case.others:
        assert not any(re.fullmatch(expected, line) for line in lines), (expected, result.stdout)
    assert case.whole in (None, result.stdout)
    assert case.said in result.stderr
