"""From a results directory to the file of a report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.triage.baselines import check_baseline
from pytest_aorta.triage.report.libraries import ReportError, check_libraries
from pytest_aorta.triage.report.safe_text import plain
from pytest_aorta.workspace.atomic import write_text

if TYPE_CHECKING:
    from pytest_aorta.triage.report.page import Page
    from pytest_aorta.triage.settings import TriageSettings


def check_output(output: Path) -> None:
    """Find out whether a report can be written to ``output``.

    Raises:
        ReportError: its folder does not exist, or cannot be written; it is a folder.
    """
    try:
        is_folder, has_folder = output.is_dir(), output.parent.is_dir()
    except (OSError, ValueError) as error:  # too long, a NUL in it
        raise ReportError(f"{str(output)[:200]!r} is no path of a file: {error}") from None
    if is_folder:
        raise ReportError(f"{output} is a folder; expected the path of an HTML file")
    if not has_folder:
        raise ReportError(f"the folder {output.parent} does not exist; expected the path of an HTML file in one")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise ReportError(f"the folder {output.parent} cannot be written")


def write_report(
    results: Path, output: Path, against: Path | None = None, settings: TriageSettings | None = None
) -> None:
    """Write one HTML file that needs nothing else; it is complete, or as it was before.

    Args:
        results: a results directory.
        output: the file.
        against: results of another run, to compare environments with.
        settings: of the verdicts; by default those of the last run, which its ``matrix.json`` has.

    Raises:
        RequestError: a library is missing; there are no trials; the baseline is no cell; the file cannot be written.
    """
    check_libraries()
    check_output(output)
    from pytest_aorta.triage.matrix.earlier import settings_of
    from pytest_aorta.triage.report.material import read_material
    from pytest_aorta.triage.report.page import page_of

    material = read_material(results, settings or settings_of(results))
    if settings is not None and settings.baseline is not None:
        cells = [(cell.key.cell, cell.mitigations) for cell in material.triage.cells]
        check_baseline(settings.baseline, cells, "--baseline")
    other = None if against is None else (str(against), read_material(against, settings))
    text = render(page_of(material, output, other))
    try:
        write_text(output, text)
    except OSError as error:
        raise ReportError(f"{output}: {error.strerror}") from None


def _shown(value: Any) -> Any:
    """A value of a template: whatever comes from a record does nothing but be seen. Markup is ours."""
    return plain(value) if type(value) is str else value


def render(page: Page) -> str:
    """The page as HTML."""
    import jinja2

    from pytest_aorta.triage import wording

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_aorta.triage.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
    )
    for name in ("percent", "rate_with_interval", "difference_with_interval", "p_value", "step_ms", "counted"):
        environment.filters[name] = getattr(wording, name)
    return environment.get_template("page.html.j2").render(page=page)
