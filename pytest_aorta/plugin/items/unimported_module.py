"""Where trials stand in pytest's tree: below the module of their workload's class, which is not imported there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pluggy import HookRelay

from pytest_aorta.common.import_target import target_file
from pytest_aorta.plugin.items.discovery import definition_line
from pytest_aorta.trials.loading import module_name
from pytest_aorta.trials.spec import TrialSpec


class UnimportedModule(pytest.Module):
    """A file with workload classes, for all that asks an item for its module.

    That are fixtures of module scope, ``request.module``, other plugins and IDEs. Its ``obj`` has name and file of the
    module and nothing more: importing it would start what a trial has to start.
    """

    #: With the classes.
    file: Path

    @classmethod
    def of(cls, parent: pytest.Collector, file: Path, **place: Any) -> Any:
        """The node of a file; ``place``: its path, name and node id, where they are not those of the file."""
        node = cls.from_parent(parent, **{"path": file, **place})
        node.file = file
        node.obj = ModuleType(module_name(file)[0], "The module of a workload; pytest has not imported it.")
        node.obj.__file__ = str(file)
        return node

    def location_of(self, trial: TrialSpec) -> tuple[Path, int]:
        """File and line, from 0, of a trial's workload class; the file's first where it is not to be found."""
        return self.file, max(0, definition_line(self.file, trial.workload.target.rpartition(":")[2]) - 1)


#: Where a trial stands.
ModuleOf = Callable[[TrialSpec], UnimportedModule]


class WorkloadModule(UnimportedModule):
    """The module of registered workloads, wherever it is installed.

    Conftest files that apply to its trials are those of the directory in which pytest was started, and not its own.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.file.name}>"

    @property
    def ihook(self) -> HookRelay:
        """The hooks that apply to the collector of the plan."""
        assert self.parent is not None
        return self.parent.ihook

    def collect(self) -> Iterable[pytest.Item]:
        """Nothing: the collector of a plan has its trials in their order, which is not that of modules."""
        return ()


class WorkloadModules:
    """The modules of a plan's workloads, below the collector of the plan."""

    def __init__(self, collector: pytest.Collector) -> None:
        self._collector = collector
        self._of_targets: dict[str, WorkloadModule] = {}
        self._of_files: dict[Path, WorkloadModule] = {}

    def of(self, trial: TrialSpec) -> WorkloadModule:
        """The module of a trial's workload class."""
        target = trial.workload.target
        if target not in self._of_targets:
            place = place_of(self._collector.config, self._collector.name, target)
            file = target_file(target) or place
            if file not in self._of_files:
                # Node ids and what -k finds are those of the plan, wherever a workload is installed.
                name, nodeid = self._collector.name, self._collector.nodeid
                self._of_files[file] = WorkloadModule.of(self._collector, file, path=place, name=name, nodeid=nodeid)
            self._of_targets[target] = self._of_files[file]
        return self._of_targets[target]


def place_of(config: pytest.Config, root: str, target: str) -> Path:
    """The path that a workload's items have: its file, if that is below the root directory.

    IDEs make the ids of tests from their paths, and have pytest run them alone. From the path of a file elsewhere,
    pytest would not find the ini file. Such a workload stands in the ini file; without one, beside where it would be,
    in a file of the name ``root`` that does not exist.
    """
    file = target_file(target)
    for path in (file, config.inipath):
        if path is not None and config.rootpath in path.parents:
            return path
    return config.rootpath / root


def location_of(item: pytest.Item, trial: TrialSpec) -> tuple[Path, int]:
    """File and line, from 0, that lead from an item to the workload class of its trials."""
    assert isinstance(item.parent, UnimportedModule)
    return item.parent.location_of(trial)
