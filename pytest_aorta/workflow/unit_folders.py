"""Where the units of actions lie on disk."""

from __future__ import annotations

from pathlib import Path

from pytest_aorta.workflow.actions import Action, Recipe
from pytest_aorta.workflow.cell_requests import Requests
from pytest_aorta.workflow.progress import matrix_before


def results_folder(matrix: Action, recipe: Recipe) -> Path:
    """The results directory of an action with a workload."""
    return recipe.directories / matrix.name


def unit_folder(action: Action, unit: str, recipe: Recipe, requests: Requests) -> Path:
    """The folder that a command works on: a directory of the workspace, or that of a trial, a cell, a matrix.

    The files of a matrix with one cell lie in the folder of the workload, as those of a plan do.
    """
    matrix = matrix_before(action, recipe)
    if matrix is None or action.table.each == "directory":
        return recipe.directories / unit
    results, cells = results_folder(matrix, recipe), requests[matrix.name]
    cell, _, trial = unit.partition("/")
    if not cell:
        return results
    workload, name = cells[cell].folder
    folder = results / workload / name if len(cells) > 1 else results / workload
    return folder / f"trial_{trial}" if trial else folder


def may_have_trial(results: Path, folder: tuple[str, str], trial: int) -> bool:
    """Whether there is a file of this number where the trial's would be: in the folder of its cell, or of its workload.

    Args:
        results: results directory.
        folder: those of workload and cell.
        trial: index in the cell.
    """
    workload, cell = folder
    name = f"trial_{trial}.json"
    return (results / workload / cell / name).exists() or (results / workload / name).exists()
