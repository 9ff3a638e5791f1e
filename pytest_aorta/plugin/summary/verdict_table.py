"""The table at the end of a run: cells with their verdicts, in the width of the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_aorta.common.texts import one_line
from pytest_aorta.plugin.compat import terminal_width
from pytest_aorta.triage.conclusion import conclusions, has_verdict
from pytest_aorta.triage.facts import CellKey, Outcome
from pytest_aorta.triage.matrix.run_state import MATRIX_MD
from pytest_aorta.triage.table import Row, Table
from pytest_aorta.triage.verdicts import Verdict, VerdictKind
from pytest_aorta.triage.wording import below, counted, p_value, rate_with_interval, step_ms

#: Cells that are shown one by one.
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

#: Which cells are shown where there are too many: those that say most.
_FIRST: tuple[VerdictKind, ...] = (
    "worse",
    "error",
    "did not run",
    "fixes",
    "reduces",
    "baseline",
    "second baseline",
    "undecided",
    "no effect",
)


@dataclass(frozen=True)
class Piece:
    """A part of a line; ``colour`` is a name that pytest's terminal writer knows, or empty."""

    text: str
    colour: str = ""


Line = tuple[Piece, ...]


@dataclass(frozen=True)
class _Column:
    """``colour`` of a text is that of its verdict."""

    title: str
    text: Callable[[Row], str]
    left: bool = False
    is_verdict: bool = False


def table_lines(table: Table, width: int) -> list[Line]:
    """The table, what belongs to each cell below it, and what it comes to; no line is wider than ``width``."""
    rows = [row for row in table.rows if row.cell.total]
    shown = _shown(rows)
    names = _names(rows)
    layout = _layout(shown, names, width)
    widths = [max(terminal_width(text) for text in (column.title, *map(column.text, shown))) for column in layout]
    room = width - sum(len(_GAP) + each for each in widths)
    longest = max((terminal_width(text) for row in shown for text in names[row.cell.key][-1:]), default=0)
    name_width = min(room, max(longest, len("cell")))
    lines: list[Line] = [_row(("cell", *(column.title for column in layout)), name_width, layout, widths)]
    heading: tuple[str, ...] = ()
    seen: set[str] = set()
    for row in shown:
        *above, name = names[row.cell.key]
        if above and above != list(heading):
            lines.append((Piece(shortened(above[0], width), "bold"),))
        heading = tuple(above)
        if terminal_width(name) > name_width:
            lines.append((Piece(shortened(name, width)),))
            name = ""
        texts = (name, *(column.text(row) for column in layout))
        lines.append(_row(texts, name_width, layout, widths, _COLOURS[row.verdict.kind]))
        lines += [
            (Piece(shortened(f"    {note.text}", width), note.colour),)
            for note in _notes(row, layout, seen if len(shown) > _FEW_CELLS else set())
        ]
    keys = {row.cell.key for row in shown}
    lines += [(Piece(line),) for line in _folded([row for row in rows if row.cell.key not in keys], width)]
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
    chosen = sorted(rows, key=lambda row: _FIRST.index(row.verdict.kind))[:MOST_CELLS]
    keys = {row.cell.key for row in chosen}
    return [row for row in rows if row.cell.key in keys]


def _folded(rows: Sequence[Row], width: int) -> Iterable[str]:
    if rows:
        kinds = Counter(row.verdict.kind for row in rows)
        listing = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        yield from _wrapped(f"and {counted(len(rows), 'more cell')}, {listing}: see {MATRIX_MD} in the results", width)


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


_FAILED = _Column("failed", lambda row: f"{row.cell.failures} of {row.cell.counted}" if row.cell.counted else "-")
_RATE = _Column("rate (95%)", lambda row: rate_with_interval(row.cell.rate, row.cell.rate_interval))
_VERDICT = _Column("verdict", lambda row: _verdict_text(row.verdict), left=True, is_verdict=True)
_SHORT_VERDICT = _Column("verdict", lambda row: row.verdict.kind, left=True, is_verdict=True)
_P = _Column("p", lambda row: p_value(row.comparison.p_adjusted) if row.comparison else "")
_CONFOUND = _Column("confound", lambda row: row.confound.text if row.confound else "", left=True)
_STEP = _Column("step ms", lambda row: step_ms(row.cell.steps.median_ms if row.cell.steps else None))


