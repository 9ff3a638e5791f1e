"""Recipes whose index cannot be written, whose runs are killed, and whose directories have unusual names."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from support.projects import complete, project, short_status
from support.recipes import noted
from support.stage import Stage

GREET = """
[[action]]
name = "one"
command = "echo {directory} >> runs && touch workspace/{directory}/one"
products = ["one"]

[[action]]
name = "two"
command = "touch workspace/{directory}/two"
products = ["two"]
previous_actions = ["one"]
"""

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
    expected = {name: [len(NAMES), 0, 0, 0, 0, 0] for name in ("one", "two")}
    assert short_status() == expected
    stage.run_here("aorta.toml", "-q").stdout.fnmatch_lines(["k" * 2 * len(NAMES) + "*"])
    assert len((stage.path / "runs").read_bytes()) == sum(len(name) + 1 for name in NAMES)


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["alone", "xdist"])
def test_where_the_index_cannot_be_written_the_run_works_and_warns_once(stage: Stage, workers: tuple[str]) -> None:
    project(stage.path, GREET, 3)
    (stage.path / ".aorta").touch()  # root may write into any folder
    for _ in range(2):
        result = stage.run("aorta.toml", *workers)
        result.assert_outcomes(passed=6, warnings=len(workers) or 1)  # one in each process that runs commands
        result.stdout.fnmatch_lines(["*.aorta: what this run completes cannot be noted (*); pytest-aorta scan finds*"])
    assert len((stage.path / "runs").read_text().splitlines()) == 3
    stage.run("aorta.toml", "-W", "error", *workers).assert_outcomes(passed=6)


def test_what_a_killed_run_has_made_and_not_noted_is_noted_when_it_is_kept(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project(stage.path, GREET, 3))
    complete(stage.path, "one", 2)
    assert short_status("-a", "one") == {"one": [0, 0, 0, 0, 3, 0]}
    stage.run_here("aorta.toml", "-k", "dir0 or dir1").assert_outcomes(passed=4, deselected=2)
    assert short_status("-a", "one") == {"one": [2, 0, 0, 0, 1, 0]}
    stage.run_here("aorta.toml", "-k", "dir0").assert_outcomes(passed=2, deselected=4)
    assert not list((stage.path / ".aorta" / "staged").iterdir())  # nothing was new


def all_noted_is_there(folder: Path) -> bool:
    """Whether the index names completed directories only, with their products."""
    return all(
        outcome == "completed" and (folder / "workspace" / directory / action).exists()
        for action, outcomes in noted(folder).items()
        for directory, outcome in outcomes.items()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "commands",
    [[("pytest", "-q", "aorta.toml")], [("pytest_aorta", "scan", "--prune"), ("pytest_aorta", "status")]],
    ids=["pytest", "scan and status"],
)
def test_killed_at_any_moment_nothing_is_lost(
    stage: Stage, commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project(stage.path, GREET, 40))
    if len(commands) == 2:
        complete(stage.path, "one", 30)
    chance = random.Random(20)
    for number in range(10):
        process = stage.start_command(sys.executable, "-m", *commands[number % len(commands)])
        time.sleep(chance.uniform(0.05, 0.9))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert all_noted_is_there(stage.path)
    stage.run_here("aorta.toml").assert_outcomes(passed=80)
    assert short_status() == {name: [40, 0, 0, 0, 0, 0] for name in ("one", "two")}
    if len(commands) == 1:  # a killed shell may have written its line, and not yet made its product
        runs = Path("runs").read_text().split()
        assert len(runs) <= 50
        assert set(runs) == {f"dir{number}" for number in range(40)}
