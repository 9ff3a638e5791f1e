"""The lines of the live view: of a state to texts, without a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_aorta.common.texts import printable
from pytest_aorta.triage.facts import COUNTED, OUTCOMES

if TYPE_CHECKING:
    from pytest_aorta.plugin.live.state import LiveState, RunningTrial

#: Shortest part of a name that still says something.
_LEAST_NAME = 12

#: Of what is said of a slot, worker or host: the specification of a host may be long.
_MOST_PLACE = 20

#: Lines of the view at most, and of the terminal, one half.
_MOST_LINES = 20


@dataclass(frozen=True)
class LiveLine:
    """A line that is shorter than the terminal is wide, and its colour."""

    text: str
    colour: Literal["red", "yellow"] | None = None


def live_lines(state: LiveState, now: float, width: int, height: int) -> list[LiveLine]:
    """The run, its running trials, and as there is room the cells with failures, those that fail most often first.

    Args:
        state: of the run.
        now: of the state's clock.
        width: columns of the terminal.
        height: its lines; half of them stay free.
    """
    room = min(_MOST_LINES, height // 2)
    width -= 1  # a terminal may go to the next line after the last column
    if room < 1 or width < 1:
        return []
    trials = sorted(state.running.values(), key=lambda trial: (_natural(trial.place), trial.begun))
    shown = trials if len(trials) < room else trials[: max(0, room - 2)]
    lines = [_run_line(state, now, width), *_trial_lines(state, shown, now, width)]
    if len(shown) < len(trials):
        lines.append(LiveLine(f"  and {len(trials) - len(shown)} more"))
    lines = (lines + _cell_lines(state))[:room]
    return [LiveLine(line.text[:width], line.colour) for line in lines]


def _run_line(state: LiveState, now: float, width: int) -> LiveLine:
    failed = sum(pace.failed for pace in state.cells.values())
    others = {
        name: sum(pace.outcomes[name] for pace in state.cells.values()) for name in OUTCOMES if name not in COUNTED
    }
    left = state.left(now)
    parts = [
        f"{state.done}/{max(state.done, state.total)} done",
        f"{failed} failed" if failed else "",
        *(f"{number} {name}" for name, number in others.items() if number),
        "" if left is None else f"eta {clock(left)}",
        f"elapsed {clock(now - state.begun)}",
    ]
    text = "aorta: "
    for part in filter(None, parts):
        separator = "" if text.endswith(": ") else ", "
        if len(text + separator + part) <= width:
            text += separator + part
    return LiveLine(text, "red" if failed else None)


def _trial_lines(state: LiveState, trials: Sequence[RunningTrial], now: float, width: int) -> list[LiveLine]:
    """One line each: place, name, elapsed, step, eta; without the eta or the step where names would be too short."""
    if not trials:
        return []
    slow = [state.is_slow(trial, now) for trial in trials]
    elapsed = [clock(now - trial.begun) + (" slow" if late else "") for trial, late in zip(trials, slow, strict=True)]
    lefts = [state.left_of(trial, now) for trial in trials]
    eta = ["" if left is None else f"eta {clock(left)}" for left in lefts]
    columns = [elapsed, list(map(_step_text, trials)), eta]
    places = [_plain(trial.place)[:_MOST_PLACE] for trial in trials]
    names = [_plain(trial.name) for trial in trials]
    wanted = min(_LEAST_NAME, max(map(len, names)))
    while (room := width - 2 - _width(places) - sum(map(_width, columns))) < wanted and len(columns) > 1:
        columns.pop()
    if room < wanted:
        places = [""] * len(trials)
        room = width - 2 - sum(map(_width, columns))
    names = [_end_of(name, max(0, room)) for name in names]
    rows = zip(_aligned(places), _aligned(names), *map(_aligned, columns), strict=True)
    texts = ["  " + "".join(row).rstrip() for row in rows]
    return [LiveLine(text, "yellow" if late else None) for text, late in zip(texts, slow, strict=True)]


def _cell_lines(state: LiveState) -> list[LiveLine]:
    """The cells with failures; their workload is named where there are several."""
    failing = [(name, pace) for name, pace in state.cells.items() if pace.failed]
    several = len({workload for workload, _ in state.cells}) > 1
    failing.sort(key=lambda found: found[1].failed / found[1].counted, reverse=True)
    return [
        LiveLine(
            f"  {_plain(f'{workload} {cell}' if several else cell)}: {pace.failed} of {pace.counted} failed",
            "red",
        )
        for (workload, cell), pace in failing
    ]


def _step_text(trial: RunningTrial) -> str:
    if trial.step is None:
        return ""
    return f"step {trial.step}" + ("" if trial.total is None else f"/{trial.total}")


def _width(column: Sequence[str]) -> int:
    """Of a column, with the space that follows it; one without texts is not there."""
    longest = max(map(len, column))
    return longest + 2 if longest else 0


def _aligned(column: Sequence[str]) -> list[str]:
    return [text.ljust(_width(column)) for text in column]


def _end_of(name: str, room: int) -> str:
    """The end of a name that is too long: there, names of trials differ."""
    return name if len(name) <= room else f"...{name[len(name) - room + 3 :]}" if room > 3 else name[:room]


def _plain(text: str) -> str:
    return " ".join(printable(text).split())


def _natural(place: str) -> tuple[str, int, str]:
    """``slot 10`` comes after ``slot 9``."""
    words = place.rstrip("0123456789")
    return words, int(place[len(words) :] or 0), place


def clock(seconds: float) -> str:
    """``0:07``, ``12:30``, ``3:00:00``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
