"""Trials on hosts that execnet reaches, here processes of this machine (``popen``), and under pytest-xdist."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ElementTree

import psutil
import pytest
from support.neighbourhood import leave, notes, workloads
from support.stage import Stage

ONE = ("--aorta-host", "popen")
TWO = (*ONE, *ONE)


def host_processes(run: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The hosts of a run of pytest, as processes of this machine."""
    return [child for child in psutil.Process(run.pid).children() if any("import sys" in it for it in child.cmdline())]


def test_trials_run_on_all_hosts(beside: Stage) -> None:
    """Each has one slot, so the two trials meet only when they are on different ones."""
    result = beside.run(*workloads("meets"), "--aorta-trials", "2", *TWO)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["aorta: plan *, 1 slot on each of popen, popen, results in results"])
    assert beside.left_running() == []


@pytest.mark.slow
def test_death_of_one_host_loses_no_trial(beside: Stage) -> None:
    run = beside.start(*workloads("waits"), "--aorta-trials", "6", *TWO, "-v")
    beside.wait_until(lambda: notes(beside, "waits") == 2)
    host_processes(run)[0].kill()
    leave(beside, "go")
    output = run.communicate(timeout=60)[0].decode()
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, output
    assert sorted(beside.statuses().values()) == ["infrastructure_failed", *["ok"] * 5]
    (lost,) = [trial["failure"] for trial in beside.trials().values() if trial["exit_status"] != "ok"]
    assert lost["phase"] in ("setup", "run")  # the report of the end of setup() may be lost with the host
    assert "the host that ran this trial died: " in lost["message"]
    assert "signal SIGKILL" in lost["message"]
    beside.wait_until(lambda: not beside.left_running())


#: Arguments, and what the error says.
BAD = {
    "no interpreter": (
        "popen//python=/no/such/python",
        "ERROR: host popen//python=/no/such/python *cannot start /no/*",
    ),
    "not python": ("popen//python=/bin/false", "ERROR: host popen//python=/bin/false *is /bin/false a Python interp*"),
    "too late": ("popen//env:PYTHONPATH=x", "ERROR: --aorta-host: *'env:PYTHONPATH' comes after the interpreter has *"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.usefixtures("as_users_have_it")
def test_bad_host_is_one_message_before_anything_starts(beside: Stage, name: str) -> None:
    spec, message = BAD[name]
    result = beside.run_here(*workloads("tells"), *ONE, "--aorta-host", spec)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line]
    result.stderr.fnmatch_lines([message])
    assert not any(word in result.stdout.str() + line for word in ("Traceback", "INTERNALERROR", "child_worker"))
    assert beside.files() == []
    assert beside.left_running() == []


# Under pytest-xdist, the controller writes


@pytest.mark.slow
def test_worker_that_dies_loses_its_trial_and_no_other(faulty: Stage) -> None:
    faulty.write(
        conftest="""
        import os
        import pytest

        @pytest.fixture(autouse=True)
        def kill(request):
            if request.node.name == "passes[local-none-2]":
                os.kill(os.getpid(), 9)
        """
    )
    result = faulty.run("--aorta-workload", "passes", "--aorta-trials", "5", "-n", "2", "--junitxml", "out.xml")
    # The workload is not what failed.
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of passes?local-none-2?*", "*the xdist worker that ran this*"])
    properties = {
        each.attrib["name"]: each.attrib["value"]
        for case in ElementTree.parse(faulty.path / "out.xml").iter("testcase")
        if case.attrib["name"] == "passes[local-none-2]"
        for each in case.iter("property")
    }
    assert properties["aorta_exit_status"] == "infrastructure_failed"
    assert properties["aorta_trial_file"] == str(faulty.results / "passes/trial_2.json")
    assert list(faulty.statuses().values()) == ["ok", "ok", "infrastructure_failed", "ok", "ok"]
    trial = faulty.trial("passes/trial_2.json")
    assert trial["failure"]["message"] == "the xdist worker that ran this trial died"
    assert trial["trial_id"] == "passes_d0_m0_t2"
    faulty.wait_until(lambda: not faulty.left_running())


@pytest.mark.slow
def test_wrong_options_are_refused_once_and_before_the_first_trial(offered: Stage) -> None:
    for trials in (("--aorta-workload", "typed"), ("offered.py::Typed",)):
        result = offered.run(*trials, "-n", "2", "--aorta-config", "siez=3")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        refusals = [line for line in result.errlines if "siez" in line]
        assert refusals == ["ERROR: Typed has no option 'siez'; valid: mode, size"]
        assert offered.files() == []
