"""Which trials of a plan are named on the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_aorta.plugin.items.unimported_module import place_of
from pytest_aorta.plugin.options import is_typed
from pytest_aorta.plugin.xdist_roles import decisions_of_controller

if TYPE_CHECKING:
    from pytest_aorta.plugin.run import Run
    from pytest_aorta.trials.spec import TrialSpec

#: Node id of the collector of ``--aorta-workload``.
ROOT = "aorta"


def choose(config: pytest.Config, run: Run, trials: Mapping[str, TrialSpec], root: str = ROOT) -> None:
    """Find out which of these ``trials``, by name, are chosen; only they, and given paths, are collected.

    Those of the ini file stand in the project as its tests do: beside what pytest collects without arguments, and in
    the folders that are given.

    Raises:
        pytest.UsageError: there is no trial of a name on the command line.
    """
    decided = decisions_of_controller(config)
    paths: list[str] = []
    run.chosen = set()
    if "chosen" in decided:
        paths = decided["paths"]
        run.chosen = None if decided["chosen"] is None else set(decided["chosen"])
    elif config.args_source is pytest.Config.ArgsSource.ARGS:
        paths, run.chosen = split_arguments(config, trials, root)
        if paths and not is_typed(config):
            run.chosen = run.chosen | _below(config, trials, paths, root) or None
    elif not is_typed(config):
        paths = config.args
    unknown = (run.chosen or set()) - set(trials)
    if unknown:
        examples = ", ".join(list(trials)[:3])
        raise pytest.UsageError(f"no such trial: {', '.join(sorted(unknown))}; the plan has {examples}, ...")
    if run.chosen is None:
        run.runner.plans.clear()
    config.args = paths


def _below(config: pytest.Config, trials: Mapping[str, TrialSpec], paths: list[str], root: str) -> set[str]:
    """The trials that stand in these folders, as tests do: a project's workloads are not those of each of its tests."""
    folders = [path for path in ((config.invocation_params.dir / path).resolve() for path in paths) if path.is_dir()]
    places: dict[str, Path] = {}
    for trial in trials.values():
        target = trial.workload.target
        if target not in places:
            places[target] = place_of(config, root, target).resolve()
    return {name for name, trial in trials.items() if {*folders} & {*places[trial.workload.target].parents}}


def split_arguments(
    config: pytest.Config, trials: Mapping[str, TrialSpec], root: str = ROOT
) -> tuple[list[str], set[str]]:
    """Command line arguments that are paths, and names of ``trials`` among them.

    A trial may be named by ``NAME``, as ``::NAME``, by its node id ``root::NAME``, by that as pytest prints it in a
    folder below the root directory (``../root::NAME``), and by the path of its item (``/folder/gemm.py::NAME``), which
    is how IDEs do it. Without its brackets, a name stands for all trials of the workload.
    """
    by_workload: dict[str, list[str]] = {}
    for name in trials:
        by_workload.setdefault(name.partition("[")[0], []).append(name)

    def leads_to_trials(prefix: str, siblings: list[str]) -> bool:
        path = os.path.realpath(config.invocation_params.dir / prefix)
        places = [config.rootpath / root]
        places += [place_of(config, root, trials[name].workload.target) for name in siblings[:1]]
        return path in map(os.path.realpath, places)

    paths, chosen = [], set()
    for argument in config.args:
        prefix, separator, name = argument.rpartition("::")
        siblings = by_workload.get(name.partition("[")[0], [])
        if Path(argument).exists():
            paths.append(argument)
        elif (
            (not separator and siblings and name.endswith("]"))
            or (separator and prefix in (root, ""))
            or (separator and leads_to_trials(prefix, siblings))
        ):
            chosen.update(siblings if name in by_workload else [name])
        else:
            paths.append(argument)
    return paths, chosen
