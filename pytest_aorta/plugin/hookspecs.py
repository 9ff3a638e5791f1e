"""Hooks that other plugins implement. docs/reference/hooks.md shows one of each.

Each is called in the process that runs the trials: with ``pytest -n``, in the worker, but for ``pytest_aorta_verdict``
and ``pytest_aorta_report_section``, which are called once, where the table is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from pytest_aorta.triage import ReportSection
    from pytest_aorta.trials.result import Judgement, TrialResult
    from pytest_aorta.trials.spec import TrialSpec


def pytest_aorta_plan(config: pytest.Config, trials: Sequence[TrialSpec]) -> None:
    """The trials are collected, in running order, and none has begun."""


def pytest_aorta_trial_start(config: pytest.Config, spec: TrialSpec, folder: Path) -> None:
    """A slot is about to start a trial, whose artifacts will be in ``folder``. Called on the thread of the slot."""


def pytest_aorta_trial_result(config: pytest.Config, spec: TrialSpec, record: TrialResult) -> Judgement | None:
    """A trial has ended, and its record is not written yet: add metrics, or say why it has failed.

    Called on the thread of the slot; not for results that ``--aorta-resume`` keeps. What an implementation raises is a
    warning of the record.
    """


def pytest_aorta_verdict(config: pytest.Config, matrix: dict[str, Any]) -> None:
    """The table is final; ``matrix`` is the content of ``matrix.json``."""


def pytest_aorta_report_section(config: pytest.Config, results: Path) -> ReportSection | None:
    """``--aorta-report`` is about to be written: a section for it, of the results directory ``results``."""
