"""Suites of other people: as they are beside this plugin, and as trials.

Slow, and in need of a package index: `pytest tests/downstream/test_suites_of_others.py -m downstream`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from support.pip_environments import environ_without_this_run, environment_beside_this_run, pip, run_module
from support.projects import command

from pytest_aorta.triage.reading import read_triage
from pytest_aorta.trials.result import TrialResult

pytestmark = pytest.mark.downstream

#: Suite to what it needs beside itself.
PACKAGES = {"amd-aorta==0.3.0": (), "cashews==7.6.0": ("pytest-asyncio", "pytest-rerunfailures")}


def suite_of(package: str, folder: Path) -> tuple[Path, Path]:
    python = environment_beside_this_run(folder / "venv", package, *PACKAGES.get(package, ()))
    name = package.partition("==")[0]
    pip(python, "download", "--no-binary", name, "--no-deps", "-d", str(folder), package)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return source, python


def run(python: Path, source: Path, *arguments: str) -> tuple[int, str]:
    done = run_module(python, "pytest", "-p", "no:cacheprovider", *arguments, cwd=source)
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def aorta(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return suite_of("amd-aorta==0.3.0", tmp_path_factory.mktemp("aorta"))


@pytest.fixture(scope="module")
def newest(aorta: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """As ``aorta``, of the newest version on the index."""
    done = run_module(aorta[1], "pip", "index", "versions", "amd-aorta", "--disable-pip-version-check")
    found = re.match(r"amd-aorta \((.+?)\)", done.stdout)
    if found is None or found[1] == "0.3.0":
        return aorta
    return suite_of(f"amd-aorta=={found[1]}", tmp_path_factory.mktemp("newest"))


def test_sweep_recipes_of_aorta_are_converted_and_collected(aorta: tuple[Path, Path], tmp_path: Path) -> None:
    source, python = aorta
    sweeps = sorted([*source.glob("recipes/**/*.yaml"), *source.glob("examples/**/recipe.yaml")])
    assert len(sweeps) == 53
    for number, sweep in enumerate(sweeps):
        words = ("--", "bash", "launch.sh") if "\nmode: probe" in sweep.read_text() else ()
        result = command("convert", str(sweep), "-o", str(tmp_path / f"{number}.aorta.toml"), *words)
        assert result.exit_code == 0, result.stderr
    _, text = run(python, tmp_path, "--collect-only", "-q", "--continue-on-collection-errors", ".")
    missing = re.findall(r"unknown mitigation 'ts_", text)  # of files beside the recipes
    assert len(set(re.findall(r"^(\d+)\.aorta\.toml::", text, re.MULTILINE))) == 53 - len(missing)
    assert len(missing) == 2, text


#: Of so many parts of the recipes, each check runs the first.
PARTS = 6


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))])
def test_sweep_recipes_of_aorta_run_as_far_as_they_come_without_a_gpu(
    aorta: tuple[Path, Path], tmp_path: Path, part: int
) -> None:
    source, python = aorta
    folder = tmp_path / "source"
    shutil.copytree(source, folder)
    ends: dict[str, set[str]] = {}
    smoke = ("example-training-ddp-smoke", "example-inference-smoke")  # these are in each part
    sweeps = sorted([*folder.glob("recipes/**/*.yaml"), *folder.glob("examples/**/recipe.yaml")])
    for sweep in (each for number, each in enumerate(sweeps) if number % PARTS == part or each.stem in smoke):
        if sweep.stem == "example-llm-determinism":  # whose two trials take minutes
            continue
        file, place = sweep, sweep.parent
        if "\nmode: probe" in sweep.read_text():
            file = place / f"{sweep.stem}.aorta.toml"
            assert command("convert", str(sweep), "-o", str(file), "--", "python", "-c", "pass").exit_code == 0
        names = [f"--aorta-registry-file={each}" for each in place.glob("*sidecar*.json")]
        names.append("--aorta-isolation=fork")  # an import of torch for each cell, and not for each trial
        status, text = run(python, folder, str(file.relative_to(folder)), "-q", "-x", "--aorta-timeout=60", *names)
        results = place / "workspace" / file.name.partition(".")[0]
        records = [json.loads(each.read_text()) for each in results.glob("**/trial_*.json")]
        tools = ("rocprof", "proton")  # which are not here
        refused = status == pytest.ExitCode.USAGE_ERROR and any(tool in str(sweep) for tool in tools)
        assert bool(records) is not refused, text
        ends[sweep.stem] = {record["exit_status"] for record in records}
    assert len([name for name, found in ends.items() if found]) >= 5
    assert [ends[name] for name in smoke] == [{"ok"}] * 2


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


_FLAKY = """
import os
from aorta.workloads._base import Workload, WorkloadResult


