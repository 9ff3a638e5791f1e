"""From the records of trials to the table of verdicts.

Pure functions over records: nothing here imports pytest, starts a process or needs torch. Modules in the order of their
imports: ``signatures`` and ``facts`` of a trial; the statistics in ``rates``, ``sequential`` and ``rounds``; ``cells``,
``speed``, ``where``, ``judging`` and ``verdicts``; ``columns``, which says everything about a cell; and the formats
``matrix``, ``report`` and ``compare``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_aorta.settings import duration, number_of


@dataclass(frozen=True)
class Margin:
    """The largest difference between two failure rates that still counts as none.

    ``share``: as a share of the baseline's rate; infinite for no such limit. ``points``: as a difference of the rates.
    """

    share: float = 0.5
    points: float = 0.1

    def __str__(self) -> str:
        share = f"{self.share:.12g}".removesuffix(".0") if math.isinf(self.share) else f"{100 * self.share:.12g}%"
        return ",".join([*[share] * math.isfinite(self.share), *[f"{self.points:.12g}"] * (self.points < 1)])


def margin(value: Any) -> Margin:
    """Parse ``50%`` (of the baseline's rate), ``0.1`` (a difference of rates) or ``50%,0.1`` (the smaller of both)."""
    parts = {"share": math.inf, "points": 1.0}
    words = [word.strip() for word in value.split(",")] if isinstance(value, str) else [value]
    for word in words:
        in_percent = isinstance(word, str) and word.endswith("%")
        number = number_of(word.removesuffix("%")) / 100 if in_percent else number_of(word)
        name = "share" if in_percent else "points"
        if not 0 < number < 1 or parts[name] < 1:
            raise ValueError("a share of the baseline's rate such as 50%, a difference such as 0.1, or 50%,0.1")
        parts[name] = number
    return Margin(**parts)


@dataclass(frozen=True)
class Stop:
    """When a run ends early: ``--aorta-stop``.

    Attributes:
        decided: a cell ends when it has a verdict.
        failures: a cell ends after this many failures.
        first_fix: all cells end with the first fix.
        equivalence: a cell without a cure goes on until its rate is known to be equal or worse.
        speed: a cell without failures ends when its speed is known.
        confirm: fresh trials have to confirm a fix first.
        seconds: no trial begins after this time.
        power: a cell also ends when it has had enough trials to show a cure in 90 %, at the rate seen.
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


#: Words of ``--aorta-stop`` that end a run by its verdicts.
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


#: Default: half of the baseline's failure rate, but at most 0.1.
MARGIN = Margin()

#: Smaller changes of step times are ignored, as a share.
SPEED_MARGIN = 0.05


@dataclass(frozen=True)
class TriageSettings:
    """The user's settings for verdicts. They are here because plans hold them and need nothing else of the triage.

    Attributes:
        baseline: cell or mitigation set that others are compared with; ``None`` for the rule of ``choose_baselines``.
        margin: how much a failure rate may differ and still be the same.
        speed_margin: ignore smaller changes of step times, as a share.
        sequential: the number of trials depends on their results, so only tests that hold at any time are valid.
        confirm: a cell that fails less has to do so again in fresh trials.
        speed: of cells without failures, the run asks for the step times.
        screens: among many cells, hopeless ones end early.
        power: hopeless cells also end early among few cells (``--aorta-trials auto``).
        by_node: nodes are compared as well, in a sweep over them.
        signatures: the user's names of ways to fail, each with a regular expression for the texts of a failure.
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


@dataclass(frozen=True)
class ReportSection:
    """A section of the report: its title, and paragraphs of plain text."""

    title: str
    paragraphs: Sequence[str]
