"""Trials count in ``pytest --cov``, however they are run: the lines covered are those of a plain script.

Slow, and in need of a package index: `pytest tests/downstream/test_coverage.py -m downstream`. The environment has this
environment's packages, and in addition pytest-cov; see docs/guides/coverage.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.pip_environments import environment_beside_this_run, run_module

pytestmark = pytest.mark.downstream

#: What docs/guides/coverage.md recommends.
CONFIGURATION = '[tool.coverage.run]\npatch = ["subprocess", "_exit", "fork"]\n'

LIBRARY = """
import os

AT_IMPORT = [index for index in range(3)]


def in_setup():
    os.chdir("/")  # a data file with a relative name would get lost
    return {}


def in_run(step):
    if step % 2:
        word = "odd"
    else:
        word = "even"
    return word


def of_variable(value):
    if value == "1":
        return "disabled"
    return "as the library has it"


def in_cleanup(state):
    state.clear()


def never():
    return "not covered"
"""

WORKLOAD = """
from my_package import library


class Steps:
    def __init__(self, options):
        self.options = options

    def setup(self):
        self.state = library.in_setup()

    def run(self):
        import os

        for step in range(3):
            library.in_run(step)
        library.of_variable(os.environ.get("DISABLE_TF32"))
        return {"passed": True}

    def cleanup(self):
        library.in_cleanup(self.state)
"""

#: The reference: no plugin, no fork, no child.
SCRIPT = """
from my_package.workload import Steps

trial = Steps({})
trial.setup()
trial.run()
trial.cleanup()
"""

Lines = dict[str, list[int]]


def _covered(report: Path) -> Lines:
    files = json.loads(report.read_text())["files"]
    return {name: file["executed_lines"] for name, file in files.items()}


def _make_project(folder: Path) -> Path:
    package = folder / "my_package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "library.py").write_text(LIBRARY)
    (package / "workload.py").write_text(WORKLOAD)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "pyproject.toml").write_text(CONFIGURATION)
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment_beside_this_run(tmp_path_factory.mktemp("environment"), "pytest-cov>=7", "coverage>=7.10")


@pytest.fixture(scope="module")
def reference(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    folder = _make_project(tmp_path_factory.mktemp("reference"))
    for value in ("0", "1"):
        words = ("coverage", "run", "--parallel", "--source=my_package", "script.py")
        assert run_module(python, *words, cwd=folder, DISABLE_TF32=value).returncode == 0
    for word in ("combine", "json"):
        assert run_module(python, "coverage", word, cwd=folder).returncode == 0
    return _covered(folder / "coverage.json")


@pytest.mark.parametrize(
    "how",
    [
        ("my_package/workload.py", "--aorta-isolation=fork"),
        ("my_package/workload.py", "--aorta-isolation=spawn"),
        ("my_package/workload.py", "--aorta-isolation=none"),
        ("my_package/workload.py", "--aorta-slots=2"),
        ("my_package/workload.py", "-n", "2"),
        ("--aorta-command={python} script.py",),
    ],
    ids=["fork", "spawn", "none", "slots", "xdist", "command"],
)
def test_trials_cover_what_a_plain_script_does(
    how: tuple[str, ...], python: Path, reference: Lines, tmp_path: Path
) -> None:
    folder = _make_project(tmp_path)
    cells = ("--aorta-trials=2", "--aorta-mitigations=none", "--aorta-mitigations=tf32_off")
    done = run_module(
        python,
        *("pytest", *(word.replace("{python}", str(python)) for word in how), *cells, "-p", "no:cacheprovider"),
        *("--cov=my_package", "--cov-report=json"),
        cwd=folder,
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    assert "Couldn't" not in done.stdout + done.stderr  # combine, or use, a data file
    assert _covered(folder / "coverage.json") == reference
    assert [path.name for path in folder.glob(".coverage*")] == [".coverage"]
