"""What the command of an action begins with."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_aorta.clusters.tables import Launcher
from pytest_aorta.workflow.actions import Action
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.resources import Resources


def launcher_prefix(action: Action, directories: int, launchers: Mapping[str, Launcher], *, needs_one: bool) -> str:
    """The launchers of an action, in their order, with the numbers of a job over so many directories.

    Args:
        action: with the launchers.
        directories: of the job.
        launchers: what each of them says on the cluster.
        needs_one: whether one has to start the processes, where there are several.

    Raises:
        RecipeError: one is unknown, or not exactly one starts the processes where there are several.
    """
    names = action.table.launchers
    unknown = [name for name in names if name not in launchers]
    if unknown:
        known = ", ".join(launchers)
        raise RecipeError(f"action {action.name!r}: no launcher is called {unknown[0]!r}; there are {known}")
    starting = [name for name in names if launchers[name].processes is not None]
    processes = action.table.resources.total_processes(directories)
    if len(starting) > 1:
        raise RecipeError(f"action {action.name!r}: launchers {' and '.join(starting)} both start processes; use one")
    if needs_one and processes > 1 and not starting:
        raise RecipeError(
            f"action {action.name!r} has {processes} processes, and no launcher that starts them, such as mpi or srun"
        )
    return "".join(f"{_words(launchers[name], action.table.resources, directories)} " for name in names)


def _words(launcher: Launcher, resources: Resources, directories: int) -> str:
    numbers = (
        (launcher.processes, resources.total_processes(directories)),
        (launcher.threads_per_process, resources.threads_per_process),
        (launcher.gpus_per_process, resources.gpus_per_process),
    )
    words = [f"{text}{number}" for text, number in numbers if text is not None and number is not None]
    return " ".join([*([launcher.executable] if launcher.executable else []), *words])
