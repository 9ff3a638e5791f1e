"""Suites of other people: as they are beside this plugin, and as trials.

Slow, and in need of a package index: `pytest tests/downstream/test_suites_of_others.py -m downstream`.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from support.pip_environments import environ_without_this_run, environment_beside_this_run, pip
from support.projects import command

pytestmark = pytest.mark.downstream

#: Suite to what it needs beside itself.
PACKAGES = {"amd-aorta==0.3.0": (), "cashews==7.6.0": ("pytest-asyncio", "pytest-rerunfailures")}


def suite_of(package: str, folder: Path) -> tuple[Path, Path]:
    """The unpacked source of a package, and the Python of an environment that has it."""
    python = environment_beside_this_run(folder / "venv", package, *PACKAGES[package])
    name = package.partition("==")[0]
    pip(python, "download", "--no-binary", name, "--no-deps", "-d", str(folder), package)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return source, python


def run(python: Path, source: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=source,
        env=environ_without_this_run(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def aorta(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return suite_of("amd-aorta==0.3.0", tmp_path_factory.mktemp("aorta"))


def test_sweep_recipes_of_aorta_are_converted_and_collected(aorta: tuple[Path, Path], tmp_path: Path) -> None:
    source, python = aorta
    sweeps = sorted([*source.glob("recipes/**/*.yaml"), *source.glob("examples/**/recipe.yaml")])
    assert len(sweeps) == 53
    for number, sweep in enumerate(sweeps):
        words = ("--", "bash", "launch.sh") if "\nmode: probe" in sweep.read_text() else ()
        result = command("convert", str(sweep), "-o", str(tmp_path / f"{number}.aorta.toml"), *words)
        assert result.exit_code == 0, result.stderr
    _, text = run(python, tmp_path, "--collect-only", "-q", "--continue-on-collection-errors", ".")
    # Of AORTA's emulator, of files beside the recipes, and a collector.
    missing = re.findall(r"unknown (?:environment 'emulated|mitigation 'ts_|collector 'proton')", text)
    assert len(set(re.findall(r"^(\d+)\.aorta\.toml::", text, re.MULTILINE))) == 53 - len(missing)
    assert len(missing) == 9, text


def test_the_suite_of_aorta_ends_the_same_with_the_plugin_and_without(aorta: tuple[Path, Path]) -> None:
    source, python = aorta
    # Those with classes that derive from a workload, named one by one, as is done while they are worked on.
    files = [f"tests/run/test_{name}.py" for name in ("validation", "integration", "dispatcher", "discovery")]
    ends = []
    for options in (("-p", "no:aorta"), ()):
        status, text = run(python, source, *options, "-v", *files)
        outcomes = re.findall(r"^(tests/\S+::.*?) (PASSED|FAILED|SKIPPED|ERROR|XFAIL)\b", text, re.MULTILINE)
        ends.append((status, outcomes))
        assert len(outcomes) > 100
        assert not (source / "results").exists()
    assert ends[0] == ends[1]


def test_tests_of_others_that_depend_on_time_have_verdicts_as_trials(tmp_path: Path) -> None:
    source, python = suite_of("cashews==7.6.0", tmp_path)
    # Its archive lacks the configuration of its repository.
    (source / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nmarkers =\n    redis\n    integration\n")
    chosen = ("tests/test_lock_decorator.py", "tests/test_wrapper.py", "-k", "time_condition or broken or thunder")
    status, text = run(python, source, *chosen, "-m", "not redis", "--aorta-trials", "2", "--reruns", "1")
    records = [json.loads(path.read_text()) for path in source.glob("results/*/trial_[01].json")]
    assert len(records) == 5 * 2, text
    assert {record["exit_status"] for record in records} <= {"ok", "workload_failed"}, text
    assert all(record["result"]["metrics"]["call_sec"] > 0 for record in records)
    assert status == (0 if all(record["result"]["passed"] for record in records) else 1)
    for test in {record["workload"] for record in records}:
        assert f"\n{test} local-none" in text
