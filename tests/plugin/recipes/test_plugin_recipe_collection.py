"""Where recipes are found: the names of files are compared only in sessions that may have some."""

from __future__ import annotations

import pytest
from support.stage import Stage

RECIPE = """
[[action]]
name = "greet"
command = "echo hello {directory} > workspace/{directory}/greeting"
products = ["greeting"]
"""


def make(stage: Stage, *recipes: str) -> None:
    stage.write_file("pytest.ini", "[pytest]")
    for name in recipes:
        file = stage.write_file(name, RECIPE)
        (file.parent / "workspace" / "a").mkdir(parents=True, exist_ok=True)


def collected(stage: Stage, *arguments: str) -> list[str]:
    """The files that pytest finds items in."""
    result = stage.run_here("--collect-only", "-q", *arguments)
    return sorted({line.partition("::")[0] for line in result.outlines if "::" in line})


@pytest.mark.parametrize("folder", ["", "deep/below/", "package/"])
def test_in_every_folder_that_is_collected(stage: Stage, folder: str) -> None:
    stage.write_file("package/__init__.py", "")
    stage.write_file("test_other.py", "def test_other(): pass")
    make(stage, f"{folder}aorta.toml", f"{folder}nightly.aorta.toml", f"{folder}workflow.toml")
    for name in ("xaorta.toml", "aorta.toml.old", "pyproject.toml"):
        stage.write_file(f"{folder}{name}", "")
    recipes = [f"{folder}aorta.toml", f"{folder}nightly.aorta.toml"]
    assert collected(stage) == sorted([*recipes, "test_other.py"])
    assert collected(stage, "test_other.py") == ["test_other.py"]
    assert collected(stage, "test_other.py", folder or ".") == sorted([*recipes, "test_other.py"])


def test_among_testpaths(stage: Stage) -> None:
    make(stage, "aorta.toml", "sub/workflow.toml")
    (stage.path / "pytest.ini").write_text("[pytest]\ntestpaths = sub/workflow.toml\n")
    assert collected(stage) == ["sub/workflow.toml"]
