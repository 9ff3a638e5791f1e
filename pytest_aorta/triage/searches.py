"""What searches say: their tables for terminal, Markdown and report, and their files in a results directory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from pytest_aorta.triage.matrix import escape_markdown, pipe_table


@dataclass(frozen=True)
class SearchRow:
    """A row of the table of a search: its name and what else is said of it, and how often its trials have failed."""

    cells: tuple[str, ...]
    failures: int = 0
    trials: int = 0
    is_found: bool = False


@dataclass(frozen=True)
class SearchReport:
    """What a search says.

    Attributes:
        is_found: whether it has succeeded.
        sentence: what it found.
        head: of the columns.
        notes: lines below the table.
        at: when it was said, in UTC; empty if that is not known.
    """

    is_found: bool
    sentence: str
    head: tuple[str, ...]
    rows: tuple[SearchRow, ...]
    notes: tuple[str, ...] = ()
    at: str = ""

    def so_far(self) -> SearchReport:
        """What it says after an interruption."""
        return replace(self, sentence=f"interrupted; --aorta-resume goes on. So far: {self.sentence}")

    def lines(self) -> list[str]:
        """The sentence, the table in columns, and the notes."""
        table = [self.head, *(row.cells for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        # The first column and the last one are words, those between them are numbers.
        aligned = [
            "  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:-1], widths[1:-1]), row[-1])).rstrip()
            for row in table
        ]
        return [self.sentence, *aligned, *self.notes]

    def markdown(self, title: str) -> str:
        rules = ":---", *["---:"] * (len(self.head) - 2), ":---"
        table = pipe_table(self.head, rules, (row.cells for row in self.rows))
        notes = "".join(f"\n{escape_markdown(note)}\n" for note in self.notes)
        return f"# {escape_markdown(title)}\n\n{escape_markdown(self.sentence)}\n\n{table}\n{notes}"


def searches_in(folder: Path) -> Iterator[tuple[str, SearchReport]]:
    """What they are called, and what they say; files of that name by others are passed over."""
    for path in sorted(folder.glob("*.json")):
        if not re.match("(amplify|bisect|explain|minimize)-", path.name):
            continue
        try:
            said = json.loads(path.read_bytes())
            report = TypeAdapter(SearchReport).validate_python(said["report"])
            if all(len(row.cells) == len(report.head) for row in report.rows):
                yield f"{said['search']} {said['workload']}", report
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue
