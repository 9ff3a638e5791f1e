"""A process that cannot be ended, as a stuck driver makes one: its trial is over, and its device is not used again.

The process is a double, for no machine here has such a driver: its zygote is made to send it no SIGKILL.
"""

from __future__ import annotations

import pytest
from support.devices import names_devices
from support.stage import Stage

STUCK = """
import os, signal, time
from functools import partial

from pytest_aorta.runtime import process_tree

send_signal = process_tree.send_signal


def send_no_sigkill(pids, number):
    send_signal([pid for pid in pids if number != signal.SIGKILL], number)


process_tree.send_signal = send_no_sigkill
process_tree.end_all = partial(process_tree.end_all, limit=0.2)


class Stuck:
    def __init__(self, config):
        pass

    def setup(self):
        pass

    def run(self):
        first = not os.path.exists("stuck")
        if first:
            open("stuck", "w").close()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
        return {"passed": True, "metrics": {"device": os.environ.get("CUDA_VISIBLE_DEVICES")}}
"""

OPTIONS = ("stuck.py", "--aorta-trials", "2", "--aorta-timeout", "1", "-o", "aorta_grace=0")


@pytest.mark.slow
def test_its_trial_is_over_and_names_it(stage: Stage) -> None:
    stage.write(stuck=STUCK)
    stage.run(*OPTIONS).assert_outcomes(failed=1, passed=1)
    first, second = stage.trials().values()
    assert (first["exit_status"], second["exit_status"]) == ("timeout", "ok")
    [note] = first["result"]["failure_details"]
    assert note["note"].endswith(", sleeping) could not be ended")
    stage.wait_until(lambda: not stage.left_running())


@pytest.mark.slow
@pytest.mark.long
@names_devices
def test_its_device_is_not_used_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_AORTA_LEASES_DIR", str(stage.path / "leases"))
    stage.write(stuck=STUCK)
    stage.run(*OPTIONS, "--aorta-devices", "0-1").assert_outcomes(failed=1, passed=1)
    assert stage.trials()["Stuck/trial_1.json"]["result"]["metrics"]["device"] == "1"
    stage.wait_until(lambda: not stage.left_running())

    (stage.path / "stuck").unlink()
    stage.run(*OPTIONS, "--aorta-devices", "0").assert_outcomes(failed=1, errors=1)
    assert list(stage.statuses().values()) == ["timeout", "infrastructure_failed"]
    failure = stage.trials()["Stuck/trial_1.json"]["failure"]
    assert (failure["phase"], failure["traceback"]) == ("launch", None)
    assert failure["message"].startswith("device 0 is held by ")
    assert failure["message"].endswith("which cannot be ended; a trial takes 1 of the devices that are left")
    stage.wait_until(lambda: not stage.left_running())
