"""``rocprof``, ``nsys`` and ``amd_log``, with stand-ins: no machine here has the tools."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.stage import Stage, counts, text

from pytest_aorta.collectors.machine import AmdLog, Rocprof

STAND_IN_ROCPROF = r"""#!/bin/bash
# Stand-in of rocprofv3: runs what follows "--", and writes the statistics of two kernels, one line cut off.
while [ "$1" != -- ]; do case "$1" in -d) folder=$2;; esac; shift; done; shift
mkdir -p "$folder"
cat > "$folder/process_$$_kernel_stats.csv" <<'CSV'
"Name","Calls","TotalDurationNs","AverageNs","Percentage"
"gemm_kernel",10,9000000,900000,90
"copy_kernel",5,1000000,200000,10
"nan_kernel",5,NaN,NaN,NaN
"cut_ker
CSV
exec "$@"
"""

STAND_IN_NSYS = r"""#!/bin/bash
# Stand-in of nsys: "nsys profile OPTIONS -o FILE COMMAND".
[ "$1" = profile ] || exit 2
while [ "$1" != -o ]; do shift; done
echo report > "$2.nsys-rep"; shift 2
exec "$@"
"""

#: Uses AMD's runtime as far as its log goes.
WORKLOAD = """
import os
from pytest_aorta import Workload, WorkloadResult

class Job(Workload):
    def setup(self): pass
    def run(self):
        assert not {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"} & set(os.environ)
        if log := os.environ.get("AMD_LOG_LEVEL_FILE"):
            assert os.environ["AMD_LOG_LEVEL"] == "4"
            with open(f"{log}_{os.getpid()}", "w") as file:
                file.write(":3:hip_module.cpp:1: hipLaunchKernel\\n:1:hip_memory.cpp:2: out of memory\\n")
        return WorkloadResult(passed=True)
"""


#: Collector to its sentence, and its artifact.
COLLECTED = {
    "rocprof": ("most time on the device: gemm_kernel 90%, copy_kernel 10%", "_kernel_stats.csv"),
    "amd_log": ("1 errors, first: :1:hip_memory.cpp:2: out of memory", "hip.log_"),
    "nsys": ("", "profile.nsys-rep"),
}


@pytest.mark.parametrize("asked", ["rocprof,amd_log:level=4", "nsys:trace=cuda"])
def test_each_trial_has_its_own_files(stage: Stage, asked: str) -> None:
    for name, script in (("rocprofv3", STAND_IN_ROCPROF), ("nsys", STAND_IN_NSYS)):
        stage.write_file(f"tools/{name}", script).chmod(0o755)
    stage.write(job=WORKLOAD)
    path = f"{stage.path / 'tools'}{os.pathsep}{os.environ['PATH']}"
    result = stage.run("job.py", "--aorta-trials=2", f"--aorta-collect={asked}", env={"PATH": path})
    assert counts(result) == {"passed": 2}, text(result)
    for record in stage.trials().values():
        assert len(record["collected"]) == len(asked.split(","))
        for name, found in record["collected"].items():
            sentence, artifact = COLLECTED[name]
            assert (found["sentence"], found["problems"]) == (sentence, [])
            assert [artifact in each for each in found["artifacts"]] == [True]


def test_without_a_file_it_is_said_that_nothing_was_seen(tmp_path: Path) -> None:
    assert AmdLog({}).summarize(tmp_path, [0]).sentence == "no process has used AMD's HIP runtime"
    assert Rocprof({}).summarize(tmp_path, [0]).sentence == "rocprofv3 has seen no kernel"
