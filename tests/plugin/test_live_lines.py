"""The lines of the live view, and that they come below pytest's and go without a trace."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, Group
from rich.text import Text
from support.terminal import Terminal

from pytest_aorta.plugin.live_view import LinesBelow, LiveState, RunningTrial, clock, live_lines


def a_run() -> LiveState:
    """At 100 s: two trials run in two slots."""
    state = LiveState(0.0, slots=2)
    cells = [("fsdp", "local-none"), ("fsdp", "local-tf32_off")]
    state.expect((f"item {number}", cells[number % 2]) for number in range(12))
    outcomes = ("failed", "ok", "timeout", "failed", "ok", "ok", "infrastructure")
    for number, outcome in enumerate(outcomes):
        state.finished(number, cells[number % 2], 20.0, outcome)  # type: ignore[arg-type]
        state.item_over(f"item {number}", ran=True)
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
    assert texts(a_run(), 80, 24) == [
        "aorta: 7/12 done, 3 failed, 1 infrastructure, eta 0:35, elapsed 1:40",
        "  slot 0  fsdp[local-none-4]      0:50",
        "  slot 1  fsdp[local-tf32_off-3]  0:10  step 20/50",
        "  local-none: 2 of 3 failed",
        "  local-tf32_off: 1 of 3 failed",
    ]


@pytest.mark.parametrize(
    ("height", "shown"),
    [
        (10, ["aorta", "slot 0", "slot 1", "local-none", "local-tf32_off"]),
        (8, ["aorta", "slot 0", "slot 1", "local-none"]),
        (6, ["aorta", "slot 0", "slot 1"]),
        (4, ["aorta", "and 2 more"]),
        (2, ["aorta"]),
        (1, []),
    ],
)
def test_half_of_the_terminal_stays_free(height: int, shown: list[str]) -> None:
    found = texts(a_run(), 80, height)
    assert len(found) == len(shown)
    assert all(line.lstrip().startswith(start) for line, start in zip(found, shown, strict=True))


def test_workloads_are_named_where_there_are_several() -> None:
    state = a_run()
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
    for line in found:
        assert line.isprintable()
        assert len(line) <= width


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (754, "12:34"), (3600, "1:00:00"), (90061, "25:01:01")]
)
def test_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


class Written:
    """A terminal, and what pytest writes to it above the lines ``below``."""

    def __init__(self, columns: int, lines: int) -> None:
        self.terminal = Terminal(columns, lines)
        self._file = self.terminal.file()
        self.below: list[str] = []
        self.file = LinesBelow(self._file, lambda width, height: [Text(line) for line in self.below], False)

    def show(self, *lines: str) -> None:
        self.below[:] = lines
        self.file.show()

    def write(self, text: str) -> None:
        self.file.write(text)
        self.file.flush()

    def close(self) -> None:
        self.file.close()
        self._file.close()


@pytest.fixture
def written() -> Iterator[Written]:
    written = Written(20, 6)
    yield written
    written.close()
    written.terminal.close()


def test_lines_come_below_what_is_written_and_change(written: Written) -> None:
    written.write("one\n..")
    written.show("first", "second")
    assert written.terminal.lines() == ["one", "..", "first", "second"]
    written.write(".")
    written.show("first again")
    assert written.terminal.lines() == ["one", "...", "first again"]
    written.write("F\ntwo\n.")
    assert written.terminal.lines() == ["one", "...F", "two", ".", "first again"]


def test_what_is_hidden_or_closed_is_gone(written: Written) -> None:
    written.write("..")
    written.show("first")
    written.file.hide()
    assert written.terminal.lines() == [".."]
    written.write("F")
    written.show("again")
    written.file.close()
    written.write("\nafter")
    assert written.terminal.lines() == ["..F", "after"]


#: What pytest writes; and lines that are shown below it.
WRITTEN = st.sampled_from([".", "F", "\n", "name ", "PASSED", "  [ 50%]\n", "=" * 11 + "\n", "a\nb\nc\n"])
SHOWN = st.lists(st.text("abc", min_size=1, max_size=11), max_size=3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(WRITTEN, SHOWN)))
def test_in_the_end_all_is_as_without_them(actions: list[str | list[str]]) -> None:
    with_lines, without = Written(24, 7), Terminal(24, 7)
    plain = without.file()
    column = 0
    for action in actions:
        if isinstance(action, str):
            column = len(action.rpartition("\n")[2]) + (0 if "\n" in action else column)
            if column > 24:  # pytest begins a new line before its own is full
                column, action = 0, "\n"
            with_lines.write(action)
            plain.write(action)
            plain.flush()
        else:
            with_lines.show(*action)
        with_lines.terminal.read()
        without.read()
    with_lines.close()
    assert with_lines.terminal.transcript() == without.transcript()
    plain.close()
    without.close()
    with_lines.terminal.close()
