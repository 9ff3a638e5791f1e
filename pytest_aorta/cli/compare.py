"""``pytest-aorta compare``: two runs, or the same run on two machines."""

from __future__ import annotations

import json
from pathlib import Path

import click

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
    type=click.FloatRange(0, 1, min_open=True),
    default=0.1,
    show_default=True,
    help="Differences of the failure rate that are no change.",
)
@click.option("--all", "everything", is_flag=True, help="Do not cut long lists of differences.")
def compare(a: Path, b: Path, as_json: bool, fail_on: tuple[str, ...], margin: float, everything: bool) -> None:
    """Compare two results directories: B with A.

    Failure rates and step times of the cells that both have, by the statistics of the table of a run, and what differs
    in their environments. A and B may also be the folder of a workload, or an earlier run below .history.
    """
    from pytest_aorta.cli.comparison_text import comparison_lines, failed_conditions
    from pytest_aorta.triage.compare import compare_runs, comparison_as_plain

    comparison = compare_runs(a, b, margin)
    if as_json:
        click.echo(json.dumps(comparison_as_plain(comparison), indent=1, allow_nan=False))
    else:
        click.echo("\n".join(comparison_lines(comparison, None if everything else 20)))
    failed = [line for what in fail_on for line in failed_conditions(comparison, what)]
    for line in failed:
        click.secho(line, err=True, fg="red")
    if failed:
        click.get_current_context().exit(1)
