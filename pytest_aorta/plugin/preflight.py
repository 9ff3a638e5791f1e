"""Before the first trial: refuse what would prevent every trial of a cell."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeGuard

import pytest

from pytest_aorta.launch.launch_mode import under_launcher
from pytest_aorta.launch.nodes import check_tasks
from pytest_aorta.plan import Plan, Selection
from pytest_aorta.plugin.collection import plan_of_file
from pytest_aorta.plugin.options import is_mentioned
from pytest_aorta.plugin.roles import is_controller
from pytest_aorta.plugin.run import Run, deadline_of, end_in_order_when_terminated, run_of
from pytest_aorta.plugin.trial_item import TrialItem
from pytest_aorta.plugin.workload_files import workload_classes
from pytest_aorta.plugin.writer import check_report
from pytest_aorta.request_checks import check_resources, check_results
from pytest_aorta.settings import RequestError, shown_command
from pytest_aorta.triage.gates import check_gates
from pytest_aorta.triage.verdicts import check_baseline
from pytest_aorta.trials.command_line import placeholders_in, program_not_found, words_of
from pytest_aorta.trials.loading import check_names
from pytest_aorta.trials.output import OUTPUT_OPTIONS
from pytest_aorta.trials.spec import TrialSpec

#: Seconds that an import may hold up the trials of other slots.
_PATIENCE = 20.0


def check_trials(session: pytest.Session) -> None:
    """Check the options, the results directory, and one trial of every workload that is about to run.

    Raises:
        RequestError: in the words of the check.
    """
    config = session.config
    mentioned = is_mentioned(config)
    if mentioned:  # also where trials are only started by tests
        selection = run_of(config).selection
        end_in_order_when_terminated(config)
        check_resources(selection, option_text, parallel=is_controller(config))
        check_report(run_of(config))
        _check_output_options(config, selection)
        if selection.replays:  # what prevents a replay is in its record
            _check_results(run_of(config))
            return
    if config.getoption("setuponly", False):
        return
    _check_recipes(session)
    specs = _specs_under_xdist(config) if is_controller(config) else _specs_of_items(session)
    if not (mentioned or specs):
        return
    run = run_of(config)
    plans = _plans(run)
    _check_plans(session, run, plans)
    if specs:
        _check_results(run)
    elif is_controller(config) and (run.selection.workloads or run.selection.commands):
        check_tasks(run.selection.results_dir, run.selection.execution.elastic)
    # Not when the first report comes: Ctrl-C within an import ends pytest with another error.
    import pytest_aorta.plugin.summary  # noqa: F401

    patience = _PATIENCE if run.selection.resources.total_slots > 1 else None
    for spec, deadline in {spec.workload.target: (spec, deadline) for spec, deadline in reversed(specs)}.values():
        run.runner.check(_with_collectors(spec, run), deadline, patience)
    for plan in plans:
        run.runner.store.sort_into_cells(plan.flat_cells)


def _with_collectors(spec: TrialSpec, run: Run) -> TrialSpec:
    """Also of trials that get them only when they are run again: after hours of trials, a missing tool is too late."""
    return replace(spec, collect=run.selection.collect)


def _check_plans(session: pytest.Session, run: Run, plans: Sequence[Plan]) -> None:
    """What can be known before a workload is imported, and a folder is made."""
    selection = run.selection
    cells = {(spec.workload.target, spec.cell): spec for plan in plans for spec in plan.trials}
    names = [*selection.config, *([] if selection.steps is None else ["steps"])]
    for target in {target for target, _ in cells}:
        check_names(target, names)
    if selection.commands and not selection.resources.hosts:
        _check_files(cells.values(), selection.depends)
    known = [(spec.cell, spec.mitigations) for spec in cells.values()]
    if known and selection.triage.baseline is not None:
        check_baseline(selection.triage.baseline, known)
    if known and selection.gates and not _has_marked_tests(session):
        check_gates(selection.gates, known)


def _check_files(cells: Iterable[TrialSpec], depends: Sequence[str]) -> None:
    for spec in cells:
        elsewhere = spec.environment.docker or spec.environment.venv or spec.environment.launcher
        command = spec.workload.options.get("command")
        if elsewhere or not isinstance(command, str):
            continue
        words = words_of(command)
        problem = program_not_found(words, spec.overlay.get("PATH", os.environ.get("PATH", os.defpath)))
        if problem is not None and not placeholders_in(words[:2]):
            raise RequestError(f"--aorta-command {shown_command(command)}: {problem}")
        if missing := [path for path in depends if not os.path.exists(path)]:
            raise RequestError(f"--aorta-depends {missing[0]!r}: there is no such file or folder in {os.getcwd()}")


def _check_recipes(session: pytest.Session) -> None:
    items = [item for item in getattr(session, "items", ()) if isinstance(item, TrialItem)]
    for item in {id(item.trial_run): item for item in reversed(items) if not _is_of_options(item)}.values():
        run = item.trial_run
        end_in_order_when_terminated(session.config)
        check_resources(run.selection, option_text)
        check_results(run.selection, run.results, str(run.results))
        run.runner.check(_with_collectors(item.spec, run), deadline_of(item, item.spec))


def _check_results(run: Run) -> None:
    check_results(run.selection, run.results, f"--aorta-results-dir {run.results}")


def _check_output_options(config: pytest.Config, selection: Selection) -> None:
    if selection.commands or selection.replays or "command" in selection.workloads:
        return
    for name in (*OUTPUT_OPTIONS, "depends"):
        if getattr(config.option, f"aorta_{name}") is not None:
            flag, what = f"--aorta-{name.replace('_', '-')}", "" if name == "depends" else "the output of "
            raise RequestError(f"{flag}: is about {what}a command; add --aorta-command 'CMD'")


def _has_marked_tests(session: pytest.Session) -> bool:
    if is_controller(session.config):
        return bool(session.config.args)
    return any(
        not isinstance(item, TrialItem) and item.get_closest_marker("aorta") is not None
        for item in getattr(session, "items", ())
    )


def option_text(name: str, value: object) -> str:
    return f"--aorta-{name} {value}"


def _specs_of_items(session: pytest.Session) -> list[tuple[TrialSpec, float | None]]:
    items = session.items if hasattr(session, "items") else []
    return [(item.spec, deadline_of(item, item.spec)) for item in items if _is_of_options(item)]


def _is_of_options(item: pytest.Item) -> TypeGuard[TrialItem]:
    return isinstance(item, TrialItem) and item.trial_run.action is None


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
    return [(spec, None) for spec in run.plan.trials] if (chosen.workloads or chosen.commands) and can_be_wrong else []


def _plans(run: Run) -> list[Plan]:
    plans, config = list(run.runner.plans), run.config
    if is_controller(config):
        files = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
        for file in dict.fromkeys(file for file in files if workload_classes(file)):
            with contextlib.suppress(RequestError):  # the workers report it
                plans.append(plan_of_file(file, run.selection, run.registry))
    return plans
