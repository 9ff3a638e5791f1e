"""A package in the shape of AORTA's: its base class with all that it declares, and workloads that rely on them.

Written for tests. AORTA itself is not installed here; what its runner does with each declaration is in its
documentation.
"""

from __future__ import annotations

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
    total_iterations: int = 0
    step_times_ms: list = field(default_factory=list)
    elapsed_sec: float = 0.0
    metrics: dict = field(default_factory=dict)
    main_work_started: bool | None = None
    executed_iterations: int | None = None
    configured_iterations: int | None = None

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
        found = {name: os.environ.get(name) for name in names}
        return WorkloadResult(True, metrics={**found, "import": AT_IMPORT[1], **self.config["_aorta_trial_env"]})

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


def install(stage: Stage) -> None:
    """Have the stage offer the package and its workloads."""
    stage.write_file("aorta/__init__.py", "")
    stage.write_file("aorta/workloads/__init__.py", "from aorta.workloads._base import Workload, WorkloadResult")
    stage.write_file("aorta/workloads/_base.py", BASE)
    stage.write_file("their_workloads.py", WORKLOADS)
    stage.register(wrapper="their_workloads:Wrapper", queues="their_workloads:Queues", race="their_workloads:Race")
