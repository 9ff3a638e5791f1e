"""Workloads that were written for AORTA run unchanged, with what its base class declares and its runner adds."""

from __future__ import annotations

from typing import Any

import pytest
from support.stage import Stage

BASE = """
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

@dataclass
class WorkloadResult:
    passed: bool
    failure_count: int = 0
    first_failure_iteration: int | None = None
    failure_details: list = field(default_factory=list)
    metrics: dict = field(default_factory=dict)

class Workload(ABC):
    launch_mode = "single_process"
    min_world_size = 1
    trial_isolation_default = "in_process"
    trial_isolation_required = False
    trial_isolation_supported = frozenset({"in_process"})
    distributed_result_scope = "global"

    @classmethod
    def isolated_distributed_backend(cls, config):
        return "auto"

    @classmethod
    def isolated_startup_env(cls, config):
        return {}

    def __init__(self, config):
        self.config = config

    @abstractmethod
    def setup(self): ...

    @abstractmethod
    def run(self): ...

    def cleanup(self): pass
"""

WORKLOADS = """
import argparse
import os
import sys

from aorta.workloads._base import Workload, WorkloadResult

#: As scripts do that have become a workload.
arguments = argparse.ArgumentParser().parse_args()
AT_IMPORT = list(sys.argv), os.environ.get("GPU_MAX_HW_QUEUES")

class Wrapper(Workload):
    '''Forwards the variables of its trial to a container.'''

    def setup(self):
        self.flags = [f"-e {name}={value}" for name, value in sorted(dict(self.config)["_aorta_trial_env"].items())]

    def run(self):
        added = {name: value for name, value in self.config.items() if name.startswith("_aorta_")}
        return WorkloadResult(True, metrics={"flags": self.flags, "argv": AT_IMPORT[0], "added": added})

class Queues(Workload):
    '''Its variable has to be there before the runtime starts.'''

    trial_isolation_default = "process"
    trial_isolation_required = True
    trial_isolation_supported = frozenset({"process"})

    @classmethod
    def isolated_startup_env(cls, config):
        return {"GPU_MAX_HW_QUEUES": str(config.get("queues", 4)), "OTHER_DEFAULT": "x"}

    def setup(self): pass

    def run(self):
        names = ("GPU_MAX_HW_QUEUES", "OTHER_DEFAULT")
        variables = {name: os.environ.get(name) for name in names}
        return WorkloadResult(True, metrics={**variables, "import": AT_IMPORT[1], **self.config["_aorta_trial_env"]})

class Race(Workload):
    '''Leaves the process group to its runner, and finds something in each rank.'''

    launch_mode = "distributed"
    min_world_size = 2
    trial_isolation_default = "process"
    trial_isolation_required = True
    trial_isolation_supported = frozenset({"process"})
    distributed_result_scope = "rank_local"

    def setup(self):
        import torch.distributed as dist
        assert dist.is_initialized()
        self.rank = dist.get_rank()

    def run(self):
        details = [{"iteration": 3 - self.rank}] if self.config.get("corrupt") else []
        return WorkloadResult(
            passed=not details,
            failure_count=len(details),
            first_failure_iteration=details[0]["iteration"] if details else None,
            failure_details=details,
            metrics={"isolation": self.config["_aorta_trial_isolation"], "argv": sys.argv, "at_import": AT_IMPORT[0]},
        )
"""


@pytest.fixture
def aorta(stage: Stage) -> Stage:
    """Offers the package and its workloads."""
    stage.write_file("aorta/__init__.py", "")
    stage.write_file("aorta/workloads/__init__.py", "from aorta.workloads._base import Workload, WorkloadResult")
    stage.write_file("aorta/workloads/_base.py", BASE)
    stage.write_file("their_workloads.py", WORKLOADS)
    stage.register(wrapper="their_workloads:Wrapper", queues="their_workloads:Queues", race="their_workloads:Race")
    return stage


def metrics(stage: Stage) -> dict[str, Any]:
    (trial,) = stage.trials().values()
    recorded = trial["result"]["metrics"]
    assert isinstance(recorded, dict)
    return recorded


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["fork", "none"])
def test_a_wrapper_forwards_the_variables_of_its_trial(aorta: Stage, isolation: str) -> None:
    options = ("--aorta-mitigations", "omp_1", "--aorta-extra-env", "FIRST=1", "--aorta-isolation", isolation)
    aorta.run_here("--aorta-workload", "wrapper", *options).assert_outcomes(passed=1)
    seen = metrics(aorta)
    assert {"-e FIRST=1", "-e OMP_NUM_THREADS=1"} <= set(seen["flags"])
    assert not any(flag.startswith(("-e AORTA_", "-e TMPDIR")) for flag in seen["flags"])
    assert seen["argv"] == [str(aorta.path / "their_workloads.py")]
    (trial,) = aorta.trials().values()
    stem = f"{aorta.results}/wrapper/trial_0/files/trial_d0_m0_t0"
    assert seen["added"]["_aorta_log_prefix"] == stem
    assert seen["added"]["_aorta_environment"]["name"] == "local"
    assert seen["added"]["_aorta_trial_isolation"] == "in_process"
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


def test_an_option_that_the_defaults_do_not_know_is_a_warning_with_the_nearest_name(stage: Stage) -> None:
    stage.write(known=UNKNOWN)
    done = stage.run_here("known.py", "--aorta-config", "learning_rat=1", "--aorta-trials", "2")
    assert done.ret == 0
    done.stdout.fnmatch_lines([f"*PytestWarning: {NOTE}"])
    for trial in stage.trials().values():
        assert {"note": NOTE} in trial["result"]["failure_details"]
