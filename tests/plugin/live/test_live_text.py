"""The lines of the live view."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.plugin.live.state import LiveState, RunningTrial
from pytest_aorta.plugin.live.text import clock, live_lines


def a_run() -> LiveState:
    """At 100 s: two trials run in two slots, one of them twice as long as usual."""
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
    state.running[7].reached(10, 50, now=95.0)
    state.running[7].reached(20, 50, now=100.0)
    return state


def texts(width: int, height: int) -> list[str]:
    return [line.text for line in live_lines(a_run(), 100.0, width, height)]


def test_the_run_its_trials_and_the_cells_that_fail() -> None:
    assert texts(80, 24) == [
        "aorta: 7/12 done, 3 failed, 1 infrastructure, eta 0:38, elapsed 1:40",
        "  slot 0  fsdp[local-none-4]      0:50 slow",
        "  slot 1  fsdp[local-tf32_off-3]  0:10       step 20/50  eta 0:15",
        "  local-none: 2 of 3 failed",
        "  local-tf32_off: 1 of 3 failed",
    ]


def test_colours_say_what_to_look_at() -> None:
    colours = [line.colour for line in live_lines(a_run(), 100.0, 80, 24)]
    assert colours == ["red", "yellow", None, "red", "red"]


def test_a_narrow_terminal_shows_less_of_each() -> None:
    assert texts(40, 24) == [
        "aorta: 7/12 done, 3 failed, eta 0:38",
        "  slot 0  fsdp[local-none-4]  0:50 slow",
        "  slot 1  ...cal-tf32_off-3]  0:10",
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
    found = texts(80, height)
    assert len(found) == len(shown)
    assert all(line.lstrip().startswith(start) for line, start in zip(found, shown, strict=True))


def test_workloads_are_named_where_there_are_several() -> None:
    state = a_run()
    state.finished("other", ("gemm", "local-none"), 1.0, "failed")
    assert "  gemm local-none: 1 of 1 failed" in [line.text for line in live_lines(state, 100.0, 80, 24)]


def test_slot_10_comes_after_slot_9() -> None:
    state = LiveState(0.0, slots=11)
    for number in reversed(range(11)):
        state.running[number] = RunningTrial(f"trial {number}", None, f"slot {number}", 0.0)
    found = [line.text.split()[1] for line in live_lines(state, 1.0, 80, 40)[1:]]
    assert found == [str(number) for number in range(11)]


@given(st.text(), st.text(), st.integers(1, 200), st.integers(1, 60))
def test_no_name_does_anything_to_the_terminal_and_no_line_is_too_long(
    name: str, place: str, width: int, height: int
) -> None:
    state = a_run()
    state.running["hostile"] = RunningTrial(f"\x1b[2J\n{name}", ("a\rb", name), place, 0.0)
    state.finished("hostile too", ("a\rb", f"\x1b]0;{name}"), 1.0, "failed")
    for line in live_lines(state, 100.0, width, height):
        assert line.text.isprintable()
        assert len(line.text) < width


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (754, "12:34"), (3600, "1:00:00"), (90061, "25:01:01")]
)
def test_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
