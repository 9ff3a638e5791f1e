"""A results directory as one HTML file that needs nothing else."""

from pytest_aorta.triage.report.libraries import ReportError, check_libraries
from pytest_aorta.triage.report.writing import check_output, write_report

__all__ = ["ReportError", "check_libraries", "check_output", "write_report"]
