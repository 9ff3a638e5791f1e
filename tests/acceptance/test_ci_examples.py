"""The CI files, those of ``examples/ci`` and our own, are valid; the commands of the examples do what they say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage
from support.workloads import SIMPLE

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "ci"

SCHEMAS = {
    "github-actions.yml": ["--builtin-schema", "vendor.github-workflows"],
    "gitlab-ci.yml": ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"],
}

RECIPE = """
[[action]]
name = "matrix"
workload = "plain"
trials = 2
mitigations = ["none", "omp_1"]

[[action]]
name = "list"
each = "cell"
command = "ls {folder} > {folder}/files.txt"
products = ["files.txt"]
previous_actions = ["matrix"]
"""


def load(name: str) -> Any:
    """The content of a CI file; with two jobs instead of four."""
    yaml = pytest.importorskip("ruamel.yaml", reason="reads YAML; comes with check-jsonschema")
    return yaml.YAML(typ="safe", pure=True).load((EXAMPLES / name).read_text().replace("--jobs 4", "--jobs 2"))


@pytest.mark.parametrize(
    "words",
    [
        *([*options, str(EXAMPLES / name)] for name, options in SCHEMAS.items()),
        ["--builtin-schema", "vendor.github-workflows", *map(str, (ROOT / ".github" / "workflows").iterdir())],
        [
            *("--builtin-schema", "vendor.github-issue-forms"),
            *map(str, (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")),
        ],
    ],
    ids=[*SCHEMAS, "workflows", "forms"],
)
def test_a_file_has_the_form_that_its_ci_has(words: list[str]) -> None:
    pytest.importorskip("check_jsonschema", reason="has the schemas of CI files")
    words = [sys.executable, "-m", "check_jsonschema", *words]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_example_is_checked() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == set(SCHEMAS)


def test_hooks_before_a_commit_and_make_have_the_checks_of_ci() -> None:
    checks = ("ruff check", "ruff format", "mypy", "lint-imports")
    for name in (".ci/run", "Makefile", ".pre-commit-config.yaml"):
        found = {check for check in checks if check in (ROOT / name).read_text()}
        assert found == {*checks}, name


FAILS_FIRST = """
import os, pytest

@pytest.mark.parametrize("number", range(int(os.environ["NUMBER"])))
def test_it(number):
    assert "ALWAYS" not in os.environ
    open(f"{number}", "a").write("x")
    assert open(f"{number}").read() != "x"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"NUMBER": "2"}, 0),
        ({"NUMBER": "4"}, 1),
        ({"NUMBER": "1", "ALWAYS": "1"}, 1),
        ({"NUMBER": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider"}, 1),  # it is not known which has failed
    ],
)
def test_ci_names_few_tests_that_fail_once_and_fails_for_others(
    tmp_path: Path, given: dict[str, str], status: int
) -> None:
    (tmp_path / "test_first.py").write_text(FAILS_FIRST)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = [str(ROOT / ".ci" / "steady"), "pytest", "-p", "no:aorta", "test_first.py"]
    environ = {**os.environ, "PATH": path, **given}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environ)
    assert done.returncode == status, done.stdout + done.stderr
    unsteady = [line for line in done.stdout.splitlines() if line.startswith("unsteady: ")]
    assert len(unsteady) == (2 if status == 0 else 0)
    assert all("test_first.py::test_it[" in line for line in unsteady)


class Runners:
    """Machines that run jobs in checkouts of their own, and hand artifacts on."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.artifacts = stage.path / "artifacts"
        self.commands = stage.path / "bin"
        self.commands.mkdir()
        for name, module in (("pytest", "pytest"), ("pytest-aorta", "pytest_aorta"), ("pip", "this")):
            script = self.commands / name
            script.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
            script.chmod(0o755)

    def checkout(self) -> Path:
        """The working directory of a job; of all jobs in the same place, as paths of sources are in results."""
        folder = self.stage.path / "checkout"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for file in ("aorta.toml", "work.py"):
            shutil.copy(self.stage.path / file, folder)
        shutil.copytree(self.stage.path / "stage_workloads-1.0.dist-info", folder / "stage_workloads-1.0.dist-info")
        return folder

    def run(self, folder: Path, script: str, variables: Mapping[str, str]) -> None:
        path = f"{self.commands}:{self.stage.environ()['PATH']}"
        result = self.stage.command(
            *("bash", "-e", "-o", "pipefail", "-c", f"cd {folder}; {script}"),
            env={"PATH": path, "PYTHONPATH": str(folder), **variables},
        )
        assert result.ret == 0, script


@pytest.fixture
def runners(stage: Stage) -> Runners:
    stage.write(work=SIMPLE)
    stage.register(plain="work:Simple")
    stage.write_file("aorta.toml", RECIPE)
    return Runners(stage)


def github_job(runners: Runners, job: Any, matrix: Mapping[str, Any]) -> tuple[Path, str]:
    """Run a job of GitHub; its checkout, and what it has written to ``GITHUB_OUTPUT``."""
    folder = runners.checkout()
    output = runners.stage.path / "output"
    output.write_text("")

    def filled(text: str) -> str:
        for key, value in matrix.items():
            text = text.replace(f"${{{{ matrix.{key} }}}}", str(value))
        return text

    for step in job["steps"]:
        given = {key: filled(str(value)) for key, value in step.get("with", {}).items()}
        kind = step.get("uses", "run").partition("@")[0]
        if kind == "run":
            runners.run(folder, filled(step["run"]), {"GITHUB_OUTPUT": str(output)})
        elif kind == "actions/upload-artifact":
            place, target = folder / given["path"], runners.artifacts / given["name"]
            target.mkdir(parents=True)
            shutil.copytree(place, target, dirs_exist_ok=True) if place.is_dir() else shutil.copy(place, target)
        elif kind == "actions/download-artifact":
            found = runners.artifacts.glob(given.get("pattern", given.get("name", "")))
            for artifact in found:
                inner = artifact.name if "pattern" in given else ""
                shutil.copytree(artifact, folder / given.get("path", "") / inner, dirs_exist_ok=True)
        else:
            assert kind in ("actions/checkout", "actions/setup-python")
    return folder, output.read_text()


@pytest.mark.slow
def test_the_jobs_of_github(runners: Runners) -> None:
    jobs = load("github-actions.yml")["jobs"]
    _, output = github_job(runners, jobs["plan"], {})
    name, _, text = output.partition("=")
    assert jobs["plan"]["outputs"] == {name: f"${{{{ steps.jobs.outputs.{name} }}}}"}
    included = json.loads(text)["include"]
    assert len(included) == 2
    for matrix in included:
        github_job(runners, jobs["shard"], matrix)
    folder, _ = github_job(runners, jobs["merge"], {})
    for cell in ("local-none", "local-omp_1"):
        trials = folder / "workspace/matrix/plain" / cell
        assert sorted(path.name for path in trials.glob("trial_?.json")) == ["trial_0.json", "trial_1.json"]
        assert "trial_1.json" in (trials / "files.txt").read_text()
