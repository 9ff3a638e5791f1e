"""Results directories: as an HTML file, and beside each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pytest_aorta.cli.shared import columns
from pytest_aorta.common.texts import counted, first_names, one_line
from pytest_aorta.settings import RequestError, share
from pytest_aorta.triage import MARGIN, SPEED_MARGIN, Margin, TriageSettings, margin
from pytest_aorta.triage.cells import CellStatistics, SignatureCount
from pytest_aorta.triage.columns import p_value
from pytest_aorta.triage.compare import (
    COLUMNS,
    CellChange,
    RunComparison,
    compare_runs,
    comparison_data,
)
from pytest_aorta.triage.matrix import EarlierMatrix
from pytest_aorta.triage.reading import run_again_by_outcome
from pytest_aorta.triage.starts import compare_recorded
from pytest_aorta.workspace.atomic import write_text

#: Valid conditions of ``--fail-on``.
CONDITIONS = ("worse", "slower", "all-slower", "other-failures", "new-signature", "not-compared")

_COLORS = {
    "worse": "red",
    "other failures": "red",
    "slower": "red",
    "better": "green",
    "faster": "green",
    "undecided": "yellow",
}

#: Unreadable files, and cells in a heading, that are named.
_MOST_FILES, _MOST_NAMES = 3, 4


def _read_by(reader: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        try:
            return None if value is None else reader(value)
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: expected {error}") from None

    return read


_speed_margin_option = click.option(
    "--speed-margin",
    callback=_read_by(share),
    metavar="P",
    help=f"Ignore step-time changes below this, such as 5% or 0.05 (default {SPEED_MARGIN:.0%}).",
)


@click.command("report")
@click.argument("results", type=click.Path(path_type=Path), default="results", metavar="[DIR]")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: report.html.")
@click.option(
    "--over-time",
    "over_runs",
    is_flag=True,
    help="Also plot failure rates and step times over the runs in the history (over-time.svg).",
)
@click.option("--baseline", metavar="CELL", help="The cell to compare the others with, as pytest's --aorta-baseline.")
@click.option(
    "--margin",
    callback=_read_by(margin),
    metavar="P",
    help="What is no effect: 50% of the baseline's failure rate, a difference of 0.1, or 50%,0.1 for both.",
)
@_speed_margin_option
@click.option("--markdown", is_flag=True, help="Print what a bug report needs, in Markdown, instead.")
def report(
    results: Path,
    output: Path | None,
    over_runs: bool,
    baseline: str | None,
    margin: Margin | None,
    speed_margin: float | None,
    markdown: bool,
) -> None:
    """Without --baseline and margins, uses the settings of the run."""
    if over_runs:
        _report_over_time(results, output or Path("over-time.svg"))
        return
    from pytest_aorta.triage.report import Report, write_report

    output = output or Path("report.html")
    settings = EarlierMatrix(results).settings or TriageSettings()
    settings = replace(settings, margin=margin or settings.margin, speed_margin=speed_margin or settings.speed_margin)
    if markdown:
        click.echo(Report(results, settings, baseline).to_paste(), nl=False)
        return
    write_report(results, output, settings, baseline=baseline)
    click.echo(f"report: {output}")


def _report_over_time(results: Path, output: Path) -> None:
    from pytest_aorta.triage.over_time import over_time, picture, split_runs

    cells = over_time(split_runs(results))
    rows = [["Cell", "Run", "Failed", "Rate (95%)", "Time in ms (95%)", "Change"]]
    for key, runs in cells.items():
        for run in runs:
            rate = f"{run.rate[0]:.0%} ({run.rate[1].low:.0%} to {run.rate[1].high:.0%})" if run.rate else "-"
            time = "-"
            if run.step_ms is not None:
                mean, interval = run.step_ms
                time = f"{mean:.4g}" + (f" ({interval.low:.4g} to {interval.high:.4g})" if interval.low else "")
            name = key.label if run is runs[0] else ""
            failed = f"{run.failures} of {run.counted}"
            rows.append([name, run.began[:16].replace("T", " "), failed, rate, time, "; ".join(run.changes)])
    click.echo("\n".join(columns(rows)))
    try:
        write_text(output, picture(cells))
    except OSError as error:
        raise RequestError(f"{output} cannot be written: {error.strerror}") from None
    click.echo(f"picture: {output}")


def _check_conditions(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    conditions = tuple(word.strip() for value in values for word in value.split(","))
    for word in conditions:
        if word not in CONDITIONS:
            raise click.BadParameter(f"{word!r} is not one of {', '.join(CONDITIONS)}")
    return conditions


@click.command("compare")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object; docs/guides/compare.md has its keys.")
@click.option(
    "--fail-on",
    multiple=True,
    callback=_check_conditions,
    metavar="WHAT[,WHAT]",
    help=f"Exit with code 1 if any cell is: {', '.join(CONDITIONS)}.",
)
@click.option(
    "--margin",
    callback=_read_by(margin),
    default=str(MARGIN),
    show_default=True,
    metavar="P",
    help="What is no change: 50% of A's failure rate, a difference of 0.1, or 50%,0.1 for both.",
)
@_speed_margin_option
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
    """Compares failure rates and step times of the cells that both have, with the statistics of a run's table, and
    lists the differences of their environments. A and B may also be folders of workloads, or earlier runs in .history.
    """
    comparison = compare_runs(a, b, margin, SPEED_MARGIN if speed_margin is None else speed_margin)
    if as_json:
        click.echo(json.dumps(comparison_data(comparison), indent=1, allow_nan=False))
    else:
        click.echo("\n".join(_comparison_lines(comparison, None if everything else 20)))
    failed = [line for what in fail_on for line in _failed_conditions(comparison, what)]
    for line in failed:
        click.secho(line, err=True, fg="red")
    if failed:
        raise click.exceptions.Exit(1)


def _comparison_lines(comparison: RunComparison, most: int | None) -> Iterator[str]:
    """The whole text; of each list of differences at most so many, ``None`` for all."""
    cells = comparison.cells
    sides = (("A", comparison.a, comparison.only_a), ("B", comparison.b, comparison.only_b))
    rows = []
    for name, side, _ in sides:
        size = f"{counted(side.trials, 'trial')} in {counted(len(side.cells), 'cell')}"
        hosts = side.hosts[0] if len(side.hosts) == 1 else counted(len(side.hosts), "host") if side.hosts else ""
        rows.append((name, str(side.results.path), size, next(iter(side.times), "")[:16].replace("T", " "), hosts))
    yield from columns(rows)
    for name, side, _ in sides:
        if unreadable := side.results.unreadable:
            yield click.style(f"{name}: {counted(len(unreadable), 'file')} could not be read", fg="yellow")
            for text in first_names([f"{each.file}: {each.reason}" for each in unreadable], _MOST_FILES):
                yield f"  {one_line(text)}"
        if side.results.replays:
            yield f"{name}: {counted(side.results.replays, 'replay')} left out"
        yield from (one_line(f"{name}: {text}") for text in run_again_by_outcome(side.results.folder, side.facts))
    if comparison.matched_across_environments:
        yield "The environments have other names: cells are matched by their mitigations."
    yield ""
    yield from _table(cells)
    if comparison.factor is not None:
        yield comparison.factor.sentence
    yield from comparison.clocks
    if any(change.more_trials is not None for change in cells):
        yield "~N more: about so many more trials, in A and in B, would decide"
    for change in cells:
        if change.kind == "not compared":
            outcomes = f"A: {_outcomes(change.a)}; B: {_outcomes(change.b)}"
            yield one_line(f"{change.label}: no trial says anything about the workload; {outcomes}")
    new = [f"{change.label}: {_signature(each)}" for change in cells for each in change.new_signatures]
    yield from _titled("fails in new ways in B", new)
    gone = [f"{change.label}: {_signature(each)}" for change in cells for each in change.gone_signatures]
    yield from _titled("ways to fail that are gone in B", gone)
    for name, _, only in sides:
        yield from _titled(f"only in {name}", [f"{cell.key.label}: {_outcomes(cell)}" for cell in only])
    of_all = f"differs in the environment{' of all cells' if len(cells) > 1 else ''}"
    lists = [(of_all, comparison.shared)] if cells else []
    for names, differences in comparison.particular:
        lists.append((f"differs only for {', '.join(first_names(names, _MOST_NAMES))}", differences))
    for title, differences in lists:
        left_out = 0 if most is None else len(differences) - most
        more = [f"and {left_out} more (--all)"] if left_out > 0 else []
        yield from _titled(title, [*map(str, differences[:most]), *more])
    if not any(differences for _, differences in lists):
        yield from ("", "No difference in what is recorded of the environments.")
    computed = []  # of trials of both with hashes of the collector ``divergence``
    for change in cells:
        pairs = ((change.a, comparison.a), (change.b, comparison.b))
        a, b = ([side.results.folder / file for file in cell.files] for cell, side in pairs)
        if sentence := compare_recorded(a, b):
            computed.append(f"{change.label}: {sentence}")
    yield from _titled("what is computed, by hashes of every step", computed)


def _table(changes: Sequence[CellChange]) -> Iterator[str]:
    """One line for each cell; the heading of their names is the workload where all have the same."""
    shown = [column for column in COLUMNS if column.title]
    workloads = {change.b.key.workload for change in changes}
    heading, names = "cell", [change.label for change in changes]
    if len(workloads) == 1 and not any(change.b.key.test for change in changes):
        (heading,) = workloads
        names = [name.removeprefix(heading).strip() for name in names]
    rows = [[heading, *(column.title for column in shown)]]
    rows += [[name, *(column.text_of(change) for column in shown)] for name, change in zip(names, changes, strict=True)]
    first, *lines = columns(rows, range(1, len(shown)))
    yield first
    for line, change in zip(lines, changes, strict=True):
        color = next((color for kind, color in _COLORS.items() if kind in (change.kind, change.speed.kind)), None)
        yield line.removesuffix(change.verdict) + click.style(change.verdict, fg=color)


def _failed_conditions(comparison: RunComparison, what: str) -> Iterator[str]:
    """One line for each cell that a condition of ``--fail-on`` holds for."""
    if what == "all-slower" and comparison.factor is not None and comparison.factor.ratio > 1:
        yield f"{what}: {comparison.factor.sentence}"
    for change in comparison.cells:
        kinds = (change.kind.replace(" ", "-"), change.speed.kind, "new-signature" if change.new_signatures else "")
        if what not in kinds:
            continue
        if what == "other-failures":
            text = "; ".join(f"{way.text} {way.before} -> {way.after}" for way in change.changed_ways)
        elif what == "new-signature":
            text = "; ".join(map(_signature, change.new_signatures))
        elif what == "slower":
            text = f"steps {change.speed.change}"
        else:
            text = f"{change.a.failures}/{change.a.counted} -> {change.b.failures}/{change.b.counted} failed"
            text += "" if change.rate is None else f", p {p_value(change.rate.p_adjusted)}"
        yield f"{what}: {one_line(change.label)} ({text})"
    for cell in comparison.only_a if what == "not-compared" else ():
        yield f"{what}: {one_line(cell.key.label)} (only in A)"


def _outcomes(cell: CellStatistics) -> str:
    return ", ".join(f"{len(trials)} {outcome}" for outcome, trials in cell.trials.items() if trials)


def _signature(count: SignatureCount) -> str:
    return one_line(f"{len(count.trials)}x {count.signature.text}")


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    """A heading and what is below it; nothing without that."""
    shown = [f"  {one_line(line)}" for line in lines]
    return ["", click.style(one_line(title), bold=True), *shown] if shown else []
