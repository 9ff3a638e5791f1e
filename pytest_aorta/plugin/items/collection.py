"""From plans to pytest items: trials of registered workloads, and of Workload classes in a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.plan import Plan, PlanError, planned
from pytest_aorta.plugin.items.chosen_trials import ROOT, choose
from pytest_aorta.plugin.items.discovery import workload_classes, workload_facts
from pytest_aorta.plugin.items.trial_item import items_of
from pytest_aorta.plugin.items.unimported_module import ModuleOf, UnimportedModule, WorkloadModules
from pytest_aorta.plugin.run import Run, run_of
from pytest_aorta.registry import RegistryError, WorkloadEntry

if TYPE_CHECKING:
    from pytest_aorta.plan import Selection
    from pytest_aorta.registry import Registry


class SelectedTrials(pytest.Collector):
    """Collector of the trials that the options select."""

    plan: Plan
    chosen: set[str]

    def collect(self) -> Iterable[pytest.Item]:
        """All trials, or those that were named on the command line."""
        items = [
            item
            for item in _items(self, self.plan, WorkloadModules(self).of)
            if not self.chosen or item.name in self.chosen
        ]
        if not items:
            names = ", ".join(spec.item_name for spec in self.plan.trials[:5])
            raise self.CollectError(f"no trial has the given name; there are {names}, ...")
        return items


def _items(collector: pytest.Collector, plan: Plan, module_of: ModuleOf) -> list[pytest.Item]:
    """The items of a plan: its trials, or what searches with them."""
    run = run_of(collector.config)
    if (count := collector.config.getoption("count", 1)) != 1 and collector.config.pluginmanager.has_plugin("repeat"):
        raise collector.CollectError(
            f"--count {count} of pytest-repeat repeats test functions, and trials are none; "
            f"for {count} trials of every cell: --aorta-trials {count}"
        )
    if not run.selection.minimize:
        return [*items_of(plan, module_of)]
    from pytest_aorta.plugin.items.minimize import minimize_items

    try:
        return list(minimize_items(plan, run, module_of))
    except PlanError as error:
        raise collector.CollectError(str(error)) from None


def select_trials(config: pytest.Config, run: Run) -> None:
    """Resolve the plan of ``--aorta-workload``; without paths on the command line, only its trials are collected.

    Raises:
        pytest.UsageError: no plan can be made, or it has no trial of a name on the command line.
    """
    try:
        plan = run.plan
    except (RegistryError, PlanError) as error:
        raise pytest.UsageError(str(error)) from None
    if run.selection.minimize:
        from pytest_aorta.plugin.items.minimize import name_of, wholes_of

        choose(config, run, {name_of(spec): spec for spec in wholes_of(plan, run.selection)})
        return
    choose(config, run, {spec.item_name: spec for spec in plan.trials})


def selected_trials(session: pytest.Session, collected: list[Any], run: Run) -> SelectedTrials:
    """The collector of the plan, placed in the directory that pytest was started in, so that its conftest applies."""
    parent = directory_of(session, collected)
    collector: SelectedTrials = SelectedTrials.from_parent(parent, name=ROOT, nodeid=ROOT)
    collector.plan, collector.chosen = run.plan, run.chosen or set()
    return collector


def directory_of(session: pytest.Session, collected: list[Any]) -> pytest.Collector:
    """The collector of the current directory: one that has been collected already, or a new chain down to it.

    Fixtures of a conftest belong to the collector object of its directory (pytest 9.2), and become visible when that
    is collected; so an existing one must be found, and a new one be collected.
    """
    here, top = session.config.invocation_params.dir, session.config.rootpath
    below = [path for path in [here, *here.parents] if path == top or top in path.parents] or [top]
    known = {node.path: node for found in collected for node in found.listchain() if isinstance(node, pytest.Directory)}
    final = {node for node in collected if isinstance(node, pytest.Directory)}
    parent: Any = session
    for path in reversed(below):
        node = known.get(path)
        if node is None:
            node = parent.ihook.pytest_collect_directory(path=path, parent=parent)
            if node is None:
                return parent  # type: ignore[no-any-return]  # an ignored directory
            node.ihook.pytest_make_collect_report(collector=node)
        parent = node
        if node in final:
            continue  # will be collected before our collector is
    return parent  # type: ignore[no-any-return]


class WorkloadFile(UnimportedModule):
    """A Python file with Workload classes, given as a path. Its classes are found without importing it."""

    def collect(self) -> Iterable[pytest.Item]:
        """The trials of all its classes."""
        facts = workload_facts(self.path)
        if not facts.workloads:
            lacking = ", ".join(f"{name} has no {method}()" for name, method in facts.incomplete.items())
            raise self.CollectError(f"no workload in {self.path.name}: {lacking}; a Workload has setup() and run()")
        run = run_of(self.config)
        try:
            plan = plan_of_file(self.path, run.selection, run.registry)
            run.runner.add_plan(plan)
        except (RegistryError, PlanError) as error:
            raise self.CollectError(str(error)) from None
        return _items(self, plan, lambda spec: self)


def plans_of(run: Run, base: str) -> list[Plan]:
    """The plan of a collector, by its node id; that of a file is known to xdist's workers only, and is made again."""
    if base == ROOT:
        return [run.plan]
    path = run.config.rootpath / base
    return [plan_of_file(path, run.selection, run.registry)] if workload_classes(path) else []


def plan_of_file(path: Path, selection: Selection, registry: Registry) -> Plan:
    """The trials of all Workload classes of a file."""
    entries = [
        WorkloadEntry(name=name, target=f"{path}:{cls}", source_package=f"file:{path.name}")
        for name, cls in workload_classes(path)
    ]
    return planned(entries, selection, registry)
