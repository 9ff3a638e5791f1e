"""Workloads that were written for AORTA run unchanged, with what its base class declares and its runner adds."""

from __future__ import annotations

from typing import Any

import aorta_package
import pytest
from support.stage import Stage


@pytest.fixture
def aorta(stage: Stage) -> Stage:
    aorta_package.install(stage)
    return stage


def metrics(stage: Stage) -> dict[str, Any]:
    (trial,) = stage.trials().values()
    found = trial["result"]["metrics"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("isolation", ["fork", "none"])
def test_a_wrapper_forwards_the_variables_of_its_trial(aorta: Stage, isolation: str) -> None:
    options = ("--aorta-mitigations", "omp_1", "--aorta-extra-env", "FIRST=1", "--aorta-isolation", isolation)
    aorta.run_here("--aorta-workload", "wrapper", *options).assert_outcomes(passed=1)
    found = metrics(aorta)
    assert {"-e FIRST=1", "-e OMP_NUM_THREADS=1"} <= set(found["flags"])
    assert not any(flag.startswith(("-e AORTA_", "-e TMPDIR")) for flag in found["flags"])
    assert found["argv"] == [str(aorta.path / "their_workloads.py")]
    (trial,) = aorta.trials().values()
    stem = f"{aorta.results}/wrapper/trial_0/files/trial_d0_m0_t0"
    assert found["added"]["_aorta_log_prefix"] == stem
    assert found["added"]["_aorta_environment"]["name"] == "local"
    assert found["added"]["_aorta_trial_isolation"] == "in_process"
    assert trial["config"] == {}  # what the runner adds is no option


@pytest.mark.parametrize("isolation", ["fork", pytest.param("spawn", marks=[pytest.mark.slow, pytest.mark.long])])
def test_variables_that_a_workload_needs_at_its_start_are_there_before_its_import(
    aorta: Stage, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_DEFAULT", "ambient")
    options = ("--aorta-config", "queues=2", "--aorta-isolation", isolation)
    aorta.run_here("--aorta-workload", "queues", *options).assert_outcomes(passed=1)
    # Defaults only, and no mitigation.
    assert metrics(aorta) == {"GPU_MAX_HW_QUEUES": "2", "OTHER_DEFAULT": "ambient", "import": "2"}
    (trial,) = aorta.trials().values()
    assert trial["env"]["env_vars"]["GPU_MAX_HW_QUEUES"] == "2"
    assert trial["env"]["env_vars"]["OTHER_DEFAULT"] == "ambient"


def test_a_workload_that_requires_a_process_is_refused_without_one(aorta: Stage) -> None:
    done = aorta.run("--aorta-workload", "queues", "--aorta-isolation", "none")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*workload queues requires a process per trial*use fork or spawn*"])


def test_an_exception_in_run_says_nothing_about_a_workload_of_aortas_unless_its_class_says_so(aorta: Stage) -> None:
    aorta.write_file(
        "raising.py",
        """
        from aorta.workloads._base import Workload
        class Theirs(Workload):
            def setup(self): pass
            def run(self): raise RuntimeError("RCCL init failed")
        class Failing(Workload):
            raises = "failure"
            def setup(self): pass
            def run(self): raise AssertionError("wrong sum")
        class Plain:
            raises = "infrastructure"
            def __init__(self, config): pass
            def setup(self): pass
            def run(self): raise RuntimeError("RCCL init failed")
        class Crashing(Plain):
            def setup(self): pass
            def run(self):
                import sys
                sys.exit(3)
        """,
    )
    aorta.run_here("raising.py").assert_outcomes(errors=2, failed=2)
    ends = {trial["workload"]: trial["exit_status"] for trial in aorta.trials().values()}
    lost, failed = "infrastructure_failed", "workload_failed"
    assert ends == {"Theirs": lost, "Failing": failed, "Plain": lost, "Crashing": failed}


@pytest.mark.parametrize("launcher", ["elastic", pytest.param("torchrun", marks=[pytest.mark.slow, pytest.mark.long])])
def test_ranks_find_the_process_group_made_and_their_failures_are_put_together(aorta: Stage, launcher: str) -> None:
    options = ("--aorta-launcher", launcher, "--aorta-config", "corrupt=true", "--aorta-config", "device=cpu")
    aorta.run_here("--aorta-workload", "race", *options).assert_outcomes(failed=1)
    (trial,) = aorta.trials().values()
    result = trial["result"]
    assert (result["failure_count"], result["first_failure_iteration"]) == (2, 2)
    assert [(detail["rank"], detail["iteration"]) for detail in result["failure_details"][:2]] == [(0, 3), (1, 2)]
    file = [str(aorta.path / "their_workloads.py")]
    assert result["metrics"] == {"isolation": "process", "argv": file, "at_import": file}


UNKNOWN = """
class Known:
    default_config = {"steps": 3, "learning_rate": 0.1}
    def __init__(self, config): pass
    def setup(self): pass
    def run(self): return {"passed": True}
"""

NOTE = "Known.default_config has no option 'learning_rat' (did you mean 'learning_rate'?); it may have no effect"


@pytest.mark.parametrize("isolation", ["fork", "none"])
def test_an_option_that_the_defaults_do_not_know_is_a_warning_with_the_nearest_name(
    stage: Stage, isolation: str
) -> None:
    stage.write(known=UNKNOWN)
    options = ("--aorta-config", "learning_rat=1", "--aorta-trials", "2", "--aorta-isolation", isolation)
    done = stage.run_here("known.py", *options)
    assert done.ret == 0
    done.stdout.fnmatch_lines([f"*PytestWarning: {NOTE}"])
    for trial in stage.trials().values():
        assert {"note": NOTE} in trial["result"]["failure_details"]
