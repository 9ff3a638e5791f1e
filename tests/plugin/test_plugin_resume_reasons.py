"""``--aorta-resume`` says why an earlier result was not kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.stage import Stage

READS = """
class Reads:
    data_files = ["golden.txt"]
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        import helper  # not before
        with open("golden.txt") as golden:
            return {"passed": helper.VALUE == int(golden.read())}
"""


@pytest.fixture
def reads(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    stage.write(reads=READS, helper="VALUE = 1")
    stage.write_file("golden.txt", "1")
    stage.register(reads="reads:Reads")
    return stage


def resume(stage: Stage, *options: str) -> list[str]:
    """Why results were not kept."""
    result = stage.run_here("--aorta-workload", "reads", "--aorta-trials", "2", "--aorta-resume", *options)
    result.assert_outcomes(passed=2)
    return [line for line in result.outlines if "earlier result" in line]


def test_every_change_is_named(reads: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resume(reads) == []
    changes: list[tuple[Callable[[], object], str]] = [
        (lambda: monkeypatch.setenv("OMP_NUM_THREADS", "4"), "OMP_NUM_THREADS unset -> 4"),
        (lambda: monkeypatch.setenv("OMP_NUM_THREADS", "1"), "OMP_NUM_THREADS 4 -> 1"),
        (lambda: reads.write(helper="VALUE = 1  # still"), "helper.py changed"),
        (lambda: reads.write_file("golden.txt", "01"), "golden.txt changed"),
        (lambda: reads.write(reads=READS + "# another thought"), "reads.py changed"),
        (lambda: release(reads, "2.0"), "stage-workloads 1.0 -> 2.0"),
    ]
    for change, line in changes:
        change()
        assert resume(reads) == [f"2 earlier results not kept: {line}"]
    assert resume(reads) == []
    record = reads.trial("reads/trial_1.json")
    assert list(record["fingerprint_parts"]["imported_later"]) == ["helper.py"]
    assert list(record["fingerprint_parts"]["sources"]) == ["reads.py"]
    assert record["fingerprint_parts"]["variables"]["OMP_NUM_THREADS"] == "1"
    assert record["fingerprint_parts"]["torch"].startswith(record["env"]["torch"]["version"])


def release(stage: Stage, version: str) -> None:
    """Install the workloads in another version."""
    info = "stage_workloads-1.0.dist-info"
    stage.write_file(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: stage-workloads\nVersion: {version}\n")


def test_a_job_s_own_variables_do_not_count(reads: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert resume(reads) == []
    monkeypatch.setenv("SLURM_JOB_ID", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert resume(reads) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert resume(reads) == ["2 earlier results not kept: CUDA_VISIBLE_DEVICES 2 listed -> 1 listed"]


def test_a_declared_file_that_is_not_there_is_a_warning(reads: Stage) -> None:
    reads.write(reads=READS.replace('"golden.txt"]', '"golden.txt", "gold.txt"]'))
    result = reads.run_here("--aorta-workload", "reads", "--aorta-trials", "2")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*data_files of reads names 'gold.txt', which is not there"])


def test_secrets_are_not_shown(reads: Stage) -> None:
    assert resume(reads, "--aorta-extra-env", "MINE=hush") == []
    assert resume(reads, "--aorta-extra-env", "MINE=whisper") == ["2 earlier results not kept: MINE changed"]
