"""The trial that an xdist worker has died of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.plugin.compat import longrepr_of
from pytest_aorta.plugin.items.trial_item import properties_of

if TYPE_CHECKING:
    import pytest

    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths


def describe_lost(report: pytest.TestReport, why: str, spec: TrialSpec, paths: TrialPaths, results: Path) -> None:
    """Turn xdist's report of a crash into that of a trial, which ends with an error.

    As that of a teardown, for it is the last one of its item: with xdist's own ``when``, which is ``???``, reporters
    that wait for the last one, such as pytest-html and JUnit's, would not show it at all.
    """
    file = paths.file_in(results)
    text = f"infrastructure_failed: {why} ({report.longrepr})\n\ntrial file: {file}"
    path = report.location[0]
    report.when = "teardown"
    report.location = (path, None, report.nodeid.partition("::")[2])
    report.longrepr = longrepr_of(text, path, None, f"{why} (infrastructure_failed)")
    report.user_properties = [
        *properties_of(spec),
        ("aorta_exit_status", "infrastructure_failed"),
        ("aorta_cell", spec.cell),
        ("aorta_trial_file", str(file)),
    ]
    report.keywords = {spec.item_name: 1, "aorta": 1}
