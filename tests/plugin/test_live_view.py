"""The live view on a real terminal: what is on the screen while trials run, and that nothing of it stays."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stage import Stage
from support.terminal import Terminal, finish, start_pytest

from pytest_aorta.launch.child.attempt_files import attempt_folder
from pytest_aorta.plugin.compat import set_terminal_file
from pytest_aorta.plugin.live_view import last_step, wanted_file
from pytest_aorta.trials.lifecycle import StepCounter, step_file

#: Each trial reports a step, and goes on when there is a file ``go`` or one with its index; those of odd index fail.
HELD = """
import os
import time
from pathlib import Path

class Held:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        index = os.environ["AORTA_TRIAL_INDEX"]
        self.progress(3, 10)
        while not (Path("go").exists() or Path(f"go_{index}").exists()):
            time.sleep(0.01)
        return {"passed": int(index) % 2 == 0}
"""


@pytest.fixture
def held(stage: Stage) -> Stage:
    stage.write(held=HELD)
    return stage


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def go(stage: Stage, *indices: int) -> None:
    for name in [f"go_{index}" for index in indices] or ["go"]:
        Path(stage.path, name).touch()


def is_of_the_view(line: str) -> bool:
    return bool(re.search(r"^aorta: \d+/\d+ done|^  slot \d|^  gw\d|^  Held\[|^  local-none: ", line))


def test_it_shows_running_trials_and_failures_below_the_dots_and_leaves_nothing(
    held: Stage, terminal: Terminal
) -> None:
    process = start_pytest(held, terminal, "held.py", "--aorta-trials", "6", "--aorta-slots", "2")
    shown = terminal.wait_for("step 3/10", "step 3/10")
    assert shown[-4].startswith("held.py")
    assert re.fullmatch(r"aorta: 0/6 done, elapsed \d+:\d\d", shown[-3])
    assert re.fullmatch(r"  slot 0  Held\[local-none-0\]  \d+:\d\d  step 3/10", shown[-2])
    assert re.fullmatch(r"  slot 1  Held\[local-none-1\]  \d+:\d\d  step 3/10", shown[-1])
    go(held, 0, 1)
    shown = terminal.wait_for("local-none: 1 of 2 failed")
    assert "held.py .F" in shown
    assert any(line.startswith("aorta: 2/6 done, 1 failed, ") for line in shown)
    assert {line[:28] for line in shown if line.startswith("  slot")} == {
        f"  slot {slot}  Held[local-none-{index}]" for slot, index in _placed(shown)
    }
    go(held)
    left = finish(process, terminal)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert not [line for line in left if is_of_the_view(line)]
    (dots,) = [line for line in left if line.startswith("held.py ")]
    assert dots.split() == ["held.py", ".F.F.F", "[100%]"]
    assert left[-1].strip("= ").startswith("3 failed, 3 passed in")
    assert (terminal.screen.cursor.y, terminal.screen.cursor.x) == (len(terminal.lines()), 0)


def _placed(lines: list[str]) -> set[tuple[int, int]]:
    found = [re.match(r"  slot (\d)  Held\[local-none-(\d)\]", line) for line in lines]
    return {(int(match[1]), int(match[2])) for match in found if match}


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_of_it(held: Stage, terminal: Terminal) -> None:
    process = start_pytest(held, terminal, "held.py", "--aorta-trials", "3", "--aorta-slots", "2")
    terminal.wait_for("step 3/10")
    os.killpg(process.pid, signal.SIGINT)
    left = finish(process, terminal)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert any("! KeyboardInterrupt !" in line for line in left)
    assert not [line for line in left if is_of_the_view(line)]


@pytest.mark.parametrize(
    ("arguments", "environ", "shown"),
    [
        ((), {"TERM": "xterm"}, True),
        (("-v",), {"TERM": "xterm", "NO_COLOR": "1"}, True),
        (("--capture=sys",), {"TERM": "xterm"}, True),
        (("-q",), {"TERM": "xterm"}, False),
        (("-s",), {"TERM": "xterm"}, False),
        (("--capture=tee-sys",), {"TERM": "xterm"}, False),
        (("--pdb",), {"TERM": "xterm"}, False),
        (("--trace",), {"TERM": "xterm"}, False),
        (("-p", "no:debugging"), {"TERM": "xterm"}, True),
        ((), {"TERM": "dumb"}, False),
        ((), {}, False),
        ((), {"TERM": "xterm", "CI": "true"}, False),
        ((), {"TERM": "xterm", "CI": ""}, True),
    ],
)
def test_it_is_not_shown_where_it_would_disturb(
    pytester: pytest.Pytester,
    terminal: Terminal,
    arguments: tuple[str, ...],
    environ: dict[str, str],
    shown: bool,
) -> None:
    config = pytester.parseconfigure(*arguments)
    assert wanted_file(config, environ) is None  # no terminal
    with terminal.file() as file:
        set_terminal_file(config, file)
        assert wanted_file(config, environ) is (file if shown else None)


def test_the_last_step_is_that_of_the_trial_or_of_its_rank_0_in_the_last_attempt(tmp_path: Path) -> None:
    assert last_step(tmp_path) is None
    for attempt in (0, 1):
        folder = attempt_folder(tmp_path, attempt)
        folder.mkdir()
        StepCounter(step_file(folder, 0)).set(10 + attempt, 50)
        StepCounter(step_file(folder, 1)).set(9, 50)
    assert last_step(tmp_path) == (11, 50)
    StepCounter(step_file(tmp_path)).set(7, None)
    assert last_step(tmp_path) == (7, None)


@pytest.mark.slow
def test_under_xdist_the_controller_shows_it(held: Stage, terminal: Terminal) -> None:
    process = start_pytest(held, terminal, "held.py", "--aorta-trials", "4", "-n", "2")
    shown = terminal.wait_until(lambda lines: sum("step 3/10" in line and line[:4] == "  gw" for line in lines) == 2)
    assert [line[:5] for line in shown if "step 3/10" in line] == ["  gw0", "  gw1"]
    assert any(line.startswith("aorta: 0/4 done") for line in shown)
    go(held)
    left = finish(process, terminal)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert not [line for line in left if is_of_the_view(line)]
    assert any(re.fullmatch(r"[.F]{4} +\[100%\]", line) for line in left)
