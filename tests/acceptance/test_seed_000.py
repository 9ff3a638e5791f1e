"""Seed 000: AORTA's ``aorta run`` (B1.0, the contract, and B1.1, the implementation), criterion by criterion.

Everywhere, ``aorta run --workload X --trials N --environment E --mitigations a,b --extra-env K=V --collect r --steps S
--results-dir D`` is ``pytest --aorta-workload X --aorta-trials N --aorta-environment E --aorta-mitigations a,b ...``.

Adapted, because the thing is called otherwise here:

- ``aorta.run.dispatcher.run_trials``, ``RunRequest`` and ``aorta.run.results.TrialResult`` are names of
  ``pytest_aorta``; ``aorta.registry`` is ``pytest_aorta.registry``; ``collect_env`` is in ``pytest_aorta.probe``.
- ``source_package`` of what is built in says ``pytest-aorta``, not ``aorta``.
- "Exits non-zero" is pytest's exit code 4 (usage) for what prevents every trial, and 1 when trials failed.
- Criteria that the seed verifies by grep are verified by what a run does, and by reading imports where that says more.
- The union order has a fourth layer: the variables of the environment come first, so mitigations win over them.

Replaced by design.md:

- B1.0's "``run_trials()`` is exactly ``raise NotImplementedError``" and "no subprocess code, no probe call, no entry
  points yet": there is no stub any more. Its signature and its docstring are tested.
- "No ``--dockers`` flag, a single ``--environment``": there is no ``--aorta-dockers``, but ``--aorta-environment`` may
  be repeated: a plan has as many cells as environments times mitigation sets, each with its own folder.
- "The Click handler has under 30 lines and no loop over trials": there is no Click handler. pytest's own loop runs
  items; ``plugin.py`` holds hooks only.
- "Bare ``aorta run`` against a distributed workload raises": it starts the ranks itself. The rule, its message and
  "before ``setup()``" hold where pytest is a rank already (``torchrun``, or ``--aorta-launcher external``).
- "Environments are labels, the user is inside already": a ``venv`` or a ``launcher`` is acted on (see
  ``test_environments.py``). Docker images and ROCm versions are labels still.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage, counts

import pytest_aorta
from pytest_aorta import RunRequest, TrialResult

HERE = Path(__file__).parent
PACKAGE = Path(pytest_aorta.__file__).parent

#: A complete record, in the words of the seed and ours.
RECORD: dict[str, Any] = {
    "schema_version": "0.1",
    "trial_id": "fsdp_d0_m0_t0",
    "workload": "fsdp",
    "cell": "image-tf32_off+xnack",
    "trial_index": 0,
    "execution_env": {
        "kind": "docker",
        "name": "image",
        "image": "rocm/pytorch:7.0",
        "digest": "sha256:0123",
        "venv": None,
        "rocm": "7.0",
        "verified": False,
        "claims": [{"claim": "ROCm 7.0", "verified": False, "found": "there is no ROCm"}],
        "entered_with": None,
        "source_package": "somebody",
    },
    "mitigations_applied": ["tf32_off", "xnack"],
    "config": {"steps": 5000, "tolerance": "NaN", "nested": {"list": [1, 2.5, None, True, "Infinity"]}},
    "env": {
        "schema_version": "1.0",
        "partial": True,
        "partial_reasons": ["git: OSError: gone"],
        "env_vars": {"A": "1"},
    },
    "result": {
        "passed": False,
        "failure_count": 2,
        "first_failure_iteration": 17,
        "failure_details": [{"iteration": 17, "error": "-Infinity"}, {"iteration": 23, "bits": [1, 0]}],
        "total_iterations": 5000,
        "step_times_ms": [1.25, 2.5, 3.5],
        "elapsed_sec": 412.5,
        "metrics": {"loss": "Infinity", "text": "\\NaN", "unicode": "größe"},
        "main_work_started": True,
        "executed_iterations": 4999,
        "configured_iterations": 5000,
    },
    "wall_clock_sec": 425.1,
    "exit_status": "workload_failed",
    "failure": {
        "phase": "run",
        "kind": "signal",
        "type": None,
        "message": "rank 1: ended by SIGSEGV in run()",
        "traceback": None,
        "signal": "SIGSEGV",
        "exit_code": None,
        "rank": 1,
        "stacks": "trial_0/stacks.log",
    },
    "warnings": [],
    "seeds": None,
    "ranks": [
        {
            "rank": 0,
            "local_rank": 0,
            "host": "node7",
            "pid": 11,
            "seeds": {"seed": 2**53 - 1, "generators": {"random": 1, "torch": 2}, "kept": ["numpy.random"]},
            "exit_code": 0,
            "signal": None,
            "passed": True,
            "result": None,
            "failure": None,
            "collateral": False,
            "blame": None,
            "stdout": "trial_0/rank_0.stdout.log",
            "stderr": None,
            "stacks": None,
            "error_file": {"message": "NaN"},
            "collective": "gloo:all_reduce number 7",
        }
    ],
    "elastic": {
        "launcher": "elastic",
        "states": [{"state": "INIT", "at": 1.5, "attempt": 0, "world_size": None}],
        "restarts": 1,
        "attempts": [{"attempt": 0, "reason": "failure", "failure": None, "ranks": []}],
        "options": {"max_restarts": 1},
        "launcher_variables": {"OMP_NUM_THREADS": "1"},
    },
    "phases_sec": {"launch": 0.5, "setup": 1.5, "run": 412.5},
    "started_at": "2026-01-02T03:04:05.678+00:00",
    "host": "node7",
    "request_fingerprint": "ab" * 32,
    "fingerprint_parts": {"sources": {"w.py": "cd" * 8}, "nproc": 2},
    "imposed": {"threads": 1, "cpus": [0], "devices": None, "variables": {"OMP_NUM_THREADS": "1"}},
    "side_by_side": {"slots": 2, "workers": 1, "hosts": 1, "cores": 2},
    "artifacts": {"stdout": "trial_0/stdout.log"},
}


@pytest.fixture
def simple(stage: Stage) -> Stage:
    """A stage that offers the workloads of ``simple_workloads.py`` by name."""
    stage.copy(HERE / "simple_workloads.py")
    names = ("Tells", "Plays", "Second", "Solo", "Pair", "Quartet")
    stage.register(**{name.lower(): f"simple_workloads:{name}" for name in names})
    return stage


@pytest.fixture(scope="module")
def with_tf32_off(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, pytest.RunResult]]:
    """``fsdp`` with ``tf32_off``, and with a collector that is known."""
    stage = Stage(tmp_path_factory.mktemp("tf32") / "stage")
    options = ("--aorta-trials", "2", "--aorta-environment", "local", "--aorta-mitigations", "tf32_off")
    yield stage, stage.run("--aorta-workload", "fsdp", *options, "--aorta-collect", "rocprof")
    stage.close()


# --- B1.0 ---


def test_run_request_is_frozen_and_has_the_defaults_of_the_contract() -> None:
    request = RunRequest(workload="fsdp", trials=2)
    assert (request.environment, request.mitigations, dict(request.extra_env)) == ("local", ("none",), {})
    assert (request.steps, dict(request.config_overrides), request.results_dir) == (None, {}, Path("results"))
    with pytest.raises(AttributeError):
        request.trials = 3  # type: ignore[misc]


def test_trial_result_round_trips_without_loss() -> None:
    there = TrialResult.from_dict(RECORD)
    assert there.to_dict().items() >= RECORD.items()
    assert TrialResult.from_dict(json.loads(json.dumps(there.to_dict(), allow_nan=False))) == there
    assert there.config["tolerance"] != there.config["tolerance"]
    assert there.result.metrics == {"loss": float("inf"), "text": "NaN", "unicode": "größe"}


# --- B1.1: files, mitigations, environments ---


def test_default_run_writes_one_file_per_trial(stage: Stage) -> None:
    done = stage.run_here("--aorta-workload", "fsdp", "--aorta-trials", "2")
    assert (done.ret, counts(done)) == (0, {"passed": 2})
    assert stage.files() == ["fsdp/trial_0.json", "fsdp/trial_1.json"]
    for index, trial in enumerate(stage.trials().values()):
        assert trial["trial_id"] == f"fsdp_d0_m0_t{index}"
        assert (trial["workload"], trial["exit_status"]) == ("fsdp", "ok")
        assert trial["execution_env"]["name"] == "local"
        assert trial["mitigations_applied"] == ["none"]
        assert trial["result"]["passed"]
        assert len(trial["result"]["step_times_ms"]) == trial["result"]["total_iterations"] > 0


def test_known_collectors_have_no_effect_yet(with_tf32_off: tuple[Stage, pytest.RunResult], simple: Stage) -> None:
    stage, _ = with_tf32_off
    folder = stage.results / "fsdp" / "trial_0"
    logs = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    ranks = [f"attempt_0/rank_{rank}.{name}.log" for rank in (0, 1) for name in ("stderr", "stdout")]
    assert logs == [*ranks, "stderr.log", "stdout.log"]

    assert simple.run("--aorta-workload", "tells", "--aorta-collect", "rocprof,numerics,amd_log").ret == 0
    [matrix, table, packages, *files] = simple.everything()
    assert [matrix, table] == ["matrix.json", "matrix.md"]
    assert packages.startswith("packages-")
    assert files == ["tells/trial_0.json", "tells/trial_0/stderr.log", "tells/trial_0/stdout.log"]
