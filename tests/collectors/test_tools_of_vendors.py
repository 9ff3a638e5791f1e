"""``rocprof``, ``nsys`` and ``amd_log``, with stand-ins: no machine here has the tools."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.stage import Stage, counts, text

from pytest_aorta.collectors.contract import CollectorError, Context, load
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

#: Recorded from `nsys stats --report cuda_gpu_kern_sum --format csv` of Nsight Systems 2024; names are shortened.
RECORDED = """Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
 75.0,3000000,10,300000.0,299000.0,290000,320000,900.0,"sm90_xmma_gemm_f32f32<float, 4>"
 25.0,1000000,5,200000.0,200000.0,190000,210000,700.0,vectorized_elementwise_kernel
"""

STAND_IN_NSYS = rf"""#!/bin/bash
# Stand-in of nsys: "nsys profile OPTIONS -o FILE COMMAND", and "nsys stats OPTIONS --output FILE REPORT".
if [ "$1" = stats ]; then
while [ "$1" != --output ]; do shift; done
cat > "$2_cuda_gpu_kern_sum.csv" <<'CSV'
{RECORDED}CSV
exit; fi
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
    "nsys": (
        "most time on the device: sm90_xmma_gemm_f32f32<float, 4> 75%, vectorized_elementwise_kernel 25%",
        "profile",
    ),
}


@pytest.mark.parametrize("asked", ["rocprof,amd_log:level=4", "nsys:trace=cuda+nvtx"])
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
            assert {artifact in each for each in found["artifacts"]} == {True}


def test_without_a_file_it_is_said_that_nothing_was_seen(tmp_path: Path) -> None:
    assert AmdLog({}).summarize(tmp_path, [0]).sentence == "no process has used AMD's HIP runtime"
    assert Rocprof({}).summarize(tmp_path, [0]).sentence == "rocprofv3 has seen no kernel"


def prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> list[str]:
    """The words before a trial's command, without the tool, its folder and the last one."""
    monkeypatch.setattr("shutil.which", lambda name, path=None: f"/opt/{name}")
    context = Context(tmp_path, "job.py:Job", (), sys.executable, {})
    [collector] = load([text]).values()
    return [each for each in collector.preparation(context).prefix if str(tmp_path) not in each][1:-1]


def test_options_of_rocprof_are_those_of_the_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = ["-d", "-o", "process_%pid%"]
    assert prefix(monkeypatch, tmp_path, "rocprof") == [
        *("--kernel-trace", "--stats", "--output-format", "csv"),
        *output,
    ]
    text = "rocprof:trace=hip_runtime+scratch:stats=false:output_format=pftrace:kernel_include_regex=gemm.*"
    assert prefix(monkeypatch, tmp_path, f"{text}:summary_units=usec:pmc=SQ_WAVES+GRBM_COUNT") == [
        *("--hip-runtime-trace", "--scratch-memory-trace", "--output-format", "pftrace", *output),
        *("-S", "--summary-output-file", "summary", "-u", "usec", "--kernel-include-regex", "gemm.*"),
        *("--pmc", "SQ_WAVES", "GRBM_COUNT"),
    ]
    (tmp_path / "process_1_counter_collection.csv").write_text(
        "Kernel_Name,Counter_Name,Counter_Value\ngemm,SQ_WAVES,3\ncopy,SQ_WAVES,4\ngemm,GRBM_COUNT,2\n"
    )
    found = load(["rocprof:pmc=SQ_WAVES+GRBM_COUNT:output_format=json"])["rocprof"].summarize(tmp_path, [0])
    assert (found.sentence, found.data["counters"]) == ("", {"SQ_WAVES": 7, "GRBM_COUNT": 2})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rocprof:trace=kernel+hp", "rocprof:trace=kernel+hp: hp is none of kernel, hip, hip_runtime, "),
        ("rocprof:trace=", "rocprof:trace=: nothing is none of kernel, "),
        ("rocprof:output_format=xml", "output_format=xml: xml is none of csv, json, pftrace, otf2, rocpd"),
        ("proton:backend=cuda", "proton:backend=cuda: cuda is none of auto, cupti, "),
        ("proton:granularity=warp", "instrumentation_mode and granularity need backend=instrumentation"),
        ("proton,rocprof", "proton and rocprof exclude each other"),
    ],
)
def test_an_option_that_a_tool_does_not_have_is_refused(text: str, said: str) -> None:
    with pytest.raises(CollectorError) as error:
        load(text.split(","))
    assert said in str(error.value)


#: Double of Triton's profiler, which needs a GPU: writes the tree that it would, of two kernels.
PROTON = """
import json
def start(name, **options):
    global session
    session = name, options
def finalize():
    def kernel(name, ms): return {"frame": {"name": name}, "metrics": {"time (ns)": ms * 1e6}, "children": []}
    root = {"frame": {"name": "ROOT"}, "metrics": {}, "children": [kernel("matmul", 3), kernel("softmax", 1)]}
    tree = [root, session[1]]
    with open(f"{session[0]}.hatchet", "w") as file: json.dump(tree, file)
"""


@pytest.mark.slow
def test_proton_is_started_in_the_trial_where_triton_is_installed_and_refused_elsewhere(stage: Stage) -> None:
    stage.write(job="import torch\n" + WORKLOAD)
    if find_spec("triton") is None:
        result = stage.run("job.py", "--aorta-collect=proton")
        assert "has no triton.profiler; it comes with pip install triton" in text(result)
    stage.write_file("double/triton/__init__.py", "")
    stage.write_file("double/triton/profiler/__init__.py", PROTON)
    path = {"PYTHONPATH": str(stage.path / "double")}
    stage.run("job.py", "--aorta-trials=1", "--aorta-collect=proton:context=python", env=path)
    found = stage.trials().popitem()[1]["collected"]["proton"]
    assert (found["sentence"], found["problems"]) == ("most time on the device: matmul 75%, softmax 25%", [])
    tree = json.loads(next(stage.path.rglob("*.hatchet")).read_text())
    assert tree[1] == {"context": "python", "data": "tree"}
