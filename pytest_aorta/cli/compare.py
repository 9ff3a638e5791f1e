"""``pytest-aorta compare``: two runs, or the same run on two machines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_aorta.cli.shared import columns, read_margin, speed_margin_option
from pytest_aorta.common.texts import first_names, one_line
from pytest_aorta.triage import MARGIN, SPEED_MARGIN, Margin

if TYPE_CHECKING:
    from pytest_aorta.triage.cells import CellStatistics, SignatureCount
    from pytest_aorta.triage.compare import CellChange, RunComparison, Side

#: What ``--fail-on`` takes.
CONDITIONS = ("worse", "slower", "new-signature", "not-compared")


def _conditions(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    found = tuple(word.strip() for value in values for word in value.split(","))
    for word in found:
        if word not in CONDITIONS:
            raise click.BadParameter(f"{word!r} is not one of {', '.join(CONDITIONS)}")
    return found


@click.command("compare")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object; docs/compare.md has its keys.")
@click.option(
    "--fail-on",
    multiple=True,
    callback=_conditions,
    metavar="WHAT[,WHAT]",
    help=f"Exit with code 1 if any cell is: {', '.join(CONDITIONS)}.",
)
@click.option(
    "--margin",
    callback=read_margin,
    default=str(MARGIN),
    show_default=True,
    metavar="P",
    help="What is no change: 50% of A's failure rate, a difference of 0.1, or 50%,0.1 for both.",
)
@speed_margin_option
@click.option("--all", "everything", is_flag=True, help="Do not cut long lists of differences.")
def compare(
    a: Path,
    b: Path,
    as_json: bool,
    fail_on: tuple[str, ...],
    margin: Margin,
    speed_margin: float | None,
    everything: bool,
) -> None:
    """Compare two results directories: B with A.

    Failure rates and step times of the cells that both have, by the statistics of the table of a run, and what differs
    in their environments. A and B may also be the folder of a workload, or an earlier run below .history.
    """
    from pytest_aorta.triage.compare import compare_runs, comparison_as_plain

    comparison = compare_runs(a, b, margin, SPEED_MARGIN if speed_margin is None else speed_margin)
    if as_json:
        click.echo(json.dumps(comparison_as_plain(comparison), indent=1, allow_nan=False))
    else:
        click.echo("\n".join(comparison_lines(comparison, None if everything else 20)))
        for line in _computed(comparison):
            click.echo(line)
    failed = [line for what in fail_on for line in failed_conditions(comparison, what)]
    for line in failed:
        click.secho(line, err=True, fg="red")
    if failed:
        click.get_current_context().exit(1)


def _computed(comparison: RunComparison) -> Iterator[str]:
    """What B computes differently, where trials of both have hashes of the collector ``divergence``."""
    from pytest_aorta.triage.starts import compare_recorded

    found = []
    for change in comparison.cells:
        sides = ((change.a, comparison.a), (change.b, comparison.b))
        a, b = ([side.results.folder / file for file in cell.files] for cell, side in sides)
        sentence = compare_recorded(a, b)
        found += [f"{change.label}: {sentence}"] if sentence else []
    return iter(_titled("what is computed, by hashes of every step", found))


_COLORS = {"worse": "red", "slower": "red", "better": "green", "faster": "green", "undecided": "yellow"}

#: Unreadable files, and cells in a heading, that are named.
_MOST_FILES, _MOST_NAMES = 3, 4


def comparison_lines(comparison: RunComparison, most: int | None) -> list[str]:
    """The whole text; of each list of differences at most so many, ``None`` for all."""
    from pytest_aorta.triage.compare import label

    cells = comparison.cells
    new = [f"{change.label}: {_signature(each)}" for change in cells for each in change.new_signatures]
    gone = [f"{change.label}: {_signature(each)}" for change in cells for each in change.gone_signatures]
    lists = [("differs in the environment of all cells", comparison.shared)] if len(cells) > 1 else []
    lists += [("differs in the environment", comparison.shared)] if len(cells) == 1 else []
    for names, differences in comparison.particular:
        lists.append((f"differs only for {', '.join(first_names(names, _MOST_NAMES))}", differences))
    lines = [
        *_sides(comparison),
        "",
        *_table(cells),
        *_notes(cells),
        *_titled("fails in new ways in B", new),
        *_titled("ways to fail that are gone in B", gone),
    ]
    for side, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        lines += _titled(f"only in {side}", (f"{label(cell.key)}: {_outcomes(cell)}" for cell in only))
    for title, differences in lists:
        left_out = 0 if most is None else len(differences) - most
        more = [f"and {left_out} more (--all)"] if left_out > 0 else []
        lines += _titled(title, [*map(str, differences[:most]), *more])
    if not any(differences for _, differences in lists):
        lines += ["", "No difference in what is recorded of the environments."]
    return lines


def failed_conditions(comparison: RunComparison, what: str) -> Iterator[str]:
    """One line for each cell that a condition of ``--fail-on`` holds for."""
    from pytest_aorta.triage.compare import label

    for change in comparison.cells:
        kinds = (change.kind.replace(" ", "-"), change.speed.kind, "new-signature" if change.new_signatures else "")
        if what in kinds:
            yield f"{what}: {one_line(change.label)} ({_change_text(what, change)})"
    for cell in comparison.only_a if what == "not-compared" else ():
        yield f"{what}: {one_line(label(cell.key))} (only in A)"


def _change_text(what: str, change: CellChange) -> str:
    from pytest_aorta.triage.columns import p_value

    if what == "new-signature":
        return "; ".join(_signature(each) for each in change.new_signatures)
    if what == "slower":
        return f"steps {change.speed.change}"
    numbers = f"{change.a.failures}/{change.a.counted} -> {change.b.failures}/{change.b.counted} failed"
    return numbers if change.rate is None else f"{numbers}, p {p_value(change.rate.p_adjusted)}"


def _sides(comparison: RunComparison) -> Iterator[str]:
    from pytest_aorta.triage.columns import counted

    sides = (("A", comparison.a), ("B", comparison.b))
    yield from columns([(name, str(side.results.path), *_about(side)) for name, side in sides])
    for name, side in sides:
        if unreadable := side.results.unreadable:
            yield click.style(f"{name}: {counted(len(unreadable), 'file')} could not be read", fg="yellow")
            for text in first_names([f"{each.file}: {each.reason}" for each in unreadable], _MOST_FILES):
                yield f"  {one_line(text)}"
        if side.results.replays:
            yield f"{name}: {counted(side.results.replays, 'replay')} left out"
    if comparison.matched_across_environments:
        yield "The environments have other names: cells are matched by their mitigations."


def _about(side: Side) -> tuple[str, str, str]:
    from pytest_aorta.triage.columns import counted

    size = f"{counted(side.trials, 'trial')} in {counted(len(side.cells), 'cell')}"
    hosts = side.hosts[0] if len(side.hosts) == 1 else counted(len(side.hosts), "host") if side.hosts else ""
    return size, next(iter(side.times), "")[:16].replace("T", " "), hosts


def _table(changes: Sequence[CellChange]) -> Iterator[str]:
    """One line for each cell; the heading of their names is the workload where all have the same."""
    from pytest_aorta.triage.compare import COLUMNS

    shown = [column for column in COLUMNS if column.title]
    workloads = {change.b.key.workload for change in changes}
    heading, names = "cell", [change.label for change in changes]
    if len(workloads) == 1 and not any(change.b.key.test for change in changes):
        (heading,) = workloads
        names = [name.removeprefix(heading).strip() for name in names]
    texts = [[column.text_of(change) for column in shown] for change in changes]
    rows = [[heading, *(column.title for column in shown)]]
    rows += [[name, *row] for name, row in zip(names, texts, strict=True)]
    lines = columns(rows, range(1, len(shown)))
    yield lines[0]
    for line, change in zip(lines[1:], changes, strict=True):
        color = next((color for kind, color in _COLORS.items() if kind in (change.kind, change.speed.kind)), None)
        yield line.removesuffix(change.verdict) + click.style(change.verdict, fg=color)


def _notes(changes: Sequence[CellChange]) -> Iterator[str]:
    if any(change.more_trials is not None for change in changes):
        yield "~N more: about so many more trials, in A and in B, would decide"
    for change in changes:
        if change.kind == "not compared":
            sides = f"A: {_outcomes(change.a)}; B: {_outcomes(change.b)}"
            yield one_line(f"{change.label}: no trial says anything about the workload; {sides}")


def _outcomes(cell: CellStatistics) -> str:
    return ", ".join(f"{len(trials)} {outcome}" for outcome, trials in cell.trials.items() if trials)


def _signature(found: SignatureCount) -> str:
    return one_line(f"{len(found.trials)}x {found.signature.text}")


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    """A heading and what is below it; nothing without that."""
    shown = [f"  {one_line(line)}" for line in lines]
    return ["", click.style(one_line(title), bold=True), *shown] if shown else []