class Flaky(Workload):
    def setup(self):
        if os.environ.get("BROKEN"):
            raise RuntimeError("no driver")

    def run(self):
        bad = os.environ.get("FIX") != "1"
        loss = float("nan") if bad else 0.5
        return WorkloadResult(passed=not bad, failure_count=int(bad), total_iterations=5, step_times_ms=[1.0] * 5,
                              elapsed_sec=0.005, metrics={"loss": loss})

    def cleanup(self):
        pass
"""
_INSTALL = """
[project]
name = "flaky-workload"
version = "1"
[project.entry-points."aorta.workloads"]
flaky = "flaky_workload:Flaky"
[tool.setuptools]
py-modules = ["flaky_workload"]
"""
_READ = """
import json, pathlib, sys
from aorta.run.results import TrialResult
for path in sys.argv[1:]:
    TrialResult.from_dict(json.loads(pathlib.Path(path).read_text()), strict=True)
"""


def test_records_of_aorta_and_of_this_package_are_read_by_both(newest: tuple[Path, Path], tmp_path: Path) -> None:
    _, python = newest
    package = tmp_path / "package"
    package.mkdir()
    (package / "flaky_workload.py").write_text(_FLAKY)
    (package / "pyproject.toml").write_text(_INSTALL)
    pip(python, "install", "--no-deps", str(package))
    theirs = [str(python.with_name("aorta")), "run", "--workload", "flaky", "--trials", "6", "--results-dir"]
    for folder, variables in (("fails", {}), ("fixed", {"FIX": "1"}), ("broken", {"BROKEN": "1"})):
        environ = {**environ_without_this_run(), **variables}
        subprocess.run([*theirs, folder], cwd=tmp_path, env=environ, capture_output=True, check=False)
    (tmp_path / "probe.yaml").write_text(
        "schema_version: 1\nmode: probe\nticket: T1\ntrials: 2\n"
        "mitigation_axis: [none, tf32_off]\ndiagnostic_axis: [none]\n"
    )
    probe = [str(python.with_name("aorta")), "sweep", "run", "--recipe", "probe.yaml", "--output", "probe"]
    line = "import os; print('loss is NaN') if 'DISABLE_TF32' not in os.environ else print('ok')"
    done = subprocess.run(
        [*probe, "--", str(python), "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (tmp_path / "probe").is_dir(), done.stderr
    environ_fix = ("--aorta-extra-env", "FIX=1")
    _, text = run(python, tmp_path, "--aorta-workload", "flaky", "--aorta-trials", "6", *environ_fix)
    assert "6 passed" in text, text

    records = {folder: sorted((tmp_path / folder).glob("flaky/*.json")) for folder in ("fails", "fixed", "broken")}
    read = {
        folder: [TrialResult.from_dict(json.loads(file.read_text())) for file in files]
        for folder, files in records.items()
    }
    assert {folder: {record.exit_status for record in found} for folder, found in read.items()} == {
        "fails": {"workload_failed"},
        "fixed": {"ok"},
        "broken": {"infrastructure_failed"},
    }
    assert [record.trial_index for record in read["fails"]] == list(range(6))
    failure = read["broken"][0].failure
    assert failure is not None
    assert (failure.phase, failure.type, failure.message) == ("setup", "RuntimeError", "no driver")

    compared = command("compare", str(tmp_path / "fails"), str(tmp_path / "results"))
    assert "6/6" in compared.stdout, compared.output
    assert "0/6" in compared.stdout
    of_commands, _ = read_triage(tmp_path / "probe")
    rates = {(it := cell.statistics).key.cell: (it.failures, it.counted) for cell in of_commands.cells}
    assert rates == {"local-none": (2, 2), "local-tf32_off": (0, 2)}
    ours = sorted(map(str, tmp_path.glob("results/flaky/trial_*.json")))
    subprocess.run([python, "-c", _READ, *ours], cwd=tmp_path, check=True)


BOTH, OURS, THEIRS, NONE = "both", "ours", "theirs", "none"

#: Printed, exit status, and who finds a failure without any pattern of the user: AORTA's tiers, or we.
OUTPUTS = (
    ("step 1 loss 0.5", 0, NONE),
    ("step 1 loss 0.5", 1, BOTH),
    ("", 3, BOTH),
    ("killed", -9, BOTH),
    ("Segmentation fault", -11, BOTH),
    ("loss is NaN", 0, BOTH),
    ("step=100 loss is NaN; aborting", 0, BOTH),
    ("step 7 loss=nan", 0, BOTH),
    ("step 7 loss NaN", 0, BOTH),
    ("step 7 loss: nan", 0, OURS),
    ("{'loss': nan, 'grad_norm': nan}", 0, OURS),
    ("iter 10: train_loss inf", 0, OURS),
    ("no loss=nan was found", 0, BOTH),  # neither reads English
    ("Traceback (most recent call last):\n  File 'a.py', line 1\nRuntimeError: in a thread", 0, BOTH),
    ("Traceback (most recent call last):\n  File 'a.py', line 1\nRuntimeError: bad", 1, BOTH),
    ("HIP runtime call failed with hipError_OutOfMemory (status=2)", 0, BOTH),
    ("RuntimeError: HIP error: invalid device function", 0, BOTH),
    ("hipErrorIllegalAddress", 0, OURS),
    ("operator returned cudaErrorIllegalAddress at kernel.cu:120", 0, BOTH),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", 0, BOTH),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", 0, OURS),
    ("CUDNN_STATUS_EXECUTION_FAILED", 0, OURS),
    ("hsa-runtime: failed to allocate Error code: 1", 0, BOTH),
    ("Memory access fault by GPU node-4 on address 0x7f00. Reason: Page not present", 0, OURS),
    ("[rank0]: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)", 0, BOTH),
    ("ncclRemoteError: A call failed possibly due to a network error", 0, OURS),
    ("[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42)", 0, BOTH),
    ("RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 10000 ms", 0, OURS),
    ("best: inf, info: nanoGPT, HIP errors: 0", 0, NONE),
    ("kernel.cpp:88: void f(): Assertion `n > 0' failed.", 0, OURS),
)

_SAYS = """
import json, os, sys
text, status = json.load(open("outputs.json"))[int(os.environ["AORTA_TRIAL_INDEX"])]
print(text, flush=True)
os.kill(os.getpid(), -status) if status < 0 else sys.exit(status)
"""
_CLASSIFY = """
import json, pathlib, sys
from aorta.probe.classifier import TrialContext, classify_trial
for text, status in json.load(open("outputs.json")):
    context = TrialContext(
        exit_code=status, timed_out=False, walltime_sec=1.0, trial_dir=pathlib.Path("nowhere"), log_text=text
    )
    print(classify_trial(context)[0].verdict)
