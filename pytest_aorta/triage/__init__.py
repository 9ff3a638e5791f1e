"""What a run has shown: from the records of its trials to the table of verdicts.

Pure functions over records; nothing here imports pytest, starts a process or needs torch. In the order of imports:
``signatures``, ``facts`` of a trial, ``rates``, ``sequential`` and ``rounds`` for statistics, ``cells``, ``speed``,
``where``, ``judging``, ``verdicts``, ``columns`` with all that is said of a cell, and the formats: ``matrix``,
``report``, ``compare``, the terminal's table.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from pytest_aorta.settings import duration, number_of


@dataclass(frozen=True)
class Margin:
    """How much a failure rate may differ from that of the baseline and still be the same.

    ``share`` is one of the baseline's rate, infinite for no such limit; ``points`` is a difference of the two rates.
    """

    share: float = 0.5
    points: float = 0.1

    def of(self, base_rate: float) -> float:
        """The difference that is allowed at this failure rate of the baseline."""
        return min(self.points, self.share * base_rate)

    def __str__(self) -> str:
        share = f"{self.share:.12g}".removesuffix(".0") if math.isinf(self.share) else f"{100 * self.share:.12g}%"
        return ",".join([*[share] * math.isfinite(self.share), *[f"{self.points:.12g}"] * (self.points < 1)])


def margin(value: Any) -> Margin:
    """``50%``: of the baseline's rate; ``0.1``: a difference of rates; ``50%,0.1``: the smaller of both."""
    found = {"share": math.inf, "points": 1.0}
    words = [word.strip() for word in value.split(",")] if isinstance(value, str) else [value]
    for word in words:
        in_percent = isinstance(word, str) and word.endswith("%")
        number = number_of(word.removesuffix("%")) / 100 if in_percent else number_of(word)
        name = "share" if in_percent else "points"
        if not 0 < number < 1 or found[name] < 1:
            raise ValueError("a share of the baseline's rate such as 50%, a difference such as 0.1, or 50%,0.1")
        found[name] = number
    return Margin(**found)


@dataclass(frozen=True)
class Stop:
    """When a run ends early.

    Attributes:
        decided: whether the trials of a cell end with its verdict.
        failures: after how many failures the trials of a cell end.
        first_fix: whether all trials end with the first fix.
        equivalence: whether a cell goes on that is no cure, until it is known to be equal or worse.
        speed: whether a cell that does not fail is decided when its step times are.
        confirm: whether fresh trials have to confirm a fix first.
        seconds: after which no trial begins.
        power: whether a cell also ends when it has had the trials that show a cure in 90 %, at the rate seen.
    """

    decided: bool = False
    failures: int | None = None
    first_fix: bool = False
    equivalence: bool = False
    speed: bool = False
    confirm: bool = True
    seconds: float | None = None
    power: bool = False

    @property
    def ends_cells(self) -> bool:
        """Whether the trials of one cell may end before those of others."""
        return self.decided or self.failures is not None


#: Words for runs that end with their verdicts.
GOALS = frozenset({"decided", "first-fix", "equivalence", "speed"})

#: Each cell has a verdict.
DECIDED = Stop(decided=True)


def stop(value: str) -> Stop:
    words = [word.strip() for word in value.split(",")]
    goals = GOALS.intersection(words)
    counts = [word for word in words if word.startswith("failures=")]
    times = [word for word in words if word not in (*goals, *counts, "confirm=0")]
    seconds = duration(times[0]) if len(times) == 1 else None
    if (
        len(counts) > 1
        or len(times) > 1
        or len(set(words)) < len(words)
        or not all(re.fullmatch(r"failures=0*[1-9]\d*", word, re.ASCII) for word in counts)
        or ("confirm=0" in words and not goals)
        or (seconds is not None and not 0 < seconds < math.inf)
    ):
        raise ValueError(
            "decided, first-fix, equivalence, speed, failures=3, a duration such as 8h, 1h30m, 90s, or several: "
            "decided,8h; confirm=0 beside the first four"
        )
    return Stop(
        decided=bool(goals),
        failures=int(counts[0].removeprefix("failures=")) if counts else None,
        first_fix="first-fix" in words,
        equivalence="equivalence" in words,
        speed="speed" in words,
        confirm="confirm=0" not in words,
        seconds=seconds,
    )


#: What is no effect, unless a user says so: half of the baseline's failure rate, and at most 0.1.
MARGIN = Margin()

#: Changes of the step times that are none.
SPEED_MARGIN = 0.05


@dataclass(frozen=True)
class TriageSettings:
    """What a user may set of the verdicts. It is here because plans have it, and need none of the rest.

    Attributes:
        baseline: cell or mitigation set that others are compared with; ``None`` for the rule of ``choose_baselines``.
        margin: how much a failure rate may differ and still be the same.
        speed_margin: changes of the step times, as a share, that are none.
        sequential: whether the number of trials depends on what was seen of them.
        confirm: whether a cell that fails less needs fresh trials that say so again.
        speed: whether the step times are what is asked for, of cells that do not fail.
        screens: whether, of many cells, those end early that are hopeless.
        power: whether that holds for few cells as well: of ``--aorta-trials auto``, which asks for a cure.
        by_node: whether nodes are compared as well: of a sweep over them.
        signatures: rules of the user: names of ways to fail, each with a regular expression for the texts of a failure.
    """

    baseline: str | None = None
    margin: Margin = MARGIN
    speed_margin: float = SPEED_MARGIN
    sequential: bool = False
    confirm: bool = False
    speed: bool = False
    screens: bool = False
    power: bool = False
    by_node: bool = False
    signatures: tuple[tuple[str, str], ...] = ()
