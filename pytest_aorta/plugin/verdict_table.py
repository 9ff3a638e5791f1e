"""The table at the end of a run: cells with their verdicts, in the width of the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_aorta.common.texts import one_line
from pytest_aorta.plugin.compat import terminal_width
from pytest_aorta.triage.columns import COLUMNS, MEANINGS, Column, conclusions, counted
from pytest_aorta.triage.facts import CellKey, Outcome
from pytest_aorta.triage.matrix import MATRIX_MD
from pytest_aorta.triage.verdicts import Row, Table, VerdictKind

#: Cells that are shown one by one: of more, those that say most.
MOST_CELLS = 40

#: Of more cells, a way to fail is only shown where it is new.
_FEW_CELLS = 12

#: Ways to fail that are shown of a cell.
_MOST_WAYS = 4

#: Room for names that every layout leaves.
_NAME = 16

_GAP = "  "

_COLOURS: Mapping[VerdictKind, str] = {
    "fixes": "green",
    "reduces": "yellow",
    "undecided": "yellow",
    "worse": "red",
    "error": "red",
    "did not run": "red",
    "no effect": "light",
    "baseline": "light",
    "second baseline": "light",
}

_UNCOUNTED: tuple[Outcome, ...] = ("infrastructure", "did not run")


class Piece(NamedTuple):
    """A part of a line; ``colour`` is a name that pytest's terminal writer knows, or empty."""

    text: str
    colour: str = ""


Line = tuple[Piece, ...]


@dataclass(frozen=True)
class _Layout:
    """The columns beside the names, and whether their verdicts are the long ones."""

    columns: tuple[Column[Row], ...]
    long_verdicts: bool = True

    def texts(self, row: Row) -> list[str]:
        return [
            row.verdict.kind if column.key == "verdict" and not self.long_verdicts else column.short_text_of(row)
            for column in self.columns
        ]

    def widths(self, rows: Sequence[Row]) -> list[int]:
        lines = zip(*([column.title.lower() for column in self.columns], *map(self.texts, rows)), strict=True)
        return [max(map(terminal_width, texts)) for texts in lines]

    def room(self, rows: Sequence[Row], width: int) -> int:
        """What is left for the names."""
        return width - sum(len(_GAP) + each for each in self.widths(rows))

    def shows(self, key: str) -> bool:
        return any(column.key == key for column in self.columns)


def table_lines(table: Table, width: int) -> list[Line]:
    """The table, what belongs to each cell below it, and what it comes to; no line is wider than ``width``."""
    rows = [row for row in table.rows if row.cell.total]
    shown = _shown(rows)
    names = _names(rows)
    layout = _layout(shown, names, width)
    widths = layout.widths(shown)
    longest = max((terminal_width(names[row.cell.key][-1]) for row in shown), default=0)
    name_width = min(layout.room(shown, width), max(longest, len("cell")))
    lines = [_row("cell", [column.title.lower() for column in layout.columns], name_width, layout, widths)]
    heading: tuple[str, ...] = ()
    seen: set[str] = set()
    for row in shown:
        *above, name = names[row.cell.key]
        if above and tuple(above) != heading:
            lines.append((Piece(shortened(above[0], width), "bold"),))
        heading = tuple(above)
        if terminal_width(name) > name_width:
            lines.append((Piece(shortened(name, width)),))
            name = ""
        lines.append(_row(name, layout.texts(row), name_width, layout, widths, _COLOURS[row.verdict.kind]))
        for note in _notes(row, layout, seen if len(shown) > _FEW_CELLS else set()):
            lines.append((Piece(shortened(f"    {note.text}", width), note.colour),))
    keys = {row.cell.key for row in shown}
    if folded := Counter(row.verdict.kind for row in rows if row.cell.key not in keys):
        listing = ", ".join(f"{number} {kind}" for kind, number in folded.items())
        text = f"and {counted(folded.total(), 'more cell')}, {listing}: see {MATRIX_MD} in the results"
        lines += [(Piece(line),) for line in _wrapped(text, width)]
    for sentence in conclusions(table):
        lines += [(Piece(line, "bold"),) for line in _wrapped(sentence, width)]
    if any(row.comparison and row.comparison.method == "sequential" for row in rows):
        lines.append((Piece("p and verdicts allow for a number of trials that was not fixed before", "light"),))
    return lines


def shortened(text: str, width: int) -> str:
    """A text on one line that fits; of a longer one, the middle is left out."""
    indent = " " * (len(text) - len(text.lstrip(" ")))
    text = indent + one_line(text)
    if terminal_width(text) <= width:
        return text
    left, right = 0, len(text)
    room = width - 3
    while room > 0:
        # One character from the left, then one from the right.
        take_left = left <= len(text) - right
        char = text[left] if take_left else text[right - 1]
        room -= terminal_width(char)
        if room < 0:
            break
        left, right = (left + 1, right) if take_left else (left, right - 1)
    return f"{text[:left]}...{text[right:]}"


def _shown(rows: Sequence[Row]) -> list[Row]:
    if len(rows) <= MOST_CELLS:
        return list(rows)
    importance = list(MEANINGS)
    chosen = sorted(rows, key=lambda row: importance.index(row.verdict.kind))[:MOST_CELLS]
    keys = {row.cell.key for row in chosen}
    return [row for row in rows if row.cell.key in keys]