"""


def test_what_the_tiers_of_aorta_find_in_thirty_outputs_is_found_here(
    newest: tuple[Path, Path], tmp_path: Path
) -> None:
    _, python = newest
    (tmp_path / "outputs.json").write_text(json.dumps([[text, status] for text, status, _ in OUTPUTS]))
    done = subprocess.run([python, "-c", _CLASSIFY], cwd=tmp_path, capture_output=True, text=True, check=True)
    theirs = [verdict == "fail" for verdict in done.stdout.split()]
    (tmp_path / "says.py").write_text(_SAYS)
    (tmp_path / "probe.yaml").write_text(
        f"schema_version: 1\nmode: probe\nticket: T1\ntrials: {len(OUTPUTS)}\n"
        "mitigation_axis: [none]\ndiagnostic_axis: [none]\n"
    )
    recipe = tmp_path / "probe.aorta.toml"
    assert command("convert", str(tmp_path / "probe.yaml"), "-o", str(recipe), "--", "python", "says.py").exit_code == 0
    _, text = run(python, tmp_path, recipe.name)
    files = sorted(tmp_path.rglob("trial_*.json"), key=lambda path: int(path.stem.rpartition("_")[2]))
    records = [json.loads(path.read_text()) for path in files]
    assert len(records) == len(OUTPUTS), text
    failed = [record["exit_status"] != "ok" for record in records]
    ours = [it or bool(record["result"]["output"]["detected"]) for it, record in zip(failed, records, strict=True)]
    words = {(True, True): BOTH, (False, True): OURS, (True, False): THEIRS, (False, False): NONE}
    who = [words[pair] for pair in zip(theirs, ours, strict=True)]
    assert who == [expected for _, _, expected in OUTPUTS], list(zip(who, OUTPUTS, strict=True))
    # A recipe that was converted judges as it did.
    assert all(it for it, expected in zip(failed, who, strict=True) if expected == BOTH)


def test_a_workload_of_aorta_for_cpus_runs_with_a_sidecar_file(newest: tuple[Path, Path], tmp_path: Path) -> None:
    _, python = newest
    (tmp_path / "sidecar.json").write_text('{"version": 1, "mitigations": {"one": {"OMP_NUM_THREADS": "1"}}}')
    small = ("num_layers=1", "hidden_size=32", "ffn_size=64", "num_heads=2", "vocab_size=64", "seq_len=8", "dtype=fp32")
    options = [word for each in small for word in ("--aorta-config", each)]
    cells = ("--aorta-registry-file", "sidecar.json", "--aorta-mitigations", "none", "--aorta-mitigations", "one")
    chosen = ("--aorta-workload", "llm_determinism", "--aorta-trials", "2", "--aorta-steps", "2")
    _, text = run(python, tmp_path, *chosen, *cells, *options)
    assert "4 passed" in text, text
