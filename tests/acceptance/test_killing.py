"""What is left after a kill of: a worker, a zygote, pytest itself. And what trials leave behind on their own."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.processes import is_gone, wait_for
from support.stage import Stage, counts

HERE = Path(__file__).parent


@pytest.fixture
def held(stage: Stage) -> Callable[[], psutil.Process]:
    """Waits for a trial of ``Held`` to be in the middle of ``run()``; its process."""
    stage.copy(HERE / "simple_workloads.py")

    def wait() -> psutil.Process:
        def pid() -> int | None:
            try:
                text = (stage.path / "held").read_text()
            except OSError:
                return None
            return int(text) if text.endswith("\n") else None

        return psutil.Process(wait_for(pid, "a trial that is held"))

    return wait


@pytest.mark.parametrize(
    ("number", "options"),
    [
        (signal.SIGTERM, ()),
        (signal.SIGKILL, ()),
        pytest.param(signal.SIGKILL, ("-n", "2"), marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_an_ended_pytest(
    stage: Stage,
    held: Callable[[], psutil.Process],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    options: tuple[str, ...],
) -> None:
    temporary = stage.path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    arguments = ("simple_workloads.py", "-k", "Tells or Held", *options)
    # Of a killed pytest, nothing gets any grace: no stage waits for so long until it is alone.
    running = stage.start(*arguments, env={"PYTEST_AORTA_GRACE": "60"} if number == signal.SIGKILL else None)
    trial = held()
    assert len(trial.children()) == 2
    before = stage.trials()
    running.send_signal(number)
    running.communicate(timeout=60)
    stage.wait_until_alone()
    assert is_gone(trial.pid)
    if not options:
        assert [each["exit_status"] for each in before.values()] == ["ok"]
    assert stage.trials() | before == stage.trials()
    if number == signal.SIGKILL:
        assert "Held/trial_0.json" not in stage.files()
        assert list(temporary.iterdir()) != []
    else:
        assert not [path for path in stage.everything() if path.endswith(".tmp")]
        assert list(temporary.iterdir()) == []
    # The next run is not disturbed by what is left, such as a file that was just being written, and takes it away.
    done = stage.run(*arguments)
    assert (done.ret, counts(done)) == (0, {"passed": 2})
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_a_killed_pytest_with_ranks(stage: Stage) -> None:
    stage.copy(HERE.parent / "support" / "rank_faults.py")
    options = ("--aorta-trials", "2", "--aorta-config", "script=no_fault.waits_for_a_file")
    running = stage.start("rank_faults.py::RankFaults", *options, env={"PYTEST_AORTA_GRACE": "60"})
    stage.wait_for_file("waits")
    running.kill()
    running.communicate(timeout=60)
    stage.wait_until_alone()
    assert stage.statuses() == {"RankFaults/trial_0.json": "ok"}


def test_a_killed_zygote(stage: Stage, held: Callable[[], psutil.Process]) -> None:
    running = stage.start("simple_workloads.py", "-k", "Held", "--aorta-trials", "3")
    trial = held()
    next(each for each in trial.parents() if "pytest_aorta.runtime.zygote_main" in " ".join(each.cmdline())).kill()
    done = stage.finish(running)
    assert (done.ret, counts(done)) == (1, {"errors": 1, "passed": 2})
    assert list(stage.statuses().values()) == ["infrastructure_failed", "ok", "ok"]
    failure = stage.trial("Held/trial_0.json")["failure"]
    assert failure["phase"] == "run"
    assert "the zygote" in failure["message"]
    assert "SIGKILL" in failure["message"]
    assert is_gone(trial.pid)
