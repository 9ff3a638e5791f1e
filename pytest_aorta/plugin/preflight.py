"""Before the first trial: refuse what would prevent every trial of a cell."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest

from pytest_aorta.launch.launch_mode import EngineUnusable, LaunchModeError, under_launcher
from pytest_aorta.launch.nodes.addressing import has_several
from pytest_aorta.plan import Plan, PlanError
from pytest_aorta.plugin.collection import TrialItem, plan_of_file
from pytest_aorta.plugin.discovery import workload_classes
from pytest_aorta.plugin.options import is_mentioned
from pytest_aorta.plugin.run import Run, run_of
from pytest_aorta.plugin.sigterm import end_in_order_when_terminated
from pytest_aorta.plugin.slot_options import check_slots, under_xdist
from pytest_aorta.registry import RegistryError
from pytest_aorta.trials.config import ConfigError
from pytest_aorta.trials.spec import TrialSpec


def check_trials(session: pytest.Session) -> None:
    """Check one trial of every workload that is about to run.

    Under xdist this process has no items and runs no trials; there, the check costs an import of the workload, and is
    made only when an option that can be wrong was given.

    Raises:
        pytest.UsageError: a wrong option, or a workload that cannot be launched this way.
    """
    config = session.config
    specs = [item.spec for item in session.items if isinstance(item, TrialItem)] if hasattr(session, "items") else []
    if is_mentioned(config):  # also where trials are only started by tests
        end_in_order_when_terminated(config)
        check_slots(config, run_of(config).selection)
    if is_mentioned(config):
        _check_nodes(config)
    if under_xdist(config):
        if under_launcher():
            raise pytest.UsageError(
                "pytest is a rank of an outer launcher (WORLD_SIZE and RANK are set); run it without -n"
            )
        run = run_of(config)
        chosen = run.selection
        if chosen.workloads and (chosen.config or chosen.steps or chosen.execution.nproc or chosen.resources.devices):
            specs = list(run.plan.trials)
    if config.getoption("setuponly", False):
        return
    if (specs or is_mentioned(config)) and run_of(config).selection.resume:
        from pytest_aorta.launch.resuming import move_what_has_grown

        move_what_has_grown(_plans(config), run_of(config).results)
    if not specs:
        return
    refuse_unwritable(run_of(config).results)
    for spec in {spec.workload.target: spec for spec in reversed(specs)}.values():
        try:
            check(run_of(config), spec)
        except (ConfigError, LaunchModeError, EngineUnusable) as error:
            raise pytest.UsageError(str(error)) from None


def _check_nodes(config: pytest.Config) -> None:
    """The pytest processes of several nodes have to come to the same trial at the same time."""
    selection = run_of(config).selection
    if not has_several(selection.execution.elastic):
        return
    for given, why in (
        (under_xdist(config), "-n"),
        (selection.resources.slots > 1, "--aorta-slots"),
    ):
        if given:
            raise pytest.UsageError(f"--aorta-elastic nnodes: trials of several nodes run one at a time, without {why}")


def _plans(config: pytest.Config) -> list[Plan]:
    """All plans; those of files are known to xdist's workers only, and are made again."""
    run = run_of(config)
    if not under_xdist(config):
        return run.plans
    plans = list(run.plans)
    files = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    for file in dict.fromkeys(file for file in files if workload_classes(file)):
        with contextlib.suppress(RegistryError, PlanError):  # the workers say so
            plans.append(plan_of_file(file, run.selection, run.registry))
    return plans


def check(run: Run, spec: TrialSpec) -> None:
    """Raise ``ConfigError``, ``LaunchModeError`` or ``EngineUnusable`` for what would prevent every trial of a cell."""
    if spec.execution.isolation == "none":
        from pytest_aorta.launch.inprocess import check_here

        check_here(spec)
    else:
        run.engine.check(spec)


def refuse_unwritable(results: Path) -> None:
    """Make the results directory, or say why it cannot be used.

    Raises:
        pytest.UsageError: it is not a directory that can be written to.
    """
    try:
        results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results):
            pass
    except OSError as error:
        raise pytest.UsageError(f"--aorta-results-dir {results}: cannot write there: {error.strerror}") from None
