"""A comparison of two runs as text, for 80 columns."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence

import click

from pytest_aorta.cli.shared import columns
from pytest_aorta.common.texts import one_line
from pytest_aorta.triage.cells import CellStatistics, SignatureCount
from pytest_aorta.triage.columns import counted, p_value
from pytest_aorta.triage.compare import COLUMNS, CellChange, RunComparison, Side, label
from pytest_aorta.triage.environments import Difference
from pytest_aorta.triage.facts import OUTCOMES

_COLORS = {"worse": "red", "slower": "red", "better": "green", "faster": "green", "undecided": "yellow"}

#: Unreadable files, and cells in a heading, that are named.
_MOST_FILES, _MOST_NAMES = 3, 4

_SHOWN = [column for column in COLUMNS if column.title]


def comparison_lines(comparison: RunComparison, most: int | None) -> list[str]:
    """The whole text; of each list of differences at most so many, ``None`` for all."""
    cells = comparison.cells
    new = [f"{change.label}: {_signature(each)}" for change in cells for each in change.new_signatures]
    gone = [f"{change.label}: {_signature(each)}" for change in cells for each in change.gone_signatures]
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


def failed_conditions(comparison: RunComparison, what: str) -> Iterator[str]:
    """One line for each cell that a condition of ``--fail-on`` holds for."""
    for change in comparison.cells:
        kinds = (change.kind.replace(" ", "-"), change.speed.verdict, "new-signature" if change.new_signatures else "")
        if what in kinds:
            yield f"{what}: {one_line(change.label)} ({_change_text(what, change)})"
    for cell in comparison.only_a if what == "not-compared" else ():
        yield f"{what}: {one_line(label(cell.key))} (only in A)"


def _change_text(what: str, change: CellChange) -> str:
    if what == "new-signature":
        return "; ".join(_signature(each) for each in change.new_signatures)
    if what == "slower" and change.speed.ratio is not None and change.speed.interval is not None:
        interval = change.speed.interval
        return f"steps {change.speed.ratio - 1:+.0%}, 95 % {interval.low - 1:+.0%} to {interval.high - 1:+.0%}"
    before, after = (column.text_of(change) for column in _SHOWN[:2])
    numbers = f"{before} -> {after} failed"
    return numbers if change.rate is None else f"{numbers}, p {p_value(change.rate.p_adjusted)}"


def _sides(comparison: RunComparison) -> Iterator[str]:
    sides = (("A", comparison.a), ("B", comparison.b))
    yield from columns([(name, str(side.results.path), *_about(side)) for name, side in sides])
    for name, side in sides:
        if unreadable := side.results.unreadable:
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
    titles, right = [column.title for column in _SHOWN], range(len(_SHOWN) - 1)
    texts = [[column.text_of(change) for column in _SHOWN] for change in changes]
    rows = [[heading, *titles], *([name, *row] for name, row in zip(names, texts, strict=True))]
    lines = columns(rows, [index + 1 for index in right])
    if max(map(len, lines)) <= shutil.get_terminal_size((80, 24)).columns:
        yield lines[0]
        yield from (_colored(line, change) for line, change in zip(lines[1:], changes, strict=True))
        return
    lines = columns([titles, *texts], right)
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


def _colored(line: str, change: CellChange) -> str:
    """With the color of what is worst in its verdict."""
    color = next((color for kind, color in _COLORS.items() if kind in (change.kind, change.speed.verdict)), None)
    return line.removesuffix(change.verdict) + click.style(change.verdict, fg=color)


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
    for names, differences in comparison.particular:
        more = len(names) - _MOST_NAMES
        cells = ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        yield from _titled(f"differs only for {cells}", _listed(differences, most))


def _listed(differences: Sequence[Difference], most: int | None) -> Iterator[str]:
    yield from map(str, differences[:most])
    if most is not None and len(differences) > most:
        yield f"and {len(differences) - most} more (--all)"


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    """A heading and what is below it; nothing without that."""
    shown = [f"  {one_line(line)}" for line in lines]
    return ["", click.style(one_line(title), bold=True), *shown] if shown else []
