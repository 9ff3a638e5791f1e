"""The live view: what it knows of a run, what it shows below pytest's lines, and that nothing of it stays."""

from __future__ import annotations

import io
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, Group
from rich.text import Text
from support.stage import Stage
from support.terminal import Terminal, finish, start_pytest

from pytest_aorta.launch.child.rank_files import attempt_folder
from pytest_aorta.plugin.compat import set_terminal_file
from pytest_aorta.plugin.live_view import (
    LinesBelow,
    LiveState,
    RunningTrial,
    last_step,
    live_lines,
    wanted_file,
)
from pytest_aorta.plugin.run import CellName
from pytest_aorta.triage.facts import Outcome
from pytest_aorta.trials.steps import StepCounter, step_file

NONE, OMP = ("gemm", "local-none"), ("gemm", "local-omp_1")


def expecting(*cells: CellName | None, slots: int = 1) -> LiveState:
    """A run that began at 0, with one item for each cell: item 0, item 1, ..."""
    state = LiveState(0.0, slots)
    state.expect((f"item {number}", cell) for number, cell in enumerate(cells))
    return state


def end(state: LiveState, number: int, cell: CellName, seconds: float, outcome: Outcome = "ok") -> None:
    state.finished(number, cell, seconds, outcome)
    state.item_over(f"item {number}", ran=True)


def test_a_run_takes_the_median_of_its_cell_for_each_trial_to_come() -> None:
    state = expecting(NONE, NONE, NONE, NONE, OMP, OMP)
    end(state, 0, NONE, 10.0)
    assert state.left(now=10.0) == 50.0  # a cell without a finished trial takes as long as the others
    for number, seconds in ((1, 100.0), (2, 12.0)):
        end(state, number, NONE, seconds)
    end(state, 4, OMP, 3.0)
    assert (state.done, state.total) == (4, 6)
    assert state.left(now=120.0) == 12.0 + 3.0


# Its lines


def a_run() -> LiveState:
    """At 100 s: two trials run in two slots."""
    state = LiveState(0.0, slots=2)
    cells = [("fsdp", "local-none"), ("fsdp", "local-tf32_off")]
    state.expect((f"item {number}", cells[number % 2]) for number in range(12))
    outcomes: list[Outcome] = ["failed", "ok", "timeout", "failed", "ok", "ok", "infrastructure"]
    for number, outcome in enumerate(outcomes):
        end(state, number, cells[number % 2], 20.0, outcome)
    for number, begun in ((7, 90.0), (8, 50.0)):
        name = f"fsdp[{cells[number % 2][1]}-{number // 2}]"
        state.running[number] = RunningTrial(name, cells[number % 2], f"slot {number % 2}", begun)
    state.running[7].step, state.running[7].total = 20, 50
    return state


def texts(state: LiveState, width: int, height: int, now: float = 100.0) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as captured:
        console.print(Group(*live_lines(state, now, width, height)))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_the_run_its_trials_and_the_cells_that_fail() -> None:
    state = a_run()
    assert texts(state, 80, 24) == [
        "aorta: 7/12 done, 3 failed, 1 infrastructure, eta 0:35, elapsed 1:40",
        "  slot 0  fsdp[local-none-4]      0:50",
        "  slot 1  fsdp[local-tf32_off-3]  0:10  step 20/50",
        "  local-none: 2 of 3 failed",
        "  local-tf32_off: 1 of 3 failed",
    ]
    # Half of the terminal stays free.
    assert texts(state, 80, 4)[1:] == ["  and 2 more"]
    # Workloads are named where there are several.
    state.finished("other", ("gemm", "local-none"), 1.0, "failed")
    assert "  gemm local-none: 1 of 1 failed" in texts(state, 80, 24)


@given(st.text(), st.text(), st.integers(1, 200), st.integers(1, 60))
def test_no_name_does_anything_to_the_terminal_and_no_line_is_too_long(
    name: str, place: str, width: int, height: int
) -> None:
    state = a_run()
    state.running["hostile"] = RunningTrial(f"\x1b[2J\n{name}", ("a\rb", name), place, 0.0)
    state.finished("hostile too", ("a\rb", f"\x1b]0;{name}"), 1.0, "failed")
    found = texts(state, width, height)
    assert len(found) <= height // 2
    assert all(line.isprintable() and len(line) <= width for line in found)


