"""The table at the end fits its width, shows every cell once, and marks verdicts with colours."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.generated_tables import names, tables
from support.triage_facts import CRASH, triage_of, trials

from pytest_aorta.plugin.compat import terminal_width
from pytest_aorta.plugin.summary import MOST_CELLS, Line, shortened, table_lines
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.verdicts import Table


def texts(lines: list[Line]) -> list[str]:
    return ["".join(piece.text for piece in line) for line in lines]


def table_of(*cells: list[TrialFacts], width: int = 80) -> list[str]:
    return texts(table_lines(triage_of(chain(*cells)), width))


@settings(max_examples=25)
@given(tables(), st.sampled_from((80, 100, 200)))
def test_no_line_is_wider_than_the_terminal_and_every_cell_has_its_numbers(table: Table, width: int) -> None:
    lines = texts(table_lines(table, width))
    assert all(terminal_width(line) <= width for line in lines), max(lines, key=terminal_width)
    assert all(char.isprintable() for line in lines for char in line)
    whole = "\n".join(lines)
    for row in table.rows:
        if row.cell.counted:
            assert f" {row.cell.failures} of {row.cell.counted} " in whole


@settings(max_examples=50)
@given(names, st.integers(10, 80))
def test_a_shortened_text_keeps_both_ends(text: str, width: int) -> None:
    short = shortened(text, width)
    assert terminal_width(short) <= width
    if "..." in short and "..." not in text:
        head, _, tail = short.partition("...")
        assert head[:1] == shortened(text, 10_000)[:1]
        assert tail[-1:] == shortened(text, 10_000)[-1:]


def test_a_triage_reads_like_this() -> None:
    cells = (
        trials("none", "FFFFFFFFCCCCCC......E-", step_ms=(20.2, 20.8), signatures={"C": CRASH}),
        trials("omp_1", "." * 20, step_ms=(20.2, 20.8)),
        trials("tf32_off", "F" * 8 + "T" + "." * 11),
    )
    assert table_of(*cells) == [
        "cell                failed    rate (95%)  verdict          p  step ms",
        "gemm",
        "  local-none      14 of 20  70% (48-85%)  baseline              20.50",
        "    not counted: 1 infrastructure, 1 did not run",
        "    8x loss is nan",
        "    6x SIGSEGV in run()",
        "  local-omp_1      0 of 20     0% (<14%)  fixes      <0.0001    20.50",
        "  local-tf32_off   9 of 20  45% (26-66%)  undecided     0.13        -",
        "    8x loss is nan: undecided",
        "    1x timeout in run(): undecided",
        "    0x SIGSEGV in run(), 6x in the baseline: fixes",
        "omp_1 fixes it: 0 of 20 failed, 14 of 20 without it (p < 0.0001); it removes at",
        "least 61% of the failures, and its failure rate is below 14%.",
    ]


def test_one_cell_is_one_line() -> None:
    assert table_of(trials("none", "..F", step_ms=(2.0,))) == [
        "cell             failed   rate (95%)  step ms",
        "gemm local-none  1 of 3  33% (6-79%)     2.00",
        "    1x loss is nan",
    ]


def test_speed_has_a_column_where_there_is_room_and_else_a_line() -> None:
    cells = (trials("none", "F" * 14 + "." * 6, step_ms=(20.2, 20.8)), trials("a", "." * 20, step_ms=(30.0, 31.0)))
    assert any(line.endswith("<0.0001  slower: +49% (47 to 50%)    30.50") for line in table_of(*cells, width=120))
    long = trials("_".join(["a_mitigation"] * 3), "." * 20, step_ms=(30.0, 31.0))
    assert "    steps are slower: +49% (47 to 50%)" in table_of(cells[0], long)


def test_of_many_cells_those_that_say_most_are_shown_and_the_rest_is_counted() -> None:
    cells = [trials("none", "F" * 100 + "." * 100)]
    cells += [trials(f"same_{number}", "F" * 99 + "." * 101) for number in range(48)]
    cells.append(trials("fix", "." * 200))
    lines = table_of(*cells)
    assert len(lines) < MOST_CELLS + 10
    assert any(line.startswith("  local-fix ") for line in lines)
    assert any(line.startswith("  local-none ") for line in lines)
    assert "and 10 more cells, 10 no cure: see matrix.md in the results" in lines


@pytest.mark.parametrize(
    ("outcomes", "kind", "colour"),
    [
        ("." * 20, "fixes", "green"),
        ("F" + "." * 19, "reduces", "yellow"),
        ("F" * 10 + "." * 10, "undecided", "yellow"),
        ("-" * 20, "did not run", "red"),
        ("E" * 20, "error", "red"),
    ],
)
def test_a_verdict_has_its_colour(outcomes: str, kind: str, colour: str) -> None:
    table = triage_of([*trials("none", "F" * 16 + "." * 4), *trials("a", outcomes)])
    coloured = {piece.text.strip(): piece.colour for line in table_lines(table, 80) for piece in line if piece.colour}
    assert any(text.startswith(kind) and its_colour == colour for text, its_colour in coloured.items())
    assert coloured["baseline"] == "light"
