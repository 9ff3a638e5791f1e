"""``pytest-aorta minimize``: the smallest part of a mitigation set that still fixes."""

from __future__ import annotations

import click

from pytest_aorta.settings import BY_NAME


@click.command("minimize", context_settings={"ignore_unknown_options": True})
@click.argument("mitigations", metavar="A,B")
@click.option("--max-trials", metavar="N", help=f"All trials together (default {BY_NAME['max-trials'].default}).")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF PYTEST]...")
@click.pass_context
def minimize(ctx: click.Context, mitigations: str, max_trials: str | None, arguments: tuple[str, ...]) -> None:
    """Find the smallest part of the mitigation set A,B that still fixes, by delta debugging.

    pytest runs the trials: pytest-aorta minimize four --aorta-workload gemm. The baseline is --aorta-mitigations.
    """
    import pytest

    from pytest_aorta.plugin.options import CommandSettings

    settings = CommandSettings(minimize=mitigations, max_trials=max_trials)
    ctx.exit(int(pytest.main(list(arguments), plugins=[settings])))
