"""A name that does not exist ends a run before its first trial with exit status 4, however the trials are requested."""

from __future__ import annotations

import pytest
from support.stage import Stage

WORKLOADS = """
class Passes:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self): return {"passed": True}
"""

MARKED = """
import pytest
from repro import Passes

class TestMarked:
    @pytest.mark.aorta({keywords})
    def test_it(self, aorta_trial):
        aorta_trial(Passes)
"""

NAMES = [
    ("--aorta-mitigations", "nosuch", "unknown mitigation 'nosuch'; available: "),
    ("--aorta-environment", "nosuch", "unknown environment 'nosuch'; available: default, local"),
    ("--aorta-collect", "nosuch", "unknown collector 'nosuch'; available: "),
    ("--aorta-registry-file", "nosuch.json", "cannot read the registry file "),
    ("--aorta-baseline", "nosuch", "there is no cell 'nosuch'; there are local-none"),
]


@pytest.mark.parametrize(("option", "name", "said"), NAMES, ids=[option for option, _, _ in NAMES])
@pytest.mark.parametrize("options", [(), pytest.param(("-n", "1"), marks=pytest.mark.slow)], ids=["", "xdist"])
def test_for_a_workload_of_a_file(stage: Stage, option: str, name: str, said: str, options: tuple[str, ...]) -> None:
    stage.write(repro=WORKLOADS)
    result = stage.run("repro.py", option, name, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{said.replace('[', '[[]')}*"])
    assert stage.files() == []


def test_for_tests_that_start_trials(stage: Stage) -> None:
    stage.write(test_plain="def test_it(aorta_run): pass")
    result = stage.run("test_plain.py", "--aorta-mitigations", "xnak")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines[0].endswith("; did you mean 'xnack'?")


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["", "xdist"])
def test_in_a_marker(stage: Stage, options: tuple[str, ...]) -> None:
    stage.write(repro=WORKLOADS, test_marked=MARKED.format(keywords="mitigations=['nosuch']"))
    result = stage.run("test_marked.py", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["*TestMarked::test_it: @pytest.mark.aorta: unknown mitigation 'nosuch'; *"])


def test_another_error_of_the_collection_ends_a_run_as_ever(stage: Stage) -> None:
    stage.write(test_broken="import nosuch")
    assert stage.run("test_broken.py").ret == pytest.ExitCode.INTERRUPTED
