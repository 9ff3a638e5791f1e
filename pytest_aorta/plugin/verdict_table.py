"""The table at the end of a run: cells with their verdicts, in the width of the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_aorta.common.texts import one_line
from pytest_aorta.plugin.compat import terminal_width
from pytest_aorta.triage.columns import COLUMNS, MEANINGS, Column, conclusions, counted
from pytest_aorta.triage.facts import LOSSES, CellKey
from pytest_aorta.triage.matrix import MATRIX_MD
from pytest_aorta.triage.verdicts import Row, Table, VerdictKind

#: Cells that are shown one by one: of more, those that say most.
MOST_CELLS = 40

#: Of more cells, a way to fail is only shown where it is new.
_FEW_CELLS = 12

#: Operators that are shown of a cell.
_MOST_OPERATORS = 3

#: Ways to fail that are shown of a cell.
_MOST_WAYS = 4

_GAP = "  "

_COLOURS: Mapping[VerdictKind, str] = {
    "fixes": "green",
    "reduces": "yellow",
    "undecided": "yellow",
    "worse": "red",
    "error": "red",
    "did not run": "red",
    "exchanges": "red",
    "confounded": "yellow",
    "slower": "yellow",
    "faster": "yellow",
    "dropped": "light",
    "no cure": "light",
    "no effect": "light",
    "baseline": "light",
    "second baseline": "light",
}


class Piece(NamedTuple):
    """A part of a line; ``colour`` is a name that pytest's terminal writer knows, or empty."""

    text: str
    colour: str = ""


Line = tuple[Piece, ...]


def table_lines(table: Table, width: int) -> list[Line]:
    """The table, what belongs to each cell below it, and what it comes to; no line is wider than ``width``."""
    rows = [row for row in table.rows if row.cell.total]
    shown = _shown(rows)
    names = _names(rows)
    unwanted = {"verdict"} if not any(row.has_verdict for row in shown) else set()
    longest = max([len("cell"), *(terminal_width(names[row.cell.key][-1]) for row in shown)])
    # Names come first: for them, slower steps are a line below, and verdicts are short.
    for without, has_long_verdicts in ((unwanted, True), ({*unwanted, "speed"}, True), ({"speed"}, False)):
        columns = [each for each in COLUMNS if "terminal" in each.formats and each.key not in {*without, *unwanted}]
        columns = [column for column in columns if column.says_something(shown)]
        short = set() if has_long_verdicts else {"verdict"}
        texts = {
            row.cell.key: [row.verdict.kind if it.key in short else it.short_text_of(row) for it in columns]
            for row in shown
        }
        titles = [column.title.lower() for column in columns]
        widths = [max(map(terminal_width, each)) for each in zip(titles, *texts.values(), strict=True)]
        room = width - sum(len(_GAP) + each for each in widths)
        if room >= longest:
            break
    has_speeds = any(column.key == "speed" for column in columns)
    aligned = [(column, each) for column, each in zip(columns, widths, strict=True)]
    name_width = min(room, longest)
    lines = [_row("cell", titles, name_width, aligned)]
    heading = ""
    seen: set[str] = set()
    for row in shown:
        above, name = names[row.cell.key]
        if above and above != heading:
            lines.append((Piece(shortened(above, width), "bold"),))
        heading = above
        if terminal_width(name) > name_width:
            lines.append((Piece(shortened(name, width)),))
            name = ""
        lines.append(_row(name, texts[row.cell.key], name_width, aligned, _COLOURS[row.verdict.kind]))
        for note in _notes(row, has_long_verdicts, has_speeds, seen if len(shown) > _FEW_CELLS else set()):
            lines.append((Piece(shortened(f"    {note.text}", width), note.colour),))
    if folded := Counter(row.verdict.kind for row in rows if row.cell.key not in texts):
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


def _names(rows: Sequence[Row]) -> dict[CellKey, tuple[str, str]]:
    """What is written for each cell: a heading and an indented name, or no heading and all in one name.

    Cells that differ in what is not shown, such as values of variables, are numbered.
    """
    groups: dict[tuple[str, str, str], dict[CellKey, str]] = {}
    alike: Counter[tuple[str, str, str, str]] = Counter()
    for key in (row.cell.key for row in rows):
        shown = (key.test, key.workload, key.options, key.cell)
        alike[shown] += 1
        label = f"{key.cell} #{alike[shown]}" if alike[shown] > 1 else key.cell
        groups.setdefault(shown[:3], {})[key] = label
    found = {}
    for (test, workload, options), labels in groups.items():
        for key, label in labels.items():
            if len(labels) == 1:
                found[key] = "", one_line(f"{test} {workload} {label} {options}")
            else:
                found[key] = one_line(f"{test} {workload} {options}"), f"  {one_line(label)}"
    return found


def _row(
    name: str, texts: Sequence[str], name_width: int, columns: Sequence[tuple[Column[Row], int]], colour: str = ""
) -> Line:
    pieces = [Piece(_padded(name, name_width, True))]
    for text, (column, width) in zip(texts, columns, strict=True):
        pieces += [Piece(_GAP), Piece(_padded(text, width, column.left), colour if column.key == "verdict" else "")]
    while not pieces[-1].text.strip():
        pieces.pop()
    pieces[-1] = Piece(pieces[-1].text.rstrip(), pieces[-1].colour)
    return tuple(pieces)


def _padded(text: str, width: int, left: bool) -> str:
    space = " " * (width - terminal_width(text))
    return text + space if left else space + text


def _notes(row: Row, has_long_verdicts: bool, has_speeds: bool, seen: set[str]) -> Iterator[Piece]:
    """What belongs to a cell and has no column. ``seen``: ways to fail that need no further line."""
    verdict = row.verdict
    if verdict.reason and row.has_verdict:
        yield Piece(f"{verdict.kind}: {verdict.reason}", _COLOURS[verdict.kind])
    if not has_long_verdicts and verdict.text != verdict.kind:
        yield Piece(verdict.text, _COLOURS[verdict.kind])
    if row.speed and row.speed.kind in ("slower", "faster") and not has_speeds:
        yield Piece(f"{row.speed.of} are {row.speed.text}", "yellow")
    if row.speed and row.speed.reason and row.speed.interval:
        yield Piece(f"speed undecided: {row.speed.reason}", "yellow")
    for change in row.operators[:_MOST_OPERATORS]:
        yield Piece(change.text, "yellow")
    if row.effect and row.effect.is_inert and not row.effect.is_second_baseline:
        yield Piece(f"inert? ({row.effect.reason})", "yellow")
    if missing := [f"{row.cell.count(kind)} {kind}" for kind in LOSSES if row.cell.count(kind)]:
        events = f" ({counted(row.cell.loss_events, 'event')})" if row.cell.loss_events < row.cell.lost else ""
        yield Piece(f"not counted: {', '.join(missing)}{events}", "yellow")
        if row.cell.losses and row.cell.count("interrupted") < row.cell.lost:
            yield Piece(f"why: {row.cell.losses[0].signature.text}", "yellow")
    yield from _ways(row, seen)


def _ways(row: Row, seen: set[str]) -> Iterable[Piece]:
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
