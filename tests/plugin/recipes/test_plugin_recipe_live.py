"""Trials of recipes on the terminal: the live view, the folded failures, the names of their tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stage import Stage
from support.terminal import Terminal, finish, start_pytest

#: Each trial goes on when there is a file ``go``, and fails unless its option says otherwise.
HELD = """
import time
from pathlib import Path

class Held:
    default_config = {"ok": 0}
    def __init__(self, config): self.ok = int(config["ok"])
    def setup(self): pass
    def run(self):
        while not Path("go").exists():
            time.sleep(0.01)
        return {"passed": bool(self.ok)}
"""

RECIPE = """
[[action]]
name = "first"
workload = "held"
trials = 2

[[action]]
name = "second"
workload = "held"
trials = 6
"""


@pytest.fixture
def recipe(stage: Stage) -> Stage:
    stage.write(work=HELD)
    stage.register(held="work:Held")
    stage.write_file("aorta.toml", RECIPE)
    return stage


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.mark.parametrize("side_by_side", [("--aorta-slots", "2"), ("-n", "2")], ids=["slots", "xdist"])
def test_trials_of_a_recipe_are_in_the_live_view(
    recipe: Stage, terminal: Terminal, side_by_side: tuple[str, ...]
) -> None:
    process = start_pytest(recipe, terminal, "aorta.toml", *side_by_side)
    shown = terminal.wait_until(lambda lines: sum("[local-none-" in line for line in lines) == 2)
    assert any(line.startswith("aorta: 0/8 done, elapsed ") for line in shown)
    Path(recipe.path, "go").touch()
    left = finish(process, terminal)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert not [line for line in left if re.match(r"aorta: \d+/\d+ done|  (slot|gw)\d", line)]


def test_failures_are_folded_for_each_action_and_its_table_has_its_name(recipe: Stage) -> None:
    Path(recipe.path, "go").touch()
    result = recipe.run_here("aorta.toml")
    result.assert_outcomes(failed=8)
    result.stdout.fnmatch_lines(
        [
            "*= trials of first =*",
            "results: workspace/first",
            "*= trials of second =*",
            "results: workspace/second",
            "*= short test summary info =*",
            "FAILED aorta.toml::first?local-none-1?*",
            "FAILED aorta.toml::second?local-none-1?*",
            "... and 4 more like second?local-none-0?: trials 2-5",
        ]
    )
