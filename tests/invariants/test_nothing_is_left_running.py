"""Nothing of a finished pytest run is left running, nor of a killed one."""

from __future__ import annotations

import signal

import pytest
from support.stage import Stage


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, pytest.param(signal.SIGHUP, marks=[pytest.mark.slow, pytest.mark.long])]
)
def test_nothing_survives_the_end_of_pytest(waits: Stage, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv("WAIT_IN", "run")
    process = waits.start("waits.py", "--aorta-trials", "5")
    waits.wait_until((waits.path / "waiting").exists)
    process.send_signal(number)
    process.communicate(timeout=60)
    waits.wait_until(lambda: not waits.left_running())
    # Whatever is there is complete.
    assert waits.statuses().items() >= {"Waits/trial_0.json": "ok", "Waits/trial_1.json": "ok"}.items()
    assert not [path for path in waits.everything() if path.endswith(".tmp")]
    # And the next run puts things in order.
    (waits.path / "waiting").unlink()
    waits.run("waits.py", "--aorta-trials", "5").assert_outcomes(passed=5)
    assert set(waits.statuses().values()) == {"ok"}
