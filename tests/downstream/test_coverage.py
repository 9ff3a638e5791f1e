"""Trials count in ``pytest --cov``, however they are run: the lines covered are those of a plain script.

Slow, and in need of a package index: `pytest tests/downstream/test_coverage.py -m downstream`. The environment has this
environment's packages, and in addition pytest-cov; see docs/coverage.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from support.pip_environments import ROOT, environ_without_this_run, pip

pytestmark = pytest.mark.downstream

#: What docs/coverage.md recommends.
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


def _run(python: Path, *words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**environ_without_this_run(), **variables}
    command = [str(python), "-m", *words]
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


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
    """An interpreter that has what this one has, and pytest-cov."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    found = folder / "bin" / "python"
    pip(found, "install", "--no-deps", "pytest-cov>=7", "coverage>=7.10", "pluggy")
    purelib = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    ours = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    # Not PYTHONPATH: entry points and .pth files are looked for in folders of packages.
    lines = [f"import site; site.addsitedir({path!r})\n" for path in ours]
    (purelib / "packages_of_the_caller.pth").write_text("".join(lines))
    return found


@pytest.fixture(scope="module")
def reference(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """The covered lines of a script that does the same."""
    folder = _make_project(tmp_path_factory.mktemp("reference"))
    for variables in ({"DISABLE_TF32": "0"}, {"DISABLE_TF32": "1"}):
        _run(python, "coverage", "run", "--parallel", "--source=my_package", "script.py", cwd=folder, **variables)
    _run(python, "coverage", "combine", cwd=folder)
    _run(python, "coverage", "json", cwd=folder)
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
    done = _run(
        python,
        *("pytest", *(word.replace("{python}", str(python)) for word in how), *cells, "-p", "no:cacheprovider"),
        *("--cov=my_package", "--cov-report=json"),
        cwd=folder,
    )
    assert "4 passed" in done.stdout
    assert "Couldn't" not in done.stdout + done.stderr  # combine, or use, a data file
    assert _covered(folder / "coverage.json") == reference
    assert [path.name for path in folder.glob(".coverage*")] == [".coverage"]