def _layout(rows: Sequence[Row], names: Mapping[CellKey, tuple[str, ...]], width: int) -> list[_Column]:
    """The columns beside the names: as many as there is something to say in, and as there is room for."""
    steps = [_STEP] if any(row.cell.steps for row in rows) else []
    if not any(has_verdict(row) for row in rows):
        return [_FAILED, _RATE, *steps]
    p = [_P] if any(row.comparison for row in rows) else []
    confound = [_CONFOUND] if any(row.confound and row.confound.kind == "speed" for row in rows) else []
    layouts = [
        [_FAILED, _RATE, _VERDICT, *p, *confound, *steps],
        [_FAILED, _RATE, _VERDICT, *p, *steps],
        [_FAILED, _RATE, _SHORT_VERDICT, *p, *confound, *steps],
        [_FAILED, _RATE, _SHORT_VERDICT, *p, *steps],
    ]
    longest = max((terminal_width(names[row.cell.key][-1]) for row in rows), default=0)

    def room(layout: Sequence[_Column]) -> int:
        taken = (max(terminal_width(text) for text in (column.title, *map(column.text, rows))) for column in layout)
        return width - sum(len(_GAP) + each for each in taken)

    fitting = (layout for layout in layouts if room(layout) >= max(longest, len("cell")))
    return next(fitting, next((layout for layout in layouts if room(layout) >= _NAME), layouts[-1]))


def _row(
    texts: Sequence[str], name_width: int, layout: Sequence[_Column], widths: Sequence[int], colour: str = ""
) -> Line:
    pieces = [Piece(_padded(texts[0], name_width, left=True))]
    for text, column, width in zip(texts[1:], layout, widths, strict=True):
        pieces += [Piece(_GAP), Piece(_padded(text, width, left=column.left), colour if column.is_verdict else "")]
    while not pieces[-1].text.strip():
        pieces.pop()
    pieces[-1] = Piece(pieces[-1].text.rstrip(), pieces[-1].colour)
    return tuple(pieces)


def _padded(text: str, width: int, *, left: bool) -> str:
    space = " " * (width - terminal_width(text))
    return text + space if left else space + text


def _verdict_text(verdict: Verdict) -> str:
    if verdict.kind == "undecided" and verdict.more_trials is not None:
        return f"undecided (~{verdict.more_trials} more)"
    if verdict.kind == "fixes" and verdict.rate_below is not None:
        return f"fixes (<{below(verdict.rate_below)})"
    return verdict.kind


def _notes(row: Row, layout: Sequence[_Column], seen: set[str]) -> Iterable[Piece]:
    """What belongs to a cell and has no column. ``seen``: ways to fail that need no further line."""
    verdict = row.verdict
    if verdict.reason and has_verdict(row):
        yield Piece(f"{verdict.kind}: {verdict.reason}", _COLOURS[verdict.kind])
    if _VERDICT not in layout and _verdict_text(verdict) != verdict.kind:
        yield Piece(verdict.text, _COLOURS[verdict.kind])
    if _CONFOUND not in layout and row.confound and row.confound.kind == "speed":
        yield Piece(f"confound: {row.confound.text}", "yellow")
    if row.effect and row.effect.is_inert and not row.effect.is_second_baseline:
        yield Piece(f"inert? ({row.effect.reason})", "yellow")
    yield from _outcomes(row)
    yield from _ways(row, seen)


def _outcomes(row: Row) -> Iterable[Piece]:
    """Trials that the columns leave out."""
    missing = [f"{row.cell.count(kind)} {kind}" for kind in _UNCOUNTED if row.cell.count(kind)]
    if missing:
        yield Piece(f"not counted: {', '.join(missing)}", "yellow")


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
        lines.append(
            Piece(f"{number}x {text}: {way.verdict.kind}", _COLOURS[way.verdict.kind])
            if way
            else Piece(f"{number}x {text}")
        )
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
