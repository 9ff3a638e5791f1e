"""However long the id of a trial is, the summary of a terminal of 80 columns says why it has failed."""

from __future__ import annotations

import pytest
from support.stage import Stage

WORKLOAD = """
class Breaks:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self): raise ValueError("loss is nan at step 4")
"""

LONG = "pytorch_alloc_expandable_segments,nccl_launch_order_implicit"
LINE = "Breaks[[]local-pytorch_*-0[]]: ValueError: loss is nan at step 4 (workload_failed in run)"


@pytest.fixture
def breaks(stage: Stage) -> Stage:
    stage.write(breaks=WORKLOAD)
    return stage


@pytest.mark.parametrize("options", [(), ("-v",), ("-n", "1")], ids=" ".join)
def test_a_reason_without_room_beside_the_id_has_a_line_of_its_own(breaks: Stage, options: tuple[str, ...]) -> None:
    environ = {"COLUMNS": "80"}
    result = breaks.run("breaks.py", "--aorta-mitigations", LONG, *options, env=environ)
    result.assert_outcomes(failed=1)
    summary = result.stdout.str().partition("short test summary info")[2]
    assert summary.count("loss is nan at step 4") == 1
    result.stdout.fnmatch_lines([LINE])


def test_a_reason_with_room_has_not(breaks: Stage) -> None:
    result = breaks.run("breaks.py", env={"COLUMNS": "80"})
    result.stdout.fnmatch_lines(["FAILED breaks.py::Breaks[[]local-none-0[]] - ValueError: loss is nan at step 4 *..."])
    result.stdout.no_fnmatch_line("Breaks[[]local-none-0[]]: *")
