"""Checks before the first trial: refuses anything that would prevent every trial of a cell."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_aorta.common.texts import counted, printable
from pytest_aorta.launch.launch_mode import check_tasks, under_launcher
from pytest_aorta.plan import Plan, Selection
from pytest_aorta.plugin import is_controller
from pytest_aorta.plugin.collection import plan_of_file
from pytest_aorta.plugin.run import SessionRun, current_run, deadline_of, end_in_order_when_terminated, run_of
from pytest_aorta.plugin.trial_item import TrialItem
from pytest_aorta.plugin.workload_files import workload_facts
from pytest_aorta.settings import RequestError, shown_command
from pytest_aorta.triage.gates import check_gates
from pytest_aorta.triage.verdicts import check_baseline
from pytest_aorta.trial_runner import check_resources, check_results
from pytest_aorta.trials.command_line import command_words, placeholders_in, program_not_found
from pytest_aorta.trials.loading import check_names
from pytest_aorta.trials.output import OUTPUT_OPTIONS
from pytest_aorta.trials.spec import TrialSpec

#: Most reasons that are shown.
_MOST_REASONS = 6

#: Longest time, in seconds, that an import may hold up the trials of other slots.
_PATIENCE = 20.0


def check_trials(session: pytest.Session) -> None:
    """Check the options, the results directory, and one trial of every workload that is about to run."""
    config, run = session.config, current_run(session.config)
    mentioned, in_controller = run is not None and run.is_mentioned, is_controller(config)
    if run is not None and mentioned:  # also where trials are only started by tests
        _check_options(config, run)
        if run.selection.replays:  # what prevents a replay is in its record
            return
    if config.getoption("setuponly", False):
        return
    firsts: dict[object, TrialItem] = {}
    for item in getattr(session, "items", ()):  # of each action, or each workload that options and files ask for
        if isinstance(item, TrialItem):
            firsts.setdefault(item.spec.workload.target if item.trial_run.action is None else item.trial_run, item)
    specs = []
    for item in firsts.values():
        run, deadline = item.trial_run, deadline_of(item, item.spec)
        if run.action is None:
            specs.append((item.spec, deadline))
        else:
            end_in_order_when_terminated(config)
            check_resources(run.selection, option_text)
            check_results(run.selection, run.results, str(run.results))
            run.runner.check(replace(item.spec, collect=run.selection.collect), deadline)
    if in_controller and under_launcher():
        raise pytest.UsageError(
            "pytest is a rank of an outer launcher (WORLD_SIZE and RANK are set); run it without -n"
        )
    run = run_of(config) if in_controller or mentioned or specs else None
    if run is None:
        return
    selection, is_chosen = run.selection, bool(run.selection.workloads or run.selection.commands)
    # A controller has no items, and the check costs an import of the workload: only where an option was given that can
    # be wrong.
    can_be_wrong = selection.config or selection.steps or selection.execution.nproc or selection.resources.devices
    if in_controller and is_chosen and can_be_wrong:
        specs = list({spec.workload.target: (spec, None) for spec in reversed(run.plan.trials)}.values())
    if not (mentioned or specs):
        return
    plans = list(run.runner.plans)
    if in_controller:
        files = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
        for file in dict.fromkeys(file for file in files if workload_facts(file).workloads):
            with contextlib.suppress(RequestError):  # the workers report it
                plans.append(plan_of_file(file, selection, run.registry))
    _check_plans(session, selection, plans)
    if specs:
        check_results(selection, run.results, f"--aorta-results-dir {run.results}")
    elif in_controller and is_chosen:
        check_tasks(selection.results_dir, selection.execution.elastic)
    # Not when the first report comes: Ctrl-C within an import ends pytest with another error.
    import pytest_aorta.plugin.writer  # noqa: F401

    if not selection.has_own_table:  # which needs few of them
        _make_environments(session, plans)
    patience = _PATIENCE if selection.resources.total_slots > 1 else None
    # With collectors also where trials get them only when they are run again: after hours of trials, a missing tool is
    # too late.
    wanted = {selection.collect: None} | {each: None for plan in plans for each in plan.collectors}
    for spec, deadline in specs:
        for collect in wanted:
            run.runner.check(replace(spec, collect=collect), deadline, patience)
    for plan in plans:
        run.runner.store.sort_into_cells(plan.flat_cells)


def _make_environments(session: pytest.Session, plans: Sequence[Plan]) -> None:
    """Make environments of packages before a trial waits for them. Records have the failures as well."""
    from pytest_aorta.launch.inline import is_made, make

    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    wanted = {spec.environment.name: spec.environment for plan in plans for spec in plan.trials}
    for environment in wanted.values():
        if is_made(environment):
            continue
        if terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"aorta: making the environment {environment.name!r}, in {environment.venv}")
        if (problem := make(environment)) and terminal is not None:
            terminal.write_line(f"aorta: it cannot be made: {problem}", red=True)


def tell_what_is_kept(session: pytest.Session, run: SessionRun) -> None:
    """Print how many earlier results are kept, and why others are not.

    It leaves out tests, recipes, and items whose fixtures set variables; xdist workers look for themselves.
    """
    items = [item for item in session.items if isinstance(item, TrialItem) and item.trial_run is run]
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or run.action is not None or run.selection.execution.isolation == "none" or not items:
        return
    kept, reasons = 0, Counter[str]()
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs.get("aorta_extra_env", ())
        if definitions and definitions[-1].func.__module__ != "pytest_aorta.plugin.hooks":
            return
        paths = item.paths_of(item.spec)
        if not paths.file_in(run.results).exists():
            continue
        if run.runner.find(item.spec, paths, deadline_of(item, item.spec)) is not None:
            kept += 1
        else:
            reasons["; ".join(run.runner.store.not_kept.pop(paths, ())[:_MOST_REASONS])] += 1
    if kept or reasons:
        terminal.ensure_newline()
        terminal.write_line(f"aorta: --aorta-resume keeps {counted(kept, 'earlier result')} of {len(items)}")
    for reason, number in reasons.most_common(_MOST_REASONS):
        terminal.write_line(printable(f"aorta: {counted(number, 'earlier result')} not kept: {reason}"), yellow=True)


def option_text(name: str, value: object) -> str:
    return f"--aorta-{name} {value}"


def _check_options(config: pytest.Config, run: SessionRun) -> None:
    selection = run.selection
    end_in_order_when_terminated(config)
    check_resources(selection, option_text, parallel=is_controller(config))
    if selection.report is not None:  # before hours of trials
        from pytest_aorta.triage.report import check_output

        try:
            check_output(config.invocation_params.dir / selection.report)
        except RequestError as error:
            raise RequestError(f"--aorta-report {selection.report}: {error}") from None
    if selection.replays:
        check_results(selection, run.results, f"--aorta-results-dir {run.results}")
    elif not selection.commands and "command" not in selection.workloads:
        for name in (*set(OUTPUT_OPTIONS) - {"fail_on_nonfinite", "allow_nonfinite"}, "depends", "observe"):
            if getattr(config.option, f"aorta_{name}") is not None:
                flag = f"--aorta-{name.replace('_', '-')}"
                what = "" if name in ("depends", "observe") else "the output of "
                raise RequestError(f"{flag}: is about {what}a command; add --aorta-command 'CMD'")


def _check_plans(session: pytest.Session, selection: Selection, plans: Sequence[Plan]) -> None:
    """Check options that need neither a workload's import nor a folder."""
    cells: dict[tuple[str, str], TrialSpec] = {}
    for plan in plans:
        for spec in plan.trials:
            cells.setdefault((spec.workload.target, spec.cell), spec)
    names = [*selection.config, *([] if selection.steps is None else ["steps"])]
    for target in dict.fromkeys([target for target, _ in cells]) if names else ():
        check_names(target, names)
    for spec in cells.values() if selection.commands and not selection.resources.hosts else ():
        where = spec.environment
        elsewhere = where.docker or where.venv or where.launcher or where.commit
        command = spec.workload.options.get("command")
        if elsewhere or not isinstance(command, str):
            continue
        words = command_words(command)
        problem = program_not_found(words, spec.overlay.get("PATH", os.environ.get("PATH", os.defpath)))
        if problem is not None and not placeholders_in(words[:2]):
            raise RequestError(f"--aorta-command {shown_command(command)}: {problem}")
        if missing := [path for path in selection.depends if not os.path.exists(path)]:
            raise RequestError(f"--aorta-depends {missing[0]!r}: there is no such file or folder in {os.getcwd()}")
    if not cells or (selection.triage.baseline is None and not selection.gates):
        return
    known = [(spec.cell, spec.mitigations) for spec in cells.values()]
    if selection.triage.baseline is not None:
        check_baseline(selection.triage.baseline, known)
    others = (item for item in getattr(session, "items", ()) if not isinstance(item, TrialItem))
    has_marked_tests = any(item.get_closest_marker("aorta") is not None for item in others)
    if is_controller(session.config):
        has_marked_tests = bool(session.config.args)
    if selection.gates and not has_marked_tests:
        check_gates(selection.gates, known)
