"""Paired rounds of measurements, and the ratios between them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.quiet import Quiet


@dataclass(frozen=True)
class Subject:
    """Something that takes time.

    Attributes:
        title: what the table calls it.
        measure: one measurement: durations in seconds of one or more equal units.
    """

    title: str
    measure: Callable[[], Sequence[float]]


@dataclass(frozen=True)
class Comparison:
    """A ratio of two subjects, with what is expected of it.

    Attributes:
        title: what the ratio says.
        over: subject in the numerator.
        under: subject in the denominator.
        at_most: largest ratio that is expected, or ``None``.
        at_least: smallest ratio that is expected, or ``None``.
    """

    title: str
    over: str
    under: str
    at_most: float | None = None
    at_least: float | None = None

    def expectation(self) -> str:
        """For the table; nothing, when nothing is expected."""
        if self.at_most is None and self.at_least is None:
            return ""
        return f"<= {self.at_most:g}" if self.at_most is not None else f">= {self.at_least:g}"

    def met_by(self, ratio: float) -> bool:
        """Whether a ratio is as expected."""
        return (self.at_most is None or ratio <= self.at_most) and (self.at_least is None or ratio >= self.at_least)


@dataclass(frozen=True)
class Spread:
    """Median and extremes of what the rounds gave."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def plain(self) -> dict[str, float]:
        return {"median": self.median, "min": self.least, "max": self.most}


class Rounds:
    """The medians of every subject, round by round."""

    def __init__(self, subjects: Mapping[str, Subject], quiet: Quiet) -> None:
        self.subjects = subjects
        self._quiet = quiet
        self.seconds: dict[str, list[float]] = {key: [] for key in subjects}

    def add(self) -> None:
        """Measure every subject once, every other round in reverse, so that a drift of the host cancels out."""
        keys = list(self.subjects)
        done = len(self.seconds[keys[0]])
        for key in keys if done % 2 == 0 else reversed(keys):
            self.seconds[key].append(statistics.median(self._quiet(self.subjects[key].measure)))

    def ratio(self, comparison: Comparison) -> Spread:
        """Of the ratios within each round."""
        pairs = zip(self.seconds[comparison.over], self.seconds[comparison.under], strict=True)
        return Spread.of([over / under for over, under in pairs])

    def plain(self, comparisons: Sequence[Comparison]) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {
            "subjects": {
                key: {"title": subject.title, "seconds": self.seconds[key], **Spread.of(self.seconds[key]).plain()}
                for key, subject in self.subjects.items()
            },
            "ratios": [
                {
                    "title": comparison.title,
                    "over": comparison.over,
                    "under": comparison.under,
                    "expected": comparison.expectation(),
                    "met": comparison.met_by(self.ratio(comparison).median),
                    **self.ratio(comparison).plain(),
                }
                for comparison in comparisons
            ],
        }

    def lines(self, comparisons: Sequence[Comparison]) -> list[str]:
        """The two tables."""
        rows: list[tuple[str, ...]] = [("what", "median", "min", "max")]
        for key, subject in self.subjects.items():
            spread = Spread.of(self.seconds[key])
            rows.append((subject.title, *(duration(value) for value in spread.plain().values())))
        ratios: list[tuple[str, ...]] = [("ratio", "median", "min", "max", "expected", "")]
        for comparison in comparisons:
            spread = self.ratio(comparison)
            numbers = (f"{value:.2f}" for value in spread.plain().values())
            expectation = comparison.expectation()
            verdict = "" if not expectation else "met" if comparison.met_by(spread.median) else "MISSED"
            ratios.append((comparison.title, *numbers, expectation, verdict))
        return [*table(rows), "", *table(ratios)]


def duration(seconds: float) -> str:
    """For people."""
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns, the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
