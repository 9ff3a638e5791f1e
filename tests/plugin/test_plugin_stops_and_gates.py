"""``--aorta-stop`` and ``--aorta-gate``: when a run has seen enough, and what decides its exit status."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.stage import Stage, counts

from pytest_aorta.plugin.run import TimedRounds

#: Fails without the variable of the mitigation ``fixed``.
WORKLOAD = """
import os
import time
from pathlib import Path

class Flaky:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        if os.environ.get("WAIT"):
            Path("waiting").touch()
            time.sleep(1000)
        return {"passed": "FIXED" in os.environ}

class Short(Flaky):
    def run(self):
        time.sleep(0.02)
        return {"passed": True}
"""
CELLS = ("--aorta-registry-file", "registry.json", "--aorta-mitigations", "none", "--aorta-mitigations", "fixed")
SIDE_BY_SIDE = [("--aorta-slots", "2"), ("-n", "2")]


@pytest.fixture
def flaky(stage: Stage) -> Stage:
    stage.write(flaky=WORKLOAD)
    stage.register(flaky="flaky:Flaky", short="flaky:Short")
    stage.write_registry(mitigations={"fixed": {"FIXED": "1"}, "other": {"OTHER": "1"}})
    return stage


def per_cell(stage: Stage) -> dict[str, int]:
    """How many trial files each cell has."""
    return dict(Counter(path.split("/")[1] for path in stage.files()))


UNTIL_DECIDED = ("--aorta-workload", "flaky", *CELLS, "--aorta-stop=decided", "--aorta-trials", "40")


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_have_it")
def test_trials_of_decided_cells_are_skipped_with_the_reason(flaky: Stage) -> None:
    done = flaky.run_here(*UNTIL_DECIDED, "-rs")
    assert per_cell(flaky) == {"local-none": 8, "local-fixed": 8}
    assert counts(done) == {"failed": 8, "passed": 8, "skipped": 64}
    said = done.stdout.str()
    assert "1 of 1 cell decided, 64 trials saved (--aorta-stop=decided)" in said
    assert "SKIPPED [32] aorta::flaky[local-none]: decided: every cell that is compared with it" in said
    assert "SKIPPED [32] aorta::flaky[local-fixed]: decided: fixes (0 of 8 against 8 of 8)" in said


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_have_it")
def test_a_fix_needs_no_fresh_trials_where_that_is_asked_for(flaky: Stage) -> None:
    flaky.run_here(*UNTIL_DECIDED, "--aorta-stop=decided,confirm=0")
    assert max(per_cell(flaky).values()) < 8


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.slow
def test_the_first_fix_ends_all_trials(flaky: Stage) -> None:
    done = flaky.run_here(*UNTIL_DECIDED, "--aorta-mitigations", "other", "--aorta-stop=first-fix", "-rs")
    assert max(per_cell(flaky).values()) < 15
    assert "the first fix is found: local-fixed" in done.stdout.str()


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.slow
def test_of_many_cells_the_hopeless_ones_are_given_up_and_the_table_says_when(flaky: Stage) -> None:
    others = [word for name in ("A=1", "B=1", "C=1") for word in ("--aorta-mitigations", name)]
    done = flaky.run_here(*UNTIL_DECIDED, "--aorta-trials", "30", *others)
    trials = per_cell(flaky)
    assert trials["local-A=1"] == trials["local-B=1"] == trials["local-C=1"] == 8 < trials["local-fixed"]
    done.stdout.fnmatch_lines(
        [
            "  local-A=1 * no cure? (*",
            "    given up after 8 trials: 8 failures against 8",
            "fixed fixes it: *",
            "1 of 4 cells decided, 3 given up, * trials saved (--aorta-stop=decided)",
        ]
    )


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.slow
@pytest.mark.parametrize("side_by_side", [SIDE_BY_SIDE[0], pytest.param(SIDE_BY_SIDE[1], marks=pytest.mark.long)])
def test_side_by_side_little_more_is_run(flaky: Stage, side_by_side: tuple[str, ...]) -> None:
    done = flaky.run(*UNTIL_DECIDED, *side_by_side)
    trials = per_cell(flaky)
    assert all(8 <= number < 40 for number in trials.values())
    assert sum(counts(done).values()) == 80
    done.stdout.fnmatch_lines([f"1 of 1 cell decided, {80 - sum(trials.values())} trials saved*"])


@pytest.mark.parametrize("how", [(), pytest.param(SIDE_BY_SIDE[1], marks=[pytest.mark.slow, pytest.mark.long])])
def test_for_a_time_rounds_are_complete_and_what_does_not_begin_is_not_reported(
    flaky: Stage, how: tuple[str, ...]
) -> None:
    cells = (*CELLS, "--aorta-mitigations", "other", "--aorta-trials", "300")
    done = flaky.run("--aorta-workload", "short", *cells, "--aorta-stop", "1s", *how)
    (number,) = set(per_cell(flaky).values())
    assert done.ret == 0
    assert counts(done) == {"passed": 3 * number}
    assert re.search(rf"^{number} rounds? within 1s \(--aorta-stop\)$", done.stdout.str(), re.MULTILINE)


def test_workers_agree_on_rounds_and_on_the_time(tmp_path: Path) -> None:
    one, other = TimedRounds(0.2, tmp_path), TimedRounds(0.2, tmp_path)
    time.sleep(0.25)
    assert one.begin("gemm 0")  # the time begins with the first round
    time.sleep(0.25)
    assert other.begin("gemm 0")
    assert not other.begin("gemm 1")


# Gates


def gated(stage: Stage, *gates: str, more: tuple[str, ...] = ()) -> pytest.RunResult:
    given = [word for gate in gates for word in ("--aorta-gate", gate)]
    return stage.run_here("--aorta-workload", "flaky", *CELLS, "--aorta-trials", "5", *given, *more)


@pytest.mark.usefixtures("as_users_have_it")
def test_failing_trials_are_no_failure_where_the_gates_hold(flaky: Stage) -> None:
    done = gated(flaky, "failure_rate<=0.02", "verdict(fixed)==fixes", more=("--junitxml", "junit.xml"))
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        [
            "holds: failure_rate<=0.02",
            "holds: verdict(fixed)==fixes",
            "exit status 0: the gates judge 5 failed trials, and hold",
            "*5 failed, 5 passed*",
        ]
    )
    suite, cases = junit(flaky)
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["12", "0", "0"]
    assert cases["failure_rate<=0.02"].find("failure") is None
    said = cases["flaky[local-none-0]"].findtext("system-err") or ""
    assert "run() returned passed=False" in said


@pytest.mark.slow
def test_junit_follows_the_gates(flaky: Stage) -> None:
    flaky.write(test_other="def test_it():\n    assert False\n")
    gated(flaky, "failure_rate_upper(none)<=0.02", more=("test_other.py", "--junitxml", "junit.xml"))
    suite, cases = junit(flaky)
    failed = [name for name, case in cases.items() if case.find("failure") is not None]
    assert (failed, suite.get("failures")) == (["test_it", "failure_rate_upper(none)<=0.02"], "2")
    [failure] = cases["failure_rate_upper(none)<=0.02"]
    assert failure.get("message") == "local-none of flaky has upper(failure_rate) 1; 5 of 5 failed"


def junit(stage: Stage) -> tuple[ElementTree.Element, dict[str, ElementTree.Element]]:
    suite = ElementTree.parse(stage.path / "junit.xml").getroot()[0]
    return suite, {case.get("name", ""): case for case in suite.iter("testcase")}


@pytest.mark.slow
def test_one_that_does_not_hold_says_where_and_why(flaky: Stage) -> None:
    gates = ("failure_rate(none)<=0.02", "failures(fixed)<1")
    assert gated(flaky, *gates).ret == 1  # whatever the last one says
    flaky.write(test_other="def test_it():\n    assert False\n")
    done = gated(flaky, *gates, more=("-q", "test_other.py"))
    assert done.ret == 1
    done.stdout.fnmatch_lines(
        [
            "does not hold: failure_rate(none)<=0.02: local-none of flaky has failure_rate 1; 5 of 5 failed",
            "1 failure that no gate judges*",
        ]
    )


def test_a_trial_that_did_not_run_is_excused_only_by_a_gate_on_infrastructure(flaky: Stage) -> None:
    flaky.write(
        conftest="""
        import pytest

        @pytest.fixture(autouse=True)
        def licence(request):
            assert not request.node.name.endswith("fixed-4]")
        """
    )
    done = gated(flaky, "failures(fixed)<1")
    assert done.ret == 1
    done.stdout.fnmatch_lines(["holds: failures(fixed)<1", "1 failure that no gate judges*"])
    assert gated(flaky, "infrastructure<=1").ret == 0


def test_an_incomplete_run_is_no_success(flaky: Stage) -> None:
    first = gated(flaky, "failures(fixed)<1", more=("-x",))
    assert first.ret == 1
    first.stdout.fnmatch_lines(["gates are not judged, because the run is incomplete: stopping after 1 failures"])
    gate = ("--aorta-gate", "failures(fixed)<1")
    process = flaky.start("--aorta-workload", "flaky", *CELLS, *gate, env={"WAIT": "1"})
    flaky.wait_until((flaky.path / "waiting").exists)
    process.send_signal(signal.SIGINT)
    interrupted = flaky.finish(process)
    assert interrupted.ret == 2
    interrupted.stdout.fnmatch_lines(["gates are not judged, because the run is incomplete: *"])


@pytest.mark.slow
def test_auto_ends_cells_that_are_decided_or_have_had_the_trials_that_show_a_cure(stage: Stage) -> None:
    stage.write(
        coin="""
import os
class Coin:
    name = "coin"
    default_config = {"steps": 1}
    def __init__(self, config): pass
    def setup(self): pass
    def run(self): return {"passed": os.environ.get("CURE") == "1" or int(os.environ["AORTA_TRIAL"]) % 5 == 1}
"""
    )
    stage.register(coin="coin:Coin")
    line = ("--aorta-workload", "coin", "--aorta-isolation", "none", "--aorta-trials", "auto")
    sets = ("--aorta-mitigations", "none", "--aorta-mitigations", "CURE=1", "--aorta-mitigations", "NOTHING=1")
    result = stage.run_here(*line, *sets, "--aorta-stop", "decided,confirm=0")
    result.stdout.fnmatch_lines(
        [
            "aorta: until each cell is decided, or has had 90% power to show a cure: at 30% * at 10% *, 500 at most",
            "*[12] of 2 cells decided, * trials saved (--aorta-stop=decided)",  # or one is decided, and one dropped
        ]
    )
