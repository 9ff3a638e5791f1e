"""The hook that collects recipes, where there may be some."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_aorta.plugin.registration import register_hooks

#: Name of the plugin.
NAME = "aorta_recipes"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Recipes: ``aorta.toml`` and ``*.aorta.toml``, and Row's ``workflow.toml`` where it is given itself."""
    name = file_path.name
    if not name.endswith(".toml"):  # most are through here
        return None
    is_own = name == "aorta.toml" or name.endswith(".aorta.toml")
    if not is_own and not (name == "workflow.toml" and parent.session.isinitpath(file_path)):
        return None
    from pytest_aorta.plugin.recipes.items import RecipeFile

    register_hooks(parent.config, late=True)
    collector: RecipeFile = RecipeFile.from_parent(parent, path=file_path)
    return collector
