"""``--aorta-gate``: what decides the exit status."""

from __future__ import annotations

import signal

import pytest
from support.stage import Stage, text

WORKLOAD = """
import os
import time
from pathlib import Path

class Flaky:
    def __init__(self, config): pass
    def setup(self):
        if "BROKEN" in os.environ:
            raise RuntimeError("no such device")
    def run(self):
        if os.environ.get("WAIT"):
            Path("waiting").touch()
            time.sleep(1000)
        return {"passed": "FIXED" in os.environ}
"""


@pytest.fixture
def flaky(stage: Stage) -> Stage:
    stage.write(flaky=WORKLOAD)
    stage.register(flaky="flaky:Flaky")
    stage.write_registry(mitigations={"fixed": {"FIXED": "1"}, "broken": {"BROKEN": "1"}})
    return stage


def options(*gates: str, cells: tuple[str, ...] = ("none", "fixed"), trials: int = 5) -> list[str]:
    found = ["--aorta-workload", "flaky", "--aorta-registry-file", "registry.json", "--aorta-trials", str(trials)]
    for cell in cells:
        found += ["--aorta-mitigations", cell]
    for gate in gates:
        found += ["--aorta-gate", gate]
    return found


def test_failing_trials_are_no_failure_where_the_gates_hold(flaky: Stage) -> None:
    done = flaky.run_here(*options("failure_rate<=0.02", "verdict(fixed)==fixes"), "--junitxml", "junit.xml")
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        [
            "holds: failure_rate<=0.02",
            "holds: verdict(fixed)==fixes",
            "exit status 0: the gates judge 5 failed trials, and hold",
            "*5 failed, 5 passed*",
        ]
    )
    assert 'failures="5"' in (flaky.path / "junit.xml").read_text()


def test_one_that_does_not_hold_says_where_and_why(flaky: Stage) -> None:
    done = flaky.run_here(*options("failure_rate(none)<=0.02", "failures(fixed)<1"), "-q")
    assert done.ret == 1
    done.stdout.fnmatch_lines(
        ["does not hold: failure_rate(none)<=0.02: local-none of flaky has failure_rate 1; 5 of 5 failed"]
    )


@pytest.mark.slow
def test_an_incomplete_run_is_no_success(flaky: Stage) -> None:
    first = flaky.run_here(*options("failures(fixed)<1"), "-x")
    assert first.ret == 1
    first.stdout.fnmatch_lines(["gates are not judged, because the run is incomplete: stopping after 1 failures"])
    process = flaky.start(*options("failures(fixed)<1"), env={"WAIT": "1"})
    flaky.wait_until((flaky.path / "waiting").exists)
    process.send_signal(signal.SIGINT)
    interrupted = flaky.finish(process)
    assert interrupted.ret == 2
    interrupted.stdout.fnmatch_lines(["gates are not judged, because the run is incomplete: *"])


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ("failures(fixt)<1", "--aorta-gate 'failures(fixt)<1': there is no cell 'fixt'; there are local-none, *"),
        ("failures(fixed)=1", "--aorta-gate: 'failures(fixed)=1' is not valid; expected one of <= >= * character 16*"),
    ],
)
def test_a_wrong_gate_ends_the_run_before_it_begins(flaky: Stage, gate: str, message: str) -> None:
    done = flaky.run_here(*options(gate))
    assert done.ret == 4
    pytest.LineMatcher(text(done).splitlines()).fnmatch_lines([f"*{message}"])
    assert "gates are not judged" not in text(done)