#: What pytest writes; and lines that are shown below it.
WRITTEN = st.sampled_from([".", "F", "\n", "name ", "PASSED", "  [ 50%]\n", "=" * 11 + "\n", "a\nb\nc\n"])
SHOWN = st.lists(st.text("abc", min_size=1, max_size=11), max_size=3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(WRITTEN, SHOWN)))
def test_in_the_end_all_is_as_without_them(actions: list[str | list[str]]) -> None:
    terminal, without = Terminal(24, 7), Terminal(24, 7)
    below: list[str] = []
    with terminal.file() as file, without.file() as plain:
        lines = LinesBelow(file, lambda width, height: [Text(line) for line in below], False)
        column = 0
        for action in actions:
            if isinstance(action, str):
                column = len(action.rpartition("\n")[2]) + (0 if "\n" in action else column)
                if column > 24:  # pytest begins a new line before its own is full
                    column, action = 0, "\n"
                for each in (lines, plain):
                    each.write(action)
                    each.flush()
            else:
                below = action
                lines.show()
            terminal.read()
            without.read()
        lines.close()
        assert terminal.transcript() == without.transcript()
    terminal.close()
    without.close()


# On a real terminal

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


def of_the_view(lines: list[str]) -> list[str]:
    return [
        line for line in lines if re.search(r"^aorta: \d+/\d+ done|^  (slot |gw)\d|^  Held\[|^  local-none: ", line)
    ]


def test_it_shows_running_trials_and_failures_below_the_dots_and_leaves_nothing(
    held: Stage, terminal: Terminal
) -> None:
    process = start_pytest(held, terminal, "held.py", "--aorta-trials", "6", "--aorta-slots", "2")
    shown = terminal.wait_for("step 3/10", "step 3/10")
    assert shown[-4].startswith("held.py")
    assert re.fullmatch(r"aorta: 0/6 done, elapsed \d+:\d\d", shown[-3])
    for slot in (0, 1):
        assert re.fullmatch(rf"  slot {slot}  Held\[local-none-{slot}\]  \d+:\d\d  step 3/10", shown[slot - 2])
    for index in (0, 1):
        Path(held.path, f"go_{index}").touch()
    shown = terminal.wait_for("local-none: 1 of 2 failed")
    assert "held.py .F" in shown
    assert any(line.startswith("aorta: 2/6 done, 1 failed, ") for line in shown)
    Path(held.path, "go").touch()
    left = finish(process, terminal)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert of_the_view(left) == []
    (dots,) = [line for line in left if line.startswith("held.py ")]
    assert dots.split() == ["held.py", ".F.F.F", "[100%]"]
    assert left[-1].strip("= ").startswith("3 failed, 3 passed")
    assert (terminal.screen.cursor.y, terminal.screen.cursor.x) == (len(terminal.lines()), 0)


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_of_it(held: Stage, terminal: Terminal) -> None:
    process = start_pytest(held, terminal, "held.py", "--aorta-trials", "3", "--aorta-slots", "2")
    terminal.wait_for("step 3/10")
    os.killpg(process.pid, signal.SIGINT)
    left = finish(process, terminal)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert any("! KeyboardInterrupt !" in line for line in left)
    assert of_the_view(left) == []


@pytest.mark.slow
@pytest.mark.long
def test_under_xdist_the_controller_shows_it(held: Stage, terminal: Terminal) -> None:
    process = start_pytest(held, terminal, "held.py", "--aorta-trials", "4", "-n", "2")
    shown = terminal.wait_until(lambda lines: sum("step 3/10" in line and line[:4] == "  gw" for line in lines) == 2)
    assert [line[:5] for line in shown if "step 3/10" in line] == ["  gw0", "  gw1"]
    assert any(line.startswith("aorta: 0/4 done") for line in shown)
    Path(held.path, "go").touch()
    left = finish(process, terminal)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert of_the_view(left) == []
    assert any(re.fullmatch(r"[.F]{4} +\[100%\]", line) for line in left)


@pytest.mark.parametrize(
    ("arguments", "environ", "shown"),
    [
        ((), {"TERM": "xterm"}, True),
        (("-v",), {"TERM": "xterm", "NO_COLOR": "1"}, True),
        (("-q",), {"TERM": "xterm"}, False),
        (("-s",), {"TERM": "xterm"}, False),
        (("--capture=tee-sys",), {"TERM": "xterm"}, False),
        (("--pdb",), {"TERM": "xterm"}, False),
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
