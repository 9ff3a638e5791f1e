"""``--aorta-host``: trials on hosts that execnet reaches; here, ``popen`` ones, which are processes of this machine."""

from __future__ import annotations

import subprocess

import psutil
import pytest
from support.neighbourhood import leave, notes, settle, workloads
from support.stage import Stage

ONE = ("--aorta-host", "popen")
TWO = (*ONE, *ONE)


@pytest.fixture
def hosts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return settle(stage, monkeypatch)


def host_processes(run: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The hosts of a run of pytest, as processes of this machine."""
    return [child for child in psutil.Process(run.pid).children() if any("import sys" in it for it in child.cmdline())]


# What comes back


def test_trials_run_on_all_hosts(hosts: Stage) -> None:
    """Each has one slot, so the two trials meet only when they are on different ones."""
    result = hosts.run(*workloads("meets"), "--aorta-trials", "2", *TWO)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["aorta: plan *, 1 slot on each of popen, popen, results in results"])
    assert hosts.left_running() == []


# Deaths


@pytest.mark.slow
def test_death_of_one_host_loses_no_trial(hosts: Stage) -> None:
    run = hosts.start(*workloads("waits"), "--aorta-trials", "6", *TWO, "-v")
    hosts.wait_until(lambda: notes(hosts, "waits") == 2)
    host_processes(run)[0].kill()
    leave(hosts, "go")
    output = run.communicate(timeout=60)[0].decode()
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, output
    assert sorted(hosts.statuses().values()) == ["infrastructure_failed", *["ok"] * 5]
    (lost,) = [trial["failure"] for trial in hosts.trials().values() if trial["exit_status"] != "ok"]
    assert lost["phase"] in ("setup", "run")  # the report of the end of setup() may be lost with the host
    assert "the host that ran this trial died: " in lost["message"]
    assert "signal SIGKILL" in lost["message"]
    hosts.wait_until(lambda: not hosts.left_running())


# The ends of pytest


# Hosts that cannot be used

#: Arguments, and what the error says.
BAD = {
    "no interpreter": (
        "popen//python=/no/such/python",
        "ERROR: host popen//python=/no/such/python *cannot start /no/*",
    ),
    "not python": ("popen//python=/bin/false", "ERROR: host popen//python=/bin/false *is /bin/false a Python interp*"),
    "no host": ("nonsense", "ERROR: --aorta-host: 'nonsense' is not a host: it does not say how to reach it; valid *"),
    "unknown key": ("popen//pyhton=x", "ERROR: --aorta-host: 'popen//pyhton=x' is not a host: 'pyhton' is unknown *"),
    "too late": ("popen//env:PYTHONPATH=x", "ERROR: --aorta-host: *'env:PYTHONPATH' comes after the interpreter has *"),
    "no number": ("0*popen", "ERROR: --aorta-host: 0 hosts are not valid; expected 1 to 9999, as in 2[*]popen"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_host_is_one_message_before_anything_starts(hosts: Stage, name: str) -> None:
    spec, message = BAD[name]
    result = hosts.run_here(*workloads("tells"), *ONE, "--aorta-host", spec)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line]
    result.stderr.fnmatch_lines([message])
    assert not any(word in result.stdout.str() + line for word in ("Traceback", "INTERNALERROR", "child_worker"))
    assert hosts.files() == []
    assert hosts.left_running() == []
