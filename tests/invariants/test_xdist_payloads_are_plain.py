"""What travels between pytest-xdist and its workers is plain data, and no hook relies on ``xdist_group``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stage import Stage

import pytest_aorta

#: Runs in the controller and in its workers; every payload that it has seen is a line of a file.
CHECKS = """
import pytest

def check(kind, payload):
    pending = [payload]
    while pending:
        value = pending.pop()
        assert type(value) in (dict, list, tuple, str, bytes, int, float, bool, type(None)), (kind, value)
        pending += [*value, *value.values()] if type(value) is dict else value if type(value) in (list, tuple) else []
    with open("payloads", "a") as file:
        print(kind, file=file)

@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(report):
    data = yield
    check("report", data)
    return data

@pytest.hookimpl(trylast=True)
def pytest_configure_node(node):
    check("to worker", node.workerinput)

def pytest_testnodedown(node, error):
    check("from worker", node.workeroutput)
"""

WORKLOADS = """
class Passes:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self): return {"passed": True, "metrics": {"value": 1.5}}

class Raises(Passes):
    def run(self): raise ValueError("loss is nan")
"""


@pytest.mark.slow
def test_payloads_are_plain(stage: Stage) -> None:
    stage.write(conftest=CHECKS, workloads=WORKLOADS)
    stage.run("workloads.py", "-n", "2", "--aorta-trials", "2").assert_outcomes(passed=2, failed=2)
    seen = (stage.path / "payloads").read_text().splitlines()
    assert {kind: seen.count(kind) for kind in set(seen)} == {"to worker": 2, "from worker": 2, "report": 4 * 3}


def test_no_hook_relies_on_groups() -> None:
    for path in Path(pytest_aorta.__file__).parent.rglob("*.py"):
        if path.name == "ordinary_tests.py":  # which refuses such tests
            continue
        assert "xdist_group" not in path.read_text(), path
