"""Turns plans into pytest items, and selects the items to run."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.common.conditions import selected
from pytest_aorta.plan import Plan, PlanError, planned, trial_value
from pytest_aorta.plugin import decisions_of_controller
from pytest_aorta.plugin.options import is_typed
from pytest_aorta.plugin.run import SessionRun, run_of, trial_of_test
from pytest_aorta.plugin.trial_item import ModuleOf, UnimportedModule, items_of, modules_below, place_of
from pytest_aorta.plugin.workload_files import what_lacks, workload_facts
from pytest_aorta.registry import RegistryError, WorkloadEntry
from pytest_aorta.workflow.shards import shards_of
from pytest_aorta.workspace.paths import REPLAY

if TYPE_CHECKING:
    from pytest_aorta.common.conditions import Json
    from pytest_aorta.plan import Selection
    from pytest_aorta.registry import Registry
    from pytest_aorta.trials.spec import TrialSpec


#: Node id of the collector of ``--aorta-workload``.
ROOT = "aorta"


def choose(config: pytest.Config, run: SessionRun, trials: Mapping[str, TrialSpec], root: str = ROOT) -> None:
    """Find the chosen ones of these ``trials``, by name; pytest collects only them and the given paths.

    Trials of the ini file belong to the project as tests do: pytest collects them beside its test paths, and in given
    folders.
    """
    decided = decisions_of_controller(config)
    paths: list[str] = []
    run.chosen = set()
    if "chosen" in decided:
        paths = decided["paths"]
        run.chosen = None if decided["chosen"] is None else set(decided["chosen"])
    elif config.args_source is pytest.Config.ArgsSource.ARGS:
        paths, run.chosen = _split_arguments(config, trials, root)
        if paths and not is_typed(config):
            given = [(config.invocation_params.dir / path).resolve() for path in paths]
            folders = {path for path in given if path.is_dir()}
            targets = {trial.workload.target for trial in trials.values()}
            places = {target: place_of(config, root, target).resolve().parents for target in targets}
            below = {name for name, it in trials.items() if not folders.isdisjoint(places[it.workload.target])}
            run.chosen = run.chosen | below or None
    elif not is_typed(config):
        paths = config.args
    unknown = (run.chosen or set()) - set(trials)
    if unknown:
        examples = ", ".join(list(trials)[:3])
        raise pytest.UsageError(f"no such trial: {', '.join(sorted(unknown))}; the plan has {examples}, ...")
    if run.chosen is None:
        run.runner.plans.clear()
    config.args = paths


def _split_arguments(config: pytest.Config, trials: Mapping[str, TrialSpec], root: str) -> tuple[list[str], set[str]]:
    """Split the arguments of the command line into paths and names of ``trials``.

    A trial may be given as ``NAME``, ``::NAME``, its node id ``root::NAME``, its node id as pytest prints it below the
    root directory (``../root::NAME``), or, by IDEs, with the path of its item (``/folder/gemm.py::NAME``). A name
    without brackets stands for all trials of the workload.
    """
    by_workload: dict[str, list[str]] = {}
    for name in trials:
        by_workload.setdefault(name.partition("[")[0], []).append(name)
    paths, chosen = [], set()
    for argument in config.args:
        prefix, separator, name = argument.rpartition("::")
        siblings = by_workload.get(name.partition("[")[0], [])
        if Path(argument).exists():
            is_trial = False
        elif not separator:
            is_trial = bool(siblings) and name.endswith("]")
        else:
            places = [config.rootpath / root]
            places += [place_of(config, root, trials[sibling].workload.target) for sibling in siblings[:1]]
            path = os.path.realpath(config.invocation_params.dir / prefix)
            is_trial = prefix in (root, "") or path in map(os.path.realpath, places)
        if is_trial:
            chosen.update(siblings if name in by_workload else [name])
        else:
            paths.append(argument)
    return paths, chosen


class SelectedTrials(pytest.Collector):
    def collect(self) -> Iterable[pytest.Item]:
        run, module_of = run_of(self.config), modules_below(self)
        if run.selection.replays:
            from pytest_aorta.plugin.run_again import replay_items

            items_of_plan: list[pytest.Item] = list(replay_items(run, module_of))
        else:
            items_of_plan = _items(self, run.plan, module_of)
        items = [item for item in items_of_plan if not run.chosen or item.name in run.chosen]
        if not items:
            names = ", ".join(item.name for item in items_of_plan[:5])
            raise self.CollectError(f"no trial has the given name; there are {names}, ...")
        return items


class WorkloadFile(UnimportedModule):
    """A Python file with Workload classes, given as a path. Finds its classes without importing it."""

    def collect(self) -> Iterable[pytest.Item]:
        if not workload_facts(self.path).workloads:
            raise self.CollectError(f"no workload in {self.path.name}: {what_lacks(self.path)}")
        run = run_of(self.config)
        try:
            plan = plan_of_file(self.path, run.selection, run.registry)
            run.runner.add_plan(plan)
        except (RegistryError, PlanError) as error:
            raise self.CollectError(str(error)) from None
        return _items(self, plan, lambda spec: self)


def plan_of_file(path: Path, selection: Selection, registry: Registry) -> Plan:
    workloads, source = workload_facts(path).workloads, f"file:{path.name}"
    return planned([WorkloadEntry(name, f"{path}:{cls}", source) for name, cls in workloads], selection, registry)


def _items(collector: pytest.Collector, plan: Plan, module_of: ModuleOf) -> list[pytest.Item]:
    config, run = collector.config, run_of(collector.config)
    if (count := config.getoption("count", 1)) != 1 and config.pluginmanager.has_plugin("repeat"):
        raise collector.CollectError(
            f"--count {count} of pytest-repeat repeats test functions, and trials are none; "
            f"for {count} trials of every cell: --aorta-trials {count}"
        )
    if not run.selection.searches:
        return [*items_of(run, plan, module_of)]
    from pytest_aorta.plugin.search import search_items

    try:
        return list(search_items(plan, run, module_of))
    except PlanError as error:
        raise collector.CollectError(str(error)) from None


def selected_trials(session: pytest.Session, collected: list[Any], run: SessionRun) -> pytest.Collector:
    """The collector of trials that options ask for, below the directory in which pytest was started.

    So the conftest files of this directory apply. Their fixtures belong to the collector object of the directory
    (pytest 9.2) and appear when it is collected: use an object that was collected already, or collect new ones.
    """
    here, top = session.config.invocation_params.dir, session.config.rootpath
    below = [path for path in [here, *here.parents] if path == top or top in path.parents] or [top]
    known = {
        node.path: node
        for parent_node in collected
        for node in parent_node.listchain()
        if isinstance(node, pytest.Directory)
    }
    parent: Any = session
    for path in reversed(below):
        node = known.get(path)
        if node is None:
            node = parent.ihook.pytest_collect_directory(path=path, parent=parent)
            if node is None:
                break  # an ignored directory
            node.ihook.pytest_make_collect_report(collector=node)
        parent = node
    name = REPLAY if run.selection.replays else ROOT
    collector: SelectedTrials = SelectedTrials.from_parent(parent, name=name, nodeid=name)
    return collector


def select_items(config: pytest.Config, items: list[pytest.Item], run: SessionRun) -> None:
    """Deselect items of other shards, then items that do not meet the conditions of ``--aorta-where``."""
    kept = list(items)
    if run.selection.shard is not None:
        number, count = run.selection.shard
        keys: list[list[Hashable]] = [getattr(item, "shard_keys", list)() for item in kept]
        shards = shards_of([item.name for item in kept], keys, count)
        kept = [item for item, shard in zip(kept, shards, strict=True) if shard == number - 1]
        run.all_elsewhere = bool(items) and not kept
    if run.selection.where:
        # Against all: whether an element exists does not depend on the shard.
        valued: list[tuple[pytest.Item, Callable[[], Json]]] = []
        for item in items:
            if (trial := trial_of_test(item)) is not None:
                valued.append((item, partial(trial_value, trial)))
            else:
                valued += [(item, value) for value in getattr(item, "condition_values", list)()]
        fitting = {id(item) for item, _ in selected(valued, lambda it: it[1](), run.selection.where, "--aorta-where")}
        kept = [item for item in kept if id(item) in fitting]
    if len(kept) < len(items):
        left = {id(item) for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
        items[:] = kept