def _names(rows: Sequence[Row]) -> dict[CellKey, tuple[str, ...]]:
    """What is written for each cell: a heading and an indented name, or all in one name."""
    groups: dict[tuple[str, str, str], list[CellKey]] = {}
    for row in rows:
        key = row.cell.key
        groups.setdefault((key.test, key.workload, key.options), []).append(key)
    found: dict[CellKey, tuple[str, ...]] = {}
    for (test, workload, options), keys in groups.items():
        labels = _numbered(keys)
        heading = one_line(" ".join(filter(None, (test, workload, options))))
        if len(keys) == 1:
            found[keys[0]] = (one_line(" ".join(filter(None, (test, workload, labels[0], options)))),)
        else:
            found.update({key: (heading, f"  {label}") for key, label in zip(keys, labels, strict=True)})
    return found


def _numbered(keys: Sequence[CellKey]) -> list[str]:
    """Cells that differ in what is not shown, such as values of variables, are numbered."""
    alike: Counter[str] = Counter()
    labels = []
    for key in keys:
        alike[key.cell] += 1
        number = alike[key.cell]
        labels.append(one_line(f"{key.cell} #{number}" if number > 1 else key.cell))
    return labels


def _layout(rows: Sequence[Row], names: Mapping[CellKey, tuple[str, ...]], width: int) -> _Layout:
    """As many columns as there is something to say in, and as there is room for."""
    columns = [column for column in COLUMNS if "terminal" in column.formats and column.says_something(rows)]
    unwanted = set()
    if not any(row.has_verdict for row in rows):
        unwanted.add("verdict")
    if not any(row.is_slower for row in rows):
        unwanted.add("confound")
    wide = tuple(column for column in columns if column.key not in unwanted)
    narrow = tuple(column for column in wide if column.key != "confound")
    layouts = [_Layout(each, long) for long in (True, False) for each in (wide, narrow)]
    longest = max((terminal_width(names[row.cell.key][-1]) for row in rows), default=0)
    fitting = (layout for layout in layouts if layout.room(rows, width) >= max(longest, len("cell")))
    return next(fitting, next((each for each in layouts if each.room(rows, width) >= _NAME), layouts[-1]))


def _row(
    name: str, texts: Sequence[str], name_width: int, layout: _Layout, widths: Sequence[int], colour: str = ""
) -> Line:
    pieces = [Piece(_padded(name, name_width, left=True))]
    for text, column, width in zip(texts, layout.columns, widths, strict=True):
        padded = _padded(text, width, left=column.left)
        pieces += [Piece(_GAP), Piece(padded, colour if column.key == "verdict" else "")]
    while not pieces[-1].text.strip():
        pieces.pop()
    pieces[-1] = Piece(pieces[-1].text.rstrip(), pieces[-1].colour)
    return tuple(pieces)


def _padded(text: str, width: int, *, left: bool) -> str:
    space = " " * (width - terminal_width(text))
    return text + space if left else space + text


def _notes(row: Row, layout: _Layout, seen: set[str]) -> Iterator[Piece]:
    """What belongs to a cell and has no column. ``seen``: ways to fail that need no further line."""
    verdict = row.verdict
    if verdict.reason and row.has_verdict:
        yield Piece(f"{verdict.kind}: {verdict.reason}", _COLOURS[verdict.kind])
    if not layout.long_verdicts and verdict.text != verdict.kind:
        yield Piece(verdict.text, _COLOURS[verdict.kind])
    if row.is_slower and row.confound and not layout.shows("confound"):
        yield Piece(f"confound: {row.confound.text}", "yellow")
    if row.effect and row.effect.is_inert and not row.effect.is_second_baseline:
        yield Piece(f"inert? ({row.effect.reason})", "yellow")
    if missing := [f"{row.cell.count(kind)} {kind}" for kind in _UNCOUNTED if row.cell.count(kind)]:
        yield Piece(f"not counted: {', '.join(missing)}", "yellow")
    yield from _ways(row, seen)


def _ways(row: Row, seen: set[str]) -> Iterable[Piece]:
    """How the trials of a cell have failed."""
    texts = [(each.signature.text, len(each.trials)) for each in row.cell.signatures]
    judged = {way.signature.text: way for way in row.by_signature}
    if all(text in seen for text, _ in texts) and not judged:
        return
    seen.update(text for text, _ in texts)
    lines = []
    for text, number in texts:
        way = judged.pop(text, None)
        line = f"{number}x {text}"
        lines.append(Piece(f"{line}: {way.verdict.kind}", _COLOURS[way.verdict.kind]) if way else Piece(line))
    for text, way in judged.items():
        if way.verdict.kind != row.verdict.kind and text not in dict(texts):
            line = f"0x {text}, {way.base_failures}x in the baseline: {way.verdict.kind}"
            lines.append(Piece(line, _COLOURS[way.verdict.kind]))
    yield from lines[:_MOST_WAYS]
    if len(lines) > _MOST_WAYS:
        yield Piece(f"{counted(len(lines) - _MOST_WAYS, 'more way')} to fail")


def _wrapped(text: str, width: int) -> list[str]:
    """Lines at most so wide; a word that is wider is shortened."""
    lines = [""]
    for word in one_line(text).split():
        word = shortened(word, width)
        joined = f"{lines[-1]} {word}".strip()
        if terminal_width(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word)
    return lines
