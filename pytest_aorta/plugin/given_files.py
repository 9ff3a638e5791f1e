"""Python files that were given as arguments: their workloads are collected; where there is none, it is said why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_aorta.common.import_target import module_file
from pytest_aorta.common.texts import one_line
from pytest_aorta.plugin.options import given_options, is_typed
from pytest_aorta.plugin.registration import register_hooks
from pytest_aorta.plugin.workload_files import AS_COMMAND, what_lacks, workload_classes, workload_facts


class GivenFiles:
    def __init__(self, files: set[Path]) -> None:
        self._files = files

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
        """Such a file is not imported here."""
        if module_path not in self._files:
            return None
        from pytest_aorta.plugin.collection import WorkloadFile  # a run without trials does not need it

        found: pytest.Module = WorkloadFile.of(parent, module_path)
        return found


def register_files(config: pytest.Config) -> None:
    """Collect the workloads of the files with some among the arguments, which are made such that pytest finds them.

    Also of a file that has nothing but incomplete workloads: to be asked for trials and to have none, with no word of
    why, is what a newcomer meets first.
    """
    here = config.invocation_params.dir
    config.args = [_from_root(argument, here, config.rootpath) for argument in config.args]
    files = set()
    for argument in config.args:
        file = _file(argument.partition("::")[0], str(here), pyargs=config.option.pyargs)
        if file is not None and ((facts := workload_facts(file)).workloads or facts.is_incomplete):
            files.add(file)
    if files:
        config.pluginmanager.register(GivenFiles(files), "aorta_files")
        register_hooks(config)


def _from_root(argument: str, here: Path, top: Path) -> str:
    """A command line argument, made absolute if it names a trial of a file relative to ``top``, and not to ``here``.

    As pytest writes node ids into reports, and into its cache, whatever directory it was started in.
    """
    file, _, name = argument.partition("::") if argument.endswith("]") else (argument, "", "")
    is_below = name and here != top and not (here / file).exists()
    return f"{top / file}::{name}" if is_below and workload_classes(top / file) else argument


def _file(argument: str, here: str, *, pyargs: bool) -> Path | None:
    path = os.path.normpath(os.path.join(here, argument))
    if pyargs and not os.path.exists(path):
        return module_file(argument)
    return Path(path) if path.endswith(".py") else None


# What is said of a run that has collected nothing


def lines_of_empty_run(terminal: pytest.TerminalReporter, status: int, config: pytest.Config) -> list[str]:
    """What to say of a run that has ended with such a status, and that has not come to its first item.

    One line for each file on the command line in which something is nearly a workload. Where an option of ours is on
    the command line, so that trials were wanted, also for files with nothing of the kind; and where nothing was named,
    what could be.
    """
    wanted = bool(given_options(config))
    given = [config.invocation_params.dir / str(argument).partition("::")[0] for argument in config.args]
    files = [file for file in given if file.suffix == ".py" and file.is_file()]
    if status != pytest.ExitCode.NO_TESTS_COLLECTED:
        errors = [report for report in terminal.stats.get("error", []) if isinstance(report, pytest.CollectReport)]
        failed = {config.rootpath / report.nodeid.partition("::")[0] for report in errors}
        scripts = [file for file in files if wanted and file in failed and workload_facts(file, always=True).is_script]
        return [one_line(f"{file.name}: {AS_COMMAND.format(file.name)}") for file in scripts]
    found = {file: what_lacks(file, wanted) for file in files}
    lines = [one_line(f"no workload in {file.name}: {text}") for file, text in found.items() if text]
    is_named = config.args_source == config.ArgsSource.ARGS or is_typed(config)
    if wanted and not is_named and not config.getini("aorta_workload") and not config.getini("aorta_command"):
        lines.append(
            "no trials: of what? --aorta-workload NAME (pytest-aorta list workloads has the names), "
            "--aorta-command 'python train.py', or a file with a workload or a recipe"
        )
    return lines
