"""Ctrl-C, and the end of pytest itself, while a trial runs."""

from __future__ import annotations

import pytest
from support.stage import Stage


@pytest.mark.parametrize("phase", ["setup", "run", "cleanup"])
def test_interrupt_keeps_what_is_finished_and_records_what_was_running(
    waits: Stage, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    monkeypatch.setenv("WAIT_IN", phase)
    process = waits.start("waits.py", "--aorta-trials", "5")
    waits.wait_until((waits.path / "waiting").exists)
    output = waits.press_ctrl_c(process)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "! KeyboardInterrupt !" in output
    assert "results: results" in output
    assert waits.files() == [f"Waits/trial_{index}.json" for index in range(3)]
    trial = waits.trial("Waits/trial_2.json")
    failure = trial["failure"]
    assert (failure["phase"], failure["kind"]) == (phase, "signal")
    assert failure["message"].startswith("interrupted")
    assert trial["artifacts"].keys() >= {"stdout", "stderr"}
    # What was there already is not taken back.
    assert trial["exit_status"] == ("ok" if phase == "cleanup" else "infrastructure_failed")
    assert trial["result"]["metrics"] == ({"index": 2} if phase == "cleanup" else {})
    assert [waits.trial(f"Waits/trial_{index}.json")["exit_status"] for index in range(2)] == ["ok", "ok"]
    assert waits.left_running() == []


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["pytest_runtest_setup", "pytest_runtest_call", "pytest_runtest_teardown"])
def test_interrupt_between_two_phases(waits: Stage, monkeypatch: pytest.MonkeyPatch, hook: str) -> None:
    monkeypatch.setenv("WAIT_IN", "run" if hook == "pytest_runtest_call" else "nothing")
    waits.write(
        conftest=f"""
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def {hook}(item):
            if item.name.endswith("-2]"):
                raise KeyboardInterrupt
        """
    )
    result = waits.run("waits.py", "--aorta-trials", "4")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    interrupted = hook != "pytest_runtest_teardown"  # by then, it has its result
    assert list(waits.statuses().values()) == ["ok", "ok", "infrastructure_failed" if interrupted else "ok"]
    if interrupted:
        assert waits.trial("Waits/trial_2.json")["failure"]["message"] == "interrupted: KeyboardInterrupt"
    assert waits.left_running() == []


#: Interrupts pytest while the engine is imported, in text that is executed, as in the making of a dataclass.
INTERRUPTS_AN_IMPORT = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pytest_aorta.launch.engine":
            sys.meta_path.remove(self)
            exec("import os, signal\\nos.kill(os.getpid(), signal.SIGINT)\\nfor _ in range(100): pass")

sys.meta_path.insert(0, Finder())
"""


def test_an_interrupt_waits_for_the_end_of_the_engines_import(waits: Stage) -> None:
    """Python would end with SIGINT's own status, as if it had not been caught."""
    waits.write(conftest=INTERRUPTS_AN_IMPORT)
    waits.register(waits="waits:Waits")
    process = waits.start("--aorta-workload", "waits")
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "! KeyboardInterrupt !" in output
    assert waits.files() == []
