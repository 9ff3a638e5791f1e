"""What a release uploads: the wheel and the sdist, built once, looked into, and tried where nothing else of this is."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest
from support.pip_environments import ROOT, environ_without_this_run, run_module

from pytest_aorta import __version__

pytestmark = pytest.mark.slow

#: Of the sdist, besides the packages and what setuptools writes.
BESIDE = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "constraints.txt", "pyproject.toml", "setup.py"}

#: Loads what a wheel needs besides modules: templates, tables, schemas, scripts of child processes.
USE = """
import json, pathlib, sys
from importlib.metadata import version
from importlib.resources import files
import pytest_aorta
print(json.dumps({
    "from": pytest_aorta.__file__,
    "versions": [version("pytest-aorta"), pytest_aorta.__version__],
    "schemas": sorted(json.loads(each.read_text())["title"] for each in (files("pytest_aorta") / "schemas").iterdir()),
}))
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both; the wheel is built from the sdist, so that the sdist is complete."""
    folder = tmp_path_factory.mktemp("dist")
    done = _uv("build", "--out-dir", str(folder), str(ROOT))
    if "Failed to fetch" in done.stderr or "error sending request" in done.stderr:
        pytest.skip(f"the package index does not answer: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return folder


def _sources() -> set[str]:
    """All files of the packages, by their names in the checkout."""
    found = (path for name in ("pytest_aorta", "workloads") for path in (ROOT / name).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts}


def test_both_hold_the_packages_and_an_index_takes_them(dist: Path) -> None:
    wheel, sdist = dist / f"pytest_aorta-{__version__}-py3-none-any.whl", dist / f"pytest_aorta-{__version__}.tar.gz"
    with zipfile.ZipFile(wheel) as file:
        names, head = file.namelist(), f"pytest_aorta-{__version__}.dist-info/"
        metadata = Parser().parsestr(file.read(head + "METADATA").decode())
    packages = {name.replace("workloads/", "aorta_workloads/") if name[0] == "w" else name for name in _sources()}
    assert {name for name in names if not name.startswith(head)} == packages
    assert {"pytest_aorta/py.typed", "pytest_aorta/schemas/trial_result.schema.json"} < packages
    assert metadata["Version"] == __version__
    assert {line.partition(",")[0] for line in metadata.get_all("Project-URL", [])} >= {"Documentation", "Source"}

    with tarfile.open(sdist) as file:
        inside = {str(PurePosixPath(*PurePosixPath(each.name).parts[1:])) for each in file if each.isfile()}
    assert {name for name in inside if ".egg-info" not in name} - {"PKG-INFO", "setup.cfg"} == _sources() | BESIDE

    checked = run_module(Path(sys.executable), "twine", "check", "--strict", str(wheel), str(sdist))
    assert checked.returncode == 0, checked.stdout


def test_the_wheel_works_in_an_environment_and_a_directory_of_its_own(dist: Path, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    assert _uv("venv", "--python", sys.executable, str(tmp_path / "venv")).returncode == 0
    [site] = (tmp_path / "venv").glob("lib/python*/site-packages")
    # What it depends on is that of this run: after its own packages, and without the editable install of this run.
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
    assert _uv("pip", "install", "--python", str(python), "--no-deps", *map(str, dist.glob("*.whl"))).returncode == 0
    work = tmp_path / "work"
    work.mkdir()

    used = json.loads(_used(python, work))
    assert used["from"].startswith(str(site))
    assert used["versions"] == [__version__, __version__]
    assert used["schemas"] == ["Matrix", "TrialResult"]

    done = run_module(python, "pytest", "--aorta-workload=gemm", "--aorta-trials=2", "--aorta-report=r.html", cwd=work)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert (work / "r.html").stat().st_size > 10_000


def _uv(*words: str) -> subprocess.CompletedProcess[str]:
    return run_module(Path(sys.executable), "uv", *words, "--quiet")


def _used(python: Path, work: Path) -> str:
    return subprocess.run(
        [str(python), "-c", USE], cwd=work, env=environ_without_this_run(), capture_output=True, text=True, check=True
    ).stdout
