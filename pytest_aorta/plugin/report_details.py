"""What reports of other plugins show of a trial, by the ways that pytest and pytest-html have for it.

JUnit files, pytest-json-report and pytest-reportlog have the properties of the item; pytest's ``-rP``, allure and
pytest-html show sections; pytest-html alone has links and columns.
"""

from __future__ import annotations

import html
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.texts import printable, read_tail

if TYPE_CHECKING:
    import pytest

    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.workspace.paths import TrialPaths

#: Logs whose ends a passing trial's report has; a failing one's text has all of them.
_LOGS = ("stdout", "stderr")

#: Bytes from the end of a log that are attached to allure's report.
_ATTACHED = 65_536

#: Of pytest-html's table, after the result and the test.
_COLUMNS = ("Cell", "Status")
_PLACE = 2


def add_details(item: pytest.Item, record: TrialResult, results: Path, paths: TrialPaths) -> None:
    """Attach to an item what its last report is to say of its trial, which is over."""
    file = paths.file_in(results)
    artifacts = ", ".join(f"{name}={relative}" for name, relative in record.artifacts.items())
    properties = {"aorta_cell": record.cell, "aorta_trial_file": str(file), "aorta_artifacts": artifacts}
    item.user_properties += [(name, printable(text)) for name, text in properties.items() if text]
    if record.failure is None:
        from pytest_aorta.plugin.failure_text import tail_of

        for name in _LOGS:
            tail = tail_of(file.parent / record.artifacts[name]) if name in record.artifacts else []
            if tail:
                item.add_report_section("teardown", name, "\n".join(tail))

    if item.config.getoption("allure_report_dir", None):
        _add_to_allure(record, file.parent)


def _add_to_allure(record: TrialResult, folder: Path) -> None:
    """Labels and, of a trial that has failed, logs, by the functions that allure has for tests."""
    allure = importlib.import_module("allure")
    allure.dynamic.label("aorta_cell", printable(record.cell or ""))
    allure.dynamic.label("aorta_exit_status", record.exit_status)
    if record.failure is None:  # its report has sections
        return
    for name, relative in record.artifacts.items():
        if relative.endswith(".log") and (text := read_tail(folder / relative, _ATTACHED)):
            allure.attach(printable(text), name, allure.attachment_type.TEXT)


def links_of(report: pytest.TestReport) -> list[dict[str, Any]]:
    """The trial file and the artifacts as links of pytest-html: its ``extras.url()`` makes such dictionaries."""
    properties: dict[str, Any] = dict(report.user_properties)
    if "aorta_trial_file" not in properties:
        return []
    file = Path(properties["aorta_trial_file"])
    targets = {"trial file": file}
    for part in filter(None, properties.get("aorta_artifacts", "").split(", ")):
        name, _, relative = part.partition("=")
        targets[name] = file.parent / relative
    return [
        {"name": name, "format_type": "url", "content": path.as_uri(), "mime_type": None, "extension": None}
        for name, path in targets.items()
    ]


def html_header(cells: list[str]) -> None:
    """Add the heads of the columns to those of pytest-html."""
    cells[_PLACE:_PLACE] = [
        f'<th class="sortable col-{name.lower()}" data-column-type="{name.lower()}">{name}</th>' for name in _COLUMNS
    ]


def html_row(report: pytest.TestReport, status: str, cells: list[str]) -> None:
    """Add the columns to a row of pytest-html, empty for what is no trial."""
    properties: dict[str, Any] = dict(report.user_properties)
    texts = ("", "")
    if "aorta_trial_id" in properties:
        texts = (f"{properties['aorta_environment']}-{properties['aorta_mitigations']}", status)
    cells[_PLACE:_PLACE] = [
        f'<td class="col-{name.lower()}">{html.escape(printable(text))}</td>'
        for name, text in zip(_COLUMNS, texts, strict=True)
    ]
