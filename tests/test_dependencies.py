"""What a plain ``pip install .`` brings is what the package imports."""

from __future__ import annotations

import ast
import json
import re
import sys
import venv
from pathlib import Path

import pytest
from support.fake_distributions import write_distribution
from support.pip_environments import copy_of_this_project, pip

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="reads pyproject.toml")

ROOT = Path(__file__).parents[1]

#: Which bring what only some users import.
EXTRAS = ("sweeps", "psij")

#: Plugins of pytest that runs take part in; nothing of them is imported, for a user may disable them.
PLUGINS = {"pytest_timeout", "pytest_xdist"}

#: Distributions whose module has another name.
MODULES = {"nvidia_ml_py": "pynvml", "pyyaml": "yaml", "psij_python": "psij"}


def imported() -> set[str]:
    """Top-level modules of all imports, lazy ones and those for types included."""
    found = set()
    for folder in ("pytest_aorta", "workloads"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                found |= {name.partition(".")[0] for name in names}
    return found


def declared(extra: str | None = None) -> set[str]:
    """Modules that a plain install brings, or that an extra adds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    names = [re.split(r"[^\w-]", line)[0].replace("-", "_") for line in lines]
    return {MODULES.get(name, name) for name in names}


def test_what_is_declared_is_what_is_imported() -> None:
    # The last one is the standard library's from 3.11 on.
    own = {"pytest_aorta", "aorta_workloads", *sys.stdlib_module_names, "tomllib"}
    assert {module.removeprefix("_") for module in imported() - own} - set().union(
        *map(declared, EXTRAS)
    ) == declared() - PLUGINS


@pytest.mark.slow
@pytest.mark.long
def test_a_torch_that_is_there_is_left_alone(pytester: pytest.Pytester) -> None:
    """A stand-in for a ROCm build of torch, which no index here has: metadata are all that pip looks at."""
    folder = pytester.path
    venv.create(folder / "venv", with_pip=True)
    [site] = (folder / "venv").glob("lib/python*/site-packages")
    write_distribution(site, "torch", {}, version="2.9.1+rocm6.4")
    constraints = ROOT / "constraints.txt"

    assert "torch" not in would_install(folder)
    # What the page says not to do: of constraints.txt, the version of torch counts as well.
    assert would_install(folder, "-c", str(constraints))["torch"].startswith("2.13")
    without = "".join(line for line in constraints.open() if not line.startswith("torch=="))
    (folder / "others.txt").write_text(without)
    found = would_install(folder, "-c", "others.txt")
    assert "torch" not in found
    assert found["pydantic"] == re.search(r"^pydantic==(.*)$", without, re.MULTILINE)[1]  # type: ignore[index]


def would_install(folder: Path, *options: str) -> dict[str, str]:
    """Name -> version of what ``pip install .`` of a copy of this project would install."""
    project, report = folder / "project", folder / "report.json"
    if not project.exists():
        copy_of_this_project(project)
    pip(folder / "venv/bin/python", "install", "--dry-run", "--report", str(report), *options, str(project), cwd=folder)
    return {
        entry["metadata"]["name"].lower(): entry["metadata"]["version"]
        for entry in json.loads(report.read_text())["install"]
    }
