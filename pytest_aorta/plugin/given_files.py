"""Python files with workloads that were given as arguments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_aorta.common.import_target import module_file
from pytest_aorta.plugin.items.discovery import from_root, has_tests, has_workloads
from pytest_aorta.plugin.late_hooks import register_hooks


class GivenFiles:
    """Hooks that collect the Workload classes of files."""

    def __init__(self, files: set[Path]) -> None:
        self._files = files

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
        """A file that has Workload classes but no tests is not imported here."""
        return self._workloads(module_path, parent, with_tests=False)

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
        """The Workload classes of a test file; pytest collects its tests."""
        return self._workloads(file_path, parent, with_tests=True)

    def _workloads(self, path: Path, parent: pytest.Collector, *, with_tests: bool) -> pytest.Module | None:
        if path not in self._files or has_tests(path) != with_tests:
            return None
        from pytest_aorta.plugin.items.collection import WorkloadFile

        found: pytest.Module = WorkloadFile.of(parent, path)
        return found


def register_files(config: pytest.Config) -> None:
    """Collect the workloads of the files with some among the arguments, which are made such that pytest finds them."""
    here = str(config.invocation_params.dir)
    config.args = from_root(config.args, config.invocation_params.dir, config.rootpath)
    given = (_file(argument.partition("::")[0], here, pyargs=config.option.pyargs) for argument in config.args)
    if files := {Path(file) for file in given if file is not None and has_workloads(Path(file))}:
        config.pluginmanager.register(GivenFiles(files), "aorta_files")
        register_hooks(config)


def _file(argument: str, here: str, *, pyargs: bool) -> str | None:
    """The path as pytest has it: absolute, without ``..``, and not resolved."""
    path = os.path.normpath(os.path.join(here, argument))
    if pyargs and not os.path.exists(path):
        module = module_file(argument)
        return None if module is None else str(module)
    return path if path.endswith(".py") else None
