"""Graphs as trials: each is a legal order, and one that differs fails with the tasks, the tensor and the tag."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stage import Stage

PIPELINE = Path(__file__).parents[2] / "examples" / "graph" / "pipeline.py"


@pytest.mark.slow
def test_the_missing_tag_of_the_example_is_named_by_the_order_that_shows_it(stage: Stage) -> None:
    result = stage.run("--aorta-graph", f"{PIPELINE}:graph", "--aorta-trials", "2")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*train (task 1) writes tensor 1 (OUTPUT), train (task 2) *; tag tensor 1 of train (task 2) INOUT*"]
    )


@pytest.mark.slow
def test_the_example_with_the_tag_gives_the_same_values_in_every_order(stage: Stage) -> None:
    result = stage.run("--aorta-graph", f"{PIPELINE}:mended", "--aorta-trials", "2")
    result.assert_outcomes(passed=2)


def test_what_is_no_graph_is_refused_before_the_first_trial(stage: Stage) -> None:
    result = stage.run("--aorta-graph", "nowhere.py:graph")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*'nowhere.py:graph' is not FILE:function, such as pipeline.py:main*"])
