"""A test that has failed, and the trials that it has started: what has failed in them is shown with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_aorta.plugin.compat import add_reason, add_section
from pytest_aorta.plugin.failure_text import failure_text, printable, short_reason
from pytest_aorta.plugin.report_payload import PAYLOAD
from pytest_aorta.plugin.run import run_of

if TYPE_CHECKING:
    import pytest

#: Trials of one test that are shown in full.
_SHOWN = 3


def add_failed_trials(report: pytest.TestReport, item: pytest.Item) -> None:
    """Show the failed trials of a failed test as those of trial items are shown, the reason of the first one in the
    short summary as well."""
    failed = [trial for trial in item.stash[PAYLOAD].trials if trial.result["exit_status"] != "ok"]
    if not failed:
        return
    from pytest_aorta.trials.result import TrialResult

    records = [TrialResult.from_dict(trial.result) for trial in failed[:_SHOWN]]
    add_reason(report.longrepr, short_reason(records[0]))
    if item.config.option.tbstyle == "line":
        return
    results = run_of(item.config).results
    for trial, record in zip(failed, records, strict=False):
        title = printable(f"trial of {record.workload} in {record.cell}")
        add_section(report.longrepr, title, failure_text(record, results / trial.path, item))
    if len(failed) > _SHOWN:
        files = "\n".join(str(results / trial.path) for trial in failed[_SHOWN:])
        add_section(report.longrepr, f"{len(failed) - _SHOWN} more failed trials", printable(files))
