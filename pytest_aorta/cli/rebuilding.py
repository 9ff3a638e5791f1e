"""An index that is damaged, made again from what is on disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pytest_aorta.common.texts import one_line

if TYPE_CHECKING:
    from pytest_aorta.workflow.actions import Recipe
    from pytest_aorta.workflow.cell_requests import Requests
    from pytest_aorta.workspace.index.cache import Index


def warn_of_damage(recipe: Recipe, index: Index) -> None:
    """Name the files of an index that could not be read."""
    for name, reason in index.damaged.items():
        file = recipe.index / name if name == "index.json" else recipe.index / "staged" / name
        text = f"warning: {file} {reason}; results and products are looked for on disk, failed commands are forgotten"
        click.echo(one_line(text), err=True)


def rebuilt(recipe: Recipe, requests: Requests, directories: Sequence[str], index: Index) -> Index:
    """The index with all that a scan finds; it is written, where it can be."""
    from pytest_aorta.cli.scanning import Scan
    from pytest_aorta.workspace.index.cache import read_index
    from pytest_aorta.workspace.index.merging import completions_of, merge

    search = Scan(recipe, requests, directories, recipe.actions)
    search.run()
    try:
        merge(recipe.index, index, search.found)
    except OSError:
        known = completions_of(index)
        for key, completion in completions_of(search.found).items():
            if key not in known:
                index.add(completion)
        return index
    return read_index(recipe.index)
