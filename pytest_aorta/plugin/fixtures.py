"""Fixtures for test authors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_aorta.plugin.ordinary_tests.marked_tests import MarkedTrial, RunTrial
    from pytest_aorta.plugin.ordinary_tests.torchrun_fixture import RunTorchrun
    from pytest_aorta.probe.snapshot import EnvSnapshot


@pytest.fixture
def aorta_extra_env() -> dict[str, str]:
    """Variables on top of all others for every trial. Override it in a conftest.py to set them there."""
    return {}


@pytest.fixture
def aorta_run(request: pytest.FixtureRequest, aorta_extra_env: dict[str, str]) -> RunTrial:
    """``aorta_run("gemm", steps=20, mitigations=["tf32_off"])`` runs one trial and returns its TrialResult.

    The trial's failure is in the result, not an exception. Every call leaves a trial file.
    """
    from pytest_aorta.plugin.late_hooks import register_hooks
    from pytest_aorta.plugin.ordinary_tests.marked_tests import RunTrial

    register_hooks(request.config, late=True)  # it may have been asked for by its name, when the test ran already
    return RunTrial(request.node, aorta_extra_env)


@pytest.fixture
def aorta_torchrun(aorta_run: RunTrial) -> RunTorchrun:
    """``aorta_torchrun("train.py", "--steps", "3", nproc=2, timeout=60)`` runs a script under torchrun.

    Returns a TorchrunResult: what the script does is in there, not an exception. Every call leaves a trial file.
    """
    from pytest_aorta.plugin.ordinary_tests.torchrun_fixture import RunTorchrun

    return RunTorchrun(aorta_run)


@pytest.fixture
def aorta_trial(request: pytest.FixtureRequest, aorta_run: RunTrial) -> MarkedTrial:
    """The trial that this item stands for: ``index``, ``environment``, ``mitigations``; call it to run a workload.

    The number of trials and the axes come from ``@pytest.mark.aorta(...)``, else from the options.
    """
    from pytest_aorta.plugin.ordinary_tests.marked_tests import MarkedTrial

    return MarkedTrial(request.param, aorta_run)


@pytest.fixture(scope="session")
def aorta_env() -> EnvSnapshot:
    """What pytest itself runs on, as trials record it."""
    from pytest_aorta.probe.collect import collect_env

    return collect_env()
