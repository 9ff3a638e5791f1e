"""The test suites of other pytest plugins have the same tests, and end the same, with and without pytest-aorta.

Slow, and in need of a package index: `pytest tests/downstream -m downstream`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.pip_environments import ROOT, copy_of_this_project, pip, run_module

pytestmark = pytest.mark.downstream

#: What each suite asks for in its own configuration, beside the plugin. Optional plugins are part of what they test.
SUITES = {
    "pytest-xdist": ("pytest-timeout", "filelock", "pexpect", "psutil", "pytest-cov", "setproctitle"),
    "pytest-timeout": ("pexpect", "pytest-cov", "pytest-xdist"),
    "pytest-rerunfailures": ("pytest-xdist",),
    "pytest-randomly": ("factory-boy", "faker", "numpy", "pytest-xdist"),
}

#: Installed for all; pytest-aorta, when it is unused, needs nothing else.
REQUIREMENTS = ("pytest", "pytest-xdist")

#: Names a checkout of a suite whose source archive has no tests, in the version that is installed.
CHECKOUT = "DOWNSTREAM_CHECKOUT_OF_"

#: How each test of a suite ended, by its node id; several words when both the test and its teardown have one.
Outcomes = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Side:
    """One of the two environments that are compared."""

    python: Path
    folder: Path

    def pytest(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run pytest there."""
        return run_module(self.python, "pytest", "-p", "no:cacheprovider", *arguments, cwd=cwd)

    def outcomes(self, suite: Path, *arguments: str) -> Outcomes:
        """Run a suite, or some tests of it; how each ended."""
        report = self.folder / "report.xml"
        # The old family of reports names the files, of which node ids are made.
        done = self.pytest("-o", "junit_family=xunit1", f"--junitxml={report}", *arguments, cwd=suite)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return _read_outcomes(report)

    def test_ids(self, suite: Path) -> set[str]:
        listed = self.pytest("--collect-only", "-q", "-q", "-o", "addopts=", cwd=suite).stdout
        return {line for line in listed.splitlines() if ".py" in line}


def _read_outcomes(report: Path) -> Outcomes:
    found: dict[str, list[str]] = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        file, name = case.attrib["file"], case.attrib["name"]
        module = file.removesuffix(".py").replace("/", ".")
        classes = case.attrib["classname"].removeprefix(module).strip(".")
        words = [child.get("type") or child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found["::".join([file, *classes.split("."), name] if classes else [file, name])] += words or ["passed"]
    return {node_id: tuple(sorted(words)) for node_id, words in found.items()}


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Side]:
    """Two equal environments, but that one has pytest-aorta."""
    constraints = ("-c", str(ROOT / "constraints.txt"))
    found = {}
    for name in ("without", "with"):
        folder = tmp_path_factory.mktemp(name)
        venv.create(folder / "venv", with_pip=True)
        side = found[name] = Side(folder / "venv" / "bin" / "python", folder)
        pip(side.python, "install", *constraints, *REQUIREMENTS)
    pip(side.python, "install", "--no-deps", str(copy_of_this_project(tmp_path_factory.mktemp("project"))))
    for name, side in found.items():
        options = side.pytest("--help", cwd=side.folder).stdout
        assert ("--aorta-workload" in options) == (name == "with")
    return found


def _source(name: str, folder: Path) -> Path:
    """A suite's source archive in the version of constraints.txt, unpacked."""
    pinned = re.search(rf"^{name}==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None, f"constraints.txt does not pin {name}"
    pip(Path(sys.executable), "download", "--no-binary", name, "--no-deps", "-d", str(folder), pinned[0])
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    if not any(source.glob("test*")):
        variable = CHECKOUT + name.upper().replace("-", "_")
        if variable not in os.environ:
            pytest.skip(f"the source archive of {name} has no tests; {variable} would name a checkout of {pinned[0]}")
        shutil.copytree(Path(os.environ[variable]) / "tests", source / "tests")
    return source


@pytest.mark.parametrize("name", SUITES)
def test_suite_ends_the_same_with_and_without_us(name: str, sides: dict[str, Side], tmp_path: Path) -> None:
    source = _source(name, tmp_path)
    installed = {name, *SUITES[name]} - {*REQUIREMENTS}
    suites = {}
    for key, side in sides.items():
        suites[key] = shutil.copytree(source, side.folder / name)
        pip(side.python, "install", "-c", str(ROOT / "constraints.txt"), *installed)
    try:
        # Without us, what has not passed has to end the same, and no other tests are found.
        found = {key: side.test_ids(suites[key]) for key, side in sides.items()}
        assert found["with"] == found["without"]
        beside = sides["with"].outcomes(suites["with"], "-n", "2")
        print(dict(Counter(" and ".join(words) for words in beside.values())))
        assert any(outcome == ("passed",) for outcome in beside.values())
        not_passed = [node_id for node_id, words in beside.items() if words != ("passed",)]
        # These suites time things: what failed once may have failed by chance.
        for _ in range(2):
            if not_passed:
                print("compared:", *not_passed)
                without, beside = (sides[key].outcomes(suites[key], *not_passed) for key in ("without", "with"))
                not_passed = sorted(node_id for node_id, _ in without.items() ^ beside.items())
        assert not not_passed
    finally:
        for side in sides.values():  # one suite's plugins are nothing that another one asks for
            pip(side.python, "uninstall", "--yes", *installed)
