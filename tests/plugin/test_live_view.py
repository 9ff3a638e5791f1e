"""The live view: what it knows of a run, what it shows below pytest's lines, and that nothing of it stays."""

from __future__ import annotations

import io
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console, Group
from rich.text import Text
from support.stage import Stage
from support.terminal import Terminal, finish, start_pytest

from pytest_aorta.launch.child.rank_files import attempt_folder
from pytest_aorta.plugin.compat import set_terminal_file
from pytest_aorta.plugin.live_view import LinesBelow, TrialLines, last_step, wanted_file
from pytest_aorta.triage.facts import Outcome
from pytest_aorta.trials.steps import StepCounter, step_file

# Its lines

CELLS = [("fsdp", "local-none"), ("fsdp", "local-tf32_off")]


@pytest.fixture
def a_run(tmp_path: Path) -> TrialLines:
    """Twelve trials, of which seven have ended and two run."""
    lines = TrialLines()
    lines.expect(f"item {number}" for number in range(12))
    outcomes: list[Outcome] = ["failed", "ok", "timeout", "failed", "ok", "ok", "infrastructure"]
    for number, outcome in enumerate(outcomes):
        lines.finish(number, CELLS[number % 2], outcome)
        lines.item_over(f"item {number}", ran=True)
    for number in (7, 8):
        folder = tmp_path / str(number)
        folder.mkdir()
        lines.add(number, f"fsdp[{CELLS[number % 2][1]}-{number // 2}]", f"slot {number % 2}", folder, lambda: False)
    StepCounter(step_file(tmp_path / "7")).set(20, 50)
    return lines


def texts(lines: TrialLines, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as captured:
        console.print(Group(*lines.draw(height)))
    return [re.sub(r"\d+:\d\d:\d\d", "TIME", line).rstrip() for line in captured.get().splitlines()]


def test_the_run_its_trials_and_the_cells_that_fail(a_run: TrialLines) -> None:
    assert texts(a_run, 80, 24) == [
        "aorta: 7/12 done, 3 failed, 1 infrastructure eta TIME elapsed TIME",
        "  slot 0  fsdp[local-none-4]      TIME",
        "  slot 1  fsdp[local-tf32_off-3]  TIME  step 20/50",
        "  fsdp local-none: 2 of 3 failed",
        "  fsdp local-tf32_off: 1 of 3 failed",
    ]
    # Half of the terminal stays free.
    assert texts(a_run, 80, 4)[1:] == ["  and 2 more"]
    # An item that was skipped has no trial; a trial that is over runs no more.
    a_run.item_over("item 11", ran=False)
    a_run.add(8, "fsdp[local-none-4]", "slot 0", Path("nowhere"), lambda: True)
    a_run.draw(24)
    assert texts(a_run, 80, 24)[0].startswith("aorta: 7/11 done")
    assert texts(a_run, 80, 24)[1].startswith("  slot 1 ")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(), st.text(), st.integers(1, 200), st.integers(1, 60))
def test_no_name_does_anything_to_the_terminal_and_no_line_is_too_long(
    a_run: TrialLines, name: str, place: str, width: int, height: int
) -> None:
    a_run.add("hostile", f"\x1b[2J\n{name}", place, Path("nowhere"), lambda: False)
    a_run.finish("hostile too", ("a\rb", f"\x1b]0;{name}"), "failed")
    drawn = texts(a_run, width, height)
    assert len(drawn) <= height // 2
    assert all(line.isprintable() and len(line) <= width for line in drawn)


#: What pytest writes; and lines that are shown below it.
WRITTEN = st.sampled_from([".", "F", "\n", "name ", "PASSED", "  [ 50%]\n", "=" * 11 + "\n", "a\nb\nc\n"])
SHOWN = st.lists(st.text("abc", min_size=1, max_size=11), max_size=3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(WRITTEN, SHOWN)))
def test_in_the_end_all_is_as_without_them(actions: list[str | list[str]]) -> None:
    terminal, without = Terminal(24, 7), Terminal(24, 7)
    below: list[str] = []
    with terminal.file() as file, without.file() as plain:
        lines = LinesBelow(file, lambda height: [Text(line) for line in below], False)
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
        line
        for line in lines
        if re.search(r"^aorta: \d+/\d+ done|^  (slot |gw)\d|^  Held\[|^  Held local-none: ", line)
    ]


def test_it_shows_running_trials_and_failures_below_the_dots_and_leaves_nothing(
    held: Stage, terminal: Terminal
) -> None:
    process = start_pytest(held, terminal, "held.py", "--aorta-trials", "6", "--aorta-slots", "2")
    shown = terminal.wait_for("step 3/10", "step 3/10")
    assert shown[-4].startswith("held.py")
    assert re.fullmatch(r"aorta: 0/6 done eta -:--:-- elapsed \d:\d\d:\d\d", shown[-3])
    for slot in (0, 1):
        assert re.fullmatch(rf"  slot {slot}  Held\[local-none-{slot}\]  \d:\d\d:\d\d  step 3/10", shown[slot - 2])
    for index in (0, 1):
        Path(held.path, f"go_{index}").touch()
    shown = terminal.wait_for("Held local-none: 1 of 2 failed")
    assert "held.py .F" in shown
    assert any(line.startswith("aorta: 2/6 done, 1 failed eta ") for line in shown)
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
