"""A comparison of two runs as text, for 80 columns."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from pytest_aorta.cli.shared import columns
from pytest_aorta.common.terminal_text import one_line
from pytest_aorta.triage.columns import counted, difference_with_interval, p_value
from pytest_aorta.triage.compare import label
from pytest_aorta.triage.facts import OUTCOMES

if TYPE_CHECKING:
    from pytest_aorta.triage.cells import CellStatistics, SignatureCount
    from pytest_aorta.triage.compare import CellChange, RunComparison, Side
    from pytest_aorta.triage.environments import Difference

_COLORS = {"worse": "red", "slower": "red", "better": "green", "faster": "green", "undecided": "yellow"}

_HEADINGS = ("A", "B", "change (95%)", "p", "steps", "verdict")

#: Columns of numbers.
_RIGHT = (1, 2, 3, 4, 5)

#: Unreadable files that are named.
_MOST_FILES = 3


def comparison_lines(comparison: RunComparison, most: int | None) -> list[str]:
    """The whole text; of each list of differences at most so many, ``None`` for all."""
    cells = comparison.cells
    new = [line for change in cells for line in _signatures(change.label, change.new_signatures)]
    gone = [line for change in cells for line in _signatures(change.label, change.gone_signatures)]
    return [
        *_sides(comparison),
        "",
        *_table(cells),
        *_notes(cells),
        *_titled("fails in new ways in B", new),
        *_titled("ways to fail that are gone in B", gone),
        *_titled("only in A", map(_counts, comparison.only_a)),
        *_titled("only in B", map(_counts, comparison.only_b)),
        *_environment(comparison, most),
    ]


def change_text(what: str, change: CellChange) -> str:
    """The numbers that a condition of ``--fail-on`` is about."""
    if what == "new-signature":
        return "; ".join(_signature(each) for each in change.new_signatures)
    if what == "slower" and change.speed.ratio is not None and change.speed.interval is not None:
        interval = change.speed.interval
        return f"steps {change.speed.ratio - 1:+.0%}, 95 % {interval.low - 1:+.0%} to {interval.high - 1:+.0%}"
    numbers = f"{_failures(change.a)} -> {_failures(change.b)} failed"
    return numbers if change.rate is None else f"{numbers}, p {p_value(change.rate.p_adjusted)}"


def _sides(comparison: RunComparison) -> Iterator[str]:
    sides = (("A", comparison.a), ("B", comparison.b))
    yield from columns([(name, str(side.results.path), *_about(side)) for name, side in sides])
    for name, side in sides:
        unreadable = side.results.unreadable
        if unreadable:
            yield click.style(f"{name}: {counted(len(unreadable), 'file')} could not be read", fg="yellow")
            yield from (f"  {one_line(f'{each.file}: {each.reason}')}" for each in unreadable[:_MOST_FILES])
            if len(unreadable) > _MOST_FILES:
                yield f"  and {len(unreadable) - _MOST_FILES} more"
        if side.results.replays:
            yield f"{name}: {counted(side.results.replays, 'replay')} left out"
    if comparison.matched_across_environments:
        yield "The environments have other names: cells are matched by their mitigations."


def _about(side: Side) -> tuple[str, str, str]:
    size = f"{counted(side.trials, 'trial')} in {counted(len(side.cells), 'cell')}"
    hosts = side.hosts[0] if len(side.hosts) == 1 else counted(len(side.hosts), "host") if side.hosts else ""
    return size, side.began[:16].replace("T", " "), hosts


def _table(changes: Sequence[CellChange]) -> Iterator[str]:
    """One line for each cell; its name is on a line of its own where both together are too long."""
    heading, names = _names(changes)
    rows = [(name, *_numbers(change), _verdict(change)) for name, change in zip(names, changes, strict=True)]
    lines = columns([(heading, *_HEADINGS), *rows], _RIGHT)
    if max(map(len, lines)) <= shutil.get_terminal_size((80, 24)).columns:
        yield lines[0]
        yield from (_colored(line, change) for line, change in zip(lines[1:], changes, strict=True))
        return
    lines = columns([_HEADINGS, *(row[1:] for row in rows)], [column - 1 for column in _RIGHT])
    yield f"  {lines[0]}"
    for line, change in zip(lines[1:], changes, strict=True):
        yield one_line(change.label)
        yield f"  {_colored(line, change)}"


def _names(changes: Sequence[CellChange]) -> tuple[str, list[str]]:
    """The heading of the names, which is the workload where all have the same, and the names."""
    workloads = {change.b.key.workload for change in changes}
    if len(workloads) > 1 or any(change.b.key.test for change in changes):
        return "cell", [change.label for change in changes]
    (workload,) = workloads
    return workload, [change.label.removeprefix(workload).strip() for change in changes]


def _numbers(change: CellChange) -> tuple[str, ...]:
    steps = "" if change.speed.ratio is None else f"{change.speed.ratio - 1:+.0%}"
    if change.rate is None:
        return _failures(change.a), _failures(change.b), "", "", steps
    difference = difference_with_interval(change.rate.difference, change.rate.interval)
    return _failures(change.a), _failures(change.b), difference, p_value(change.rate.p_adjusted), steps


def _failures(cell: CellStatistics) -> str:
    return f"{cell.failures}/{cell.counted}" if cell.counted else "-"


def _verdict(change: CellChange) -> str:
    verdict = f"undecided, ~{change.more_trials} more" if change.more_trials is not None else change.kind
    return f"{verdict}, {change.speed.kind}" if change.speed.kind in ("slower", "faster") else verdict


def _colored(line: str, change: CellChange) -> str:
    """With the color of what is worst in its verdict."""
    verdict = _verdict(change)
    color = next((color for kind, color in _COLORS.items() if kind in (change.kind, change.speed.kind)), None)
    return line.removesuffix(verdict) + click.style(verdict, fg=color)


def _notes(changes: Sequence[CellChange]) -> Iterator[str]:
    """What is to be known of the table, as far as it is in it."""
    if any(change.more_trials is not None for change in changes):
        yield "~N more: about so many more trials, in A and in B, would decide"
    for change in changes:
        if change.kind == "not compared":
            sides = [f"{name}: {_outcomes(cell)}" for name, cell in (("A", change.a), ("B", change.b))]
            yield one_line(f"{change.label}: no trial says anything about the workload; {'; '.join(sides)}")


def _outcomes(cell: CellStatistics) -> str:
    return ", ".join(f"{cell.count(outcome)} {outcome}" for outcome in OUTCOMES if cell.count(outcome))


def _signatures(name: str, signatures: Iterable[SignatureCount]) -> Iterator[str]:
    for each in signatures:
        yield f"{name}: {_signature(each)}"


def _signature(found: SignatureCount) -> str:
    return one_line(f"{len(found.trials)}x {found.signature.text}")


def _counts(cell: CellStatistics) -> str:
    return f"{label(cell.key)}: {counted(cell.total, 'trial')}, {_outcomes(cell)}"


def _environment(comparison: RunComparison, most: int | None) -> Iterator[str]:
    if not comparison.shared and not comparison.particular:
        yield from ("", "No difference in what is recorded of the environments.")
        return
    everything = "environment" if len(comparison.cells) == 1 else "environment of all cells"
    yield from _titled(f"differs in the {everything}", _listed(comparison.shared, most))
    for found in comparison.particular:
        cells = ", ".join(found.cells[:4]) + (f" and {len(found.cells) - 4} more" if len(found.cells) > 4 else "")
        yield from _titled(f"differs only for {cells}", _listed(found.differences, most))


def _listed(differences: Sequence[Difference], most: int | None) -> Iterator[str]:
    yield from map(str, differences[:most])
    if most is not None and len(differences) > most:
        yield f"and {len(differences) - most} more (--all)"


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    """A heading and what is below it; nothing without that."""
    shown = [f"  {one_line(line)}" for line in lines]
    return ["", click.style(one_line(title), bold=True), *shown] if shown else []
