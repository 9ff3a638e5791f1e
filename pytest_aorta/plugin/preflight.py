"""Before the first trial: refuse what would prevent every trial of a cell."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest

from pytest_aorta.launch.launch_mode import EngineUnusable, LaunchModeError, under_launcher
from pytest_aorta.launch.nodes.addressing import is_multi_node
from pytest_aorta.plan import Plan, PlanError, Selection
from pytest_aorta.plugin.collection import plan_of_file
from pytest_aorta.plugin.deadlines import deadline_of
from pytest_aorta.plugin.discovery import workload_classes
from pytest_aorta.plugin.options import is_mentioned
from pytest_aorta.plugin.run import Run, run_of
from pytest_aorta.plugin.sigterm import end_in_order_when_terminated
from pytest_aorta.plugin.trial_item import TrialItem
from pytest_aorta.plugin.xdist_roles import is_controller
from pytest_aorta.registry import RegistryError
from pytest_aorta.trials.config import ConfigError
from pytest_aorta.trials.spec import TrialSpec

#: Seconds that an import may hold up the trials of other slots.
_PATIENCE = 20.0


def check_trials(session: pytest.Session) -> None:
    """Check the options, the results directory, and one trial of every workload that is about to run.

    Raises:
        pytest.UsageError: a wrong option, or a workload that cannot be launched this way.
    """
    config = session.config
    mentioned = is_mentioned(config)
    if mentioned:  # also where trials are only started by tests
        end_in_order_when_terminated(config)
        check_slots(config)
        check_devices(run_of(config).selection)
        check_nodes(config)
    specs = _specs_under_xdist(config) if is_controller(config) else _specs_of_items(session)
    if config.getoption("setuponly", False) or not (mentioned or specs):
        return
    run = run_of(config)
    if run.selection.resume:
        for plan in _plans(run):
            run.runner.store.move_grown(plan.cells)
    if specs:
        check_writable(run.results)
    # Not when the first report comes: Ctrl-C within an import ends pytest with another error.
    from pytest_aorta.plugin import terminal, writer  # noqa: F401

    for spec, deadline in {spec.workload.target: (spec, deadline) for spec, deadline in reversed(specs)}.values():
        try:
            run.runner.check(spec, deadline, _PATIENCE if run.selection.resources.total_slots > 1 else None)
        except (ConfigError, LaunchModeError, EngineUnusable) as error:
            raise pytest.UsageError(str(error)) from None


def _specs_of_items(session: pytest.Session) -> list[tuple[TrialSpec, float | None]]:
    """With the deadline of each."""
    items = session.items if hasattr(session, "items") else []
    return [(item.spec, deadline_of(item, item.spec)) for item in items if isinstance(item, TrialItem)]


def _specs_under_xdist(config: pytest.Config) -> list[tuple[TrialSpec, float | None]]:
    """What an xdist controller checks: it has no items, and the check costs it an import of the workload.

    So it checks only where an option that can be wrong was given.
    """
    if under_launcher():
        raise pytest.UsageError(
            "pytest is a rank of an outer launcher (WORLD_SIZE and RANK are set); run it without -n"
        )
    run = run_of(config)
    chosen = run.selection
    can_be_wrong = chosen.config or chosen.steps or chosen.execution.nproc or chosen.resources.devices
    return [(spec, None) for spec in run.plan.trials] if chosen.workloads and can_be_wrong else []


def _plans(run: Run) -> list[Plan]:
    """All plans; those of files are known to xdist's workers only, and are made again."""
    plans, config = list(run.runner.plans), run.config
    if is_controller(config):
        files = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
        for file in dict.fromkeys(file for file in files if workload_classes(file)):
            with contextlib.suppress(RegistryError, PlanError):  # the workers report it
                plans.append(plan_of_file(file, run.selection, run.registry))
    return plans


def check_slots(config: pytest.Config) -> None:
    """Refuse several slots or hosts where another tool runs trials side by side already.

    Raises:
        pytest.UsageError: naming both sides.
    """
    selection = run_of(config).selection
    resources = selection.resources
    if resources.own_cores and selection.execution.isolation == "none":
        raise pytest.UsageError(
            "--aorta-own-cores and --aorta-isolation none: a trial in pytest's own process has that process's cores"
        )
    if resources.total_slots == 1 and not resources.hosts:
        return
    option = "--aorta-host" if resources.hosts else f"--aorta-slots {resources.slots}"
    if is_controller(config):
        raise pytest.UsageError(f"{option} and -n both run trials side by side; use one of them")
    if under_launcher():
        raise pytest.UsageError(f"{option}: pytest is a rank of an outer launcher, and runs one trial at a time")


def check_devices(selection: Selection) -> None:
    """Refuse devices that are not there, or that cannot be leased.

    Raises:
        pytest.UsageError: naming the devices.
    """
    from pytest_aorta.runtime.resources.devices import choose_devices, devices_text, find_devices
    from pytest_aorta.runtime.resources.leases import LeaseError, Leases

    devices = selection.resources.devices
    if devices is None:
        return
    option = f"--aorta-devices {devices_text(devices)}"
    if selection.execution.isolation == "none":
        raise pytest.UsageError(
            f"{option} and --aorta-isolation none: a trial in pytest's own process has that process's devices"
        )
    if devices and under_launcher():
        raise pytest.UsageError(f"{option}: pytest is a rank of an outer launcher, which gives out the devices")
    if devices and not selection.resources.hosts:
        try:
            Leases(choose_devices(devices, find_devices()))
        except (ValueError, LeaseError, OSError) as error:
            raise pytest.UsageError(f"{option}: {error}") from None


def check_nodes(config: pytest.Config) -> None:
    """Refuse parallel trials of several nodes, whose pytest processes have to come to each trial at the same time.

    Raises:
        pytest.UsageError: naming the option that runs them in parallel.
    """
    selection = run_of(config).selection
    if is_multi_node(selection.execution.elastic):
        for given, option in ((is_controller(config), "-n"), (selection.resources.slots > 1, "--aorta-slots")):
            if given:
                raise pytest.UsageError(
                    f"--aorta-elastic nnodes: trials of several nodes run one at a time, without {option}"
                )


def check_writable(results: Path) -> None:
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
