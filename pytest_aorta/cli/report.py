"""``pytest-aorta report``: a results directory as one HTML file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from pytest_aorta.cli.shared import read_margin, speed_margin_option
from pytest_aorta.triage import Margin


@click.command("report")
@click.argument("results", type=click.Path(path_type=Path), default="results", metavar="[DIR]")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default="report.html", metavar="FILE", help="The HTML file."
)
@click.option("--baseline", metavar="CELL", help="What the others are compared with, as pytest's --aorta-baseline.")
@click.option(
    "--margin",
    callback=read_margin,
    metavar="P",
    help="What is no effect: 50% of the baseline's failure rate, a difference of 0.1, or 50%,0.1 for both.",
)
@speed_margin_option
@click.option("--markdown", is_flag=True, help="Print what a bug report needs, in Markdown, instead.")
def report(
    results: Path,
    output: Path,
    baseline: str | None,
    margin: Margin | None,
    speed_margin: float | None,
    markdown: bool,
) -> None:
    """Write a results directory (default: results) as one HTML file that needs nothing else.

    Without --baseline and margins, cells are judged as in the run itself.
    """
    from pytest_aorta.triage import TriageSettings
    from pytest_aorta.triage.matrix import EarlierMatrix
    from pytest_aorta.triage.report import Report, write_report

    settings = EarlierMatrix(results).settings or TriageSettings()
    if margin is not None:
        settings = replace(settings, margin=margin)
    if speed_margin is not None:
        settings = replace(settings, speed_margin=speed_margin)
    if markdown:
        click.echo(Report(results, settings, baseline).to_paste(), nl=False)
        return
    write_report(results, output, settings, baseline=baseline)
    click.echo(f"report: {output}")
