"""``--aorta-report``: the report of a run, checked before its first trial and written after its last."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from pytest_aorta.plugin.run import Run
    from pytest_aorta.triage.verdicts import TriageSettings


def report_path(run: Run) -> Path | None:
    """The file that was asked for."""
    return None if run.selection.report is None else run.config.invocation_params.dir / run.selection.report


def check_report(run: Run) -> None:
    """Refuse, before hours of trials, what would keep their report from being written.

    Raises:
        RequestError: saying what would help.
    """
    output = report_path(run)
    if output is None:
        return
    from pytest_aorta.triage.report import check_libraries, check_output

    try:
        check_libraries()
        check_output(output)
    except RequestError as error:
        raise RequestError(f"--aorta-report {run.selection.report}: {error}") from None


def write_run_report(run: Run, settings: TriageSettings) -> str:
    """Write the report on all trials in the results directory; why that has failed, empty where it has not.

    Whatever goes wrong here, the results are there.
    """
    output = report_path(run)
    assert output is not None
    try:
        from pytest_aorta.triage.report import write_report

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries, which -W error would make errors
            write_report(run.results, output, settings=settings)
    except RequestError as error:
        return f"report {output}: {error}"
    except Exception as error:
        again = shlex.join(["pytest-aorta", "report", str(run.results), "-o", str(output)])
        return f"report {output}: {type(error).__name__}: {error}; try again with: {again}"
    return ""
