"""The pictures of docs/guides/table.md: ``python docs/img/draw_columns.py`` draws them again.

Each shows the table at the end of a run, of made-up trials, with one of its columns marked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from pytest_aorta.plugin.summary import Line, table_lines
from pytest_aorta.triage.facts import CellKey, Outcome, TrialFacts, steady_steps
from pytest_aorta.triage.reading import triage_in_order
from pytest_aorta.triage.signatures import Signature
from pytest_aorta.triage.verdicts import Table

FOLDER = Path(__file__).with_name("columns")

#: Pixels of a character, of a line, and around the text.
_CHARACTER, _LINE, _EDGE = 8.0, 18, 10

_COLOURS = {
    "green": "#8ac926",
    "yellow": "#e9c46a",
    "red": "#ff6b6b",
    "light": "#9a9a9a",
    "bold": "#ffffff",
    "": "#d8d8d8",
}

_NAN = Signature("result", "run", message="loss is nan", where="train.py:88 in step")
_CRASH = Signature("signal", "run", type="SIGSEGV", where="hipblasLtMatmul")

#: The column, or "ways", "sentence" for the lines below, and the name of its picture.
_MARKED = {
    "cell": "cell",
    "failed": "failed",
    "rate (95%)": "rate",
    "verdict": "verdict",
    "p": "p",
    "speed": "speed",
    "step ms": "step",
    "ways": "ways",
    "sentence": "sentence",
}


def example() -> Table:
    """A baseline with two bugs, and mitigations of which one fixes both."""
    return triage_in_order(
        [
            *_trials("none", "FFFFFFFFFFFFSS......", (20.0, 20.5, 20.3)),
            *_trials("omp_1", "." * 20, (20.4, 20.9, 20.7)),
            *_trials("sync", "." * 20, (27.0, 27.9, 27.3)),
            *_trials("xnack", "F" * 9 + "." * 10 + "E", (20.0, 20.5, 20.3)),
        ]
    ).table()


def _trials(name: str, outcomes: str, step_ms: Sequence[float]) -> list[TrialFacts]:
    kinds: dict[str, Outcome] = {".": "ok", "E": "infrastructure"}
    return [
        TrialFacts(
            key=CellKey("fsdp", f"local-{name}"),
            environment="local",
            mitigations=(name,),
            trial_id=f"{name}_{index}",
            index=index,
            file=f"trial_{index}.json",
            outcome=kinds.get(letter, "failed"),
            signature={"F": _NAN, "S": _CRASH}.get(letter),
            steps=steady_steps([step_ms[index % len(step_ms)]] * 3) if letter == "." else None,
        )
        for index, letter in enumerate(outcomes)
    ]


def pictures() -> dict[str, str]:
    """File name to SVG."""
    lines = table_lines(example(), 110)
    texts = ["".join(piece.text for piece in line) for line in lines]
    rows = [number for number, text in enumerate(texts) if number == 0 or re.match(r"  \S", text)]
    sentence = next(number for number, text in enumerate(texts) if number > rows[-1] and not text.startswith(" "))
    below = [number for number, text in enumerate(texts) if text.startswith("    ")]
    spans = _columns([texts[number] for number in rows])
    found = {}
    for marked, name in _MARKED.items():
        if marked == "ways":
            boxes = [(number, 3, len(texts[number]) + 1) for number in below]
        elif marked == "sentence":
            boxes = [(number, 0, len(text)) for number, text in enumerate(texts) if number >= sentence]
        else:
            start, end = spans[marked]
            boxes = [(number, start, end) for number in range(sentence) if number in rows]
        found[f"{name}.svg"] = _svg(lines, boxes)
    return found


def _columns(rows: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Where each column begins and ends: between them, two places are empty in all rows."""
    width = max(map(len, rows))
    filled = "".join(
        "x" if any(row[place : place + 1].strip() for row in rows) else " " for place in range(width)
    ).rstrip()
    spans = [found.span() for found in re.finditer(r"x(?:x| (?! ))*x?", filled)]
    return {rows[0][start:end].strip(): (start, end) for start, end in spans}


def _svg(lines: Sequence[Line], boxes: Sequence[tuple[int, int, int]]) -> str:
    columns = max(sum(len(piece.text) for piece in line) for line in lines)
    width, height = columns * _CHARACTER + 2 * _EDGE, len(lines) * _LINE + 2 * _EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height}" viewBox="0 0 {width:g} {height}" '
        'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13">',
        f'<rect width="{width:g}" height="{height}" rx="6" fill="#262626"/>',
    ]
    for number, start, end in boxes:
        parts.append(
            f'<rect x="{_EDGE + start * _CHARACTER - 3:g}" y="{_EDGE + number * _LINE}" '
            f'width="{(end - start) * _CHARACTER + 6:g}" height="{_LINE}" fill="#2f5d8a"/>'
        )
    for number, line in enumerate(lines):
        place = 0
        for piece in line:
            if text := piece.text.strip():
                indent = len(piece.text) - len(piece.text.lstrip())
                parts.append(
                    f'<text x="{_EDGE + (place + indent) * _CHARACTER:g}" y="{_EDGE + number * _LINE + 13}" '
                    f'textLength="{len(text) * _CHARACTER:g}" fill="{_COLOURS[piece.colour]}" '
                    f'xml:space="preserve">{escape(text)}</text>'
                )
            place += len(piece.text)
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        (FOLDER / name).write_text(picture)
