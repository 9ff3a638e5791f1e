"""What a line says by itself: NaN in all spellings of real logs, and nothing in lines that only look like it."""

from __future__ import annotations

import math
import re
from pathlib import Path

from pytest_aorta.trials.lines import DETECTORS, detected_in, is_of_metrics, not_finite_in, number, plain_line

_, *LINES = re.split(
    r"^\[(?:bad|innocent)\]\n", (Path(__file__).parent / "lines_of_programs.txt").read_text(), flags=re.M
)
BAD, INNOCENT = map(str.splitlines, LINES)


def test_no_bad_line_is_missed_and_few_innocent_ones_are_flagged() -> None:
    assert len(set(BAD)) == len(BAD) >= 100
    assert len(set(INNOCENT)) == len(INNOCENT) >= 200
    assert [line for line in BAD if "nan" not in detected_in(plain_line(line))] == []
    assert len([line for line in INNOCENT if detected_in(plain_line(line))]) <= len(INNOCENT) // 100


def test_a_value_that_is_not_finite_has_the_name_before_it() -> None:
    cases: list[tuple[str, list[tuple[str, str]]]] = [
        ("skip: loss is nan", [("NaN", "loss")]),
        ("lm loss: 1.0 | grad norm: nan | number of nan iterations:   0 |", [("NaN", "grad norm")]),
        ("{'loss': nan, 'grad_norm': inf}", [("NaN", "loss"), ("inf", "grad_norm")]),
        ("reward: inf, best: inf", [("inf", "reward")]),  # a metric of the user's
        ("eval_loss: nan, loss: nan", [("NaN", "eval_loss")]),  # the other one may be so
        ("reward: -inf, loss: -inf", []),
        ("a sentence of more than six words says nan", []),
    ]
    for line, found in cases:
        assert not_finite_in(line, metrics={"reward"}, allowed={"loss"} if "eval" in line else ()) == found


#: By the detectors that find something there, as the libraries write them.
SAID = {
    ("oom",): """
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 14.56 GiB
RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB
RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory
terminate called after throwing an instance of 'std::bad_alloc'
RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`
Out of memory: Killed process 4242 (python)
HIP runtime call failed with hipError_OutOfMemory (status=2)
""",
    ("nccl",): """
torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268
ncclUnhandledCudaError: Call to CUDA function failed.
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
node1: Test NCCL failure all_reduce.cu:54 'internal error'
""",
    ("hip-fault",): """
Memory access fault by GPU node-4 (Agent handle: 0x55d) on address 0x7f0000. Reason: Page not present
:0:rocdevice.cpp:2614: Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION
HW Exception by GPU node-2 (Agent handle: 0x1) reason :GPU Hang
RuntimeError: HIP error: invalid device function
HIP runtime call failed with hipError_IllegalAddress (status=700)
hsa-runtime: failed to allocate Error code: 1
amdgpu 0000:0c:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32770)
""",
    ("cuda-error",): """
RuntimeError: CUDA error: an illegal memory access was encountered
NVRM: Xid (PCI:0000:1a:00): 79, pid=1234, GPU has fallen off the bus.
RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED
cudaErrorLaunchFailure: unspecified launch failure
""",
    ("watchdog",): """
[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 milliseconds
watchdog: BUG: soft lockup - CPU#3 stuck for 22s!
RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 10000 ms
INFO: task python:123 blocked for more than 120 seconds.
""",
    ("assert",): """
python: kernel.cpp:88: void f(): Assertion `n > 0' failed.
AssertionError: shapes differ
RuntimeError: Expected x INTERNAL ASSERT FAILED at "../c10/core/TensorImpl.h":12
""",
    ("worker",): """
ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).
RuntimeError: DataLoader worker (pid 3217) is killed by signal: Killed.
RuntimeError: DataLoader worker (pid(s) 3217, 3220) exited unexpectedly
""",
    ("cuda-error", "assert"): "RuntimeError: CUDA error: device-side assert triggered",
}


def test_each_library_is_understood() -> None:
    assert {name for names in SAID for name in names} | {"nan", "traceback"} == set(DETECTORS)
    wrong = [
        (line, detected_in(line))
        for names, lines in SAID.items()
        for line in lines.strip().splitlines()
        if not set(names) <= set(detected_in(line)) or set(detected_in(line)) - {*names, "cuda-error"}
    ]
    assert wrong == []


#: What a group of an expression catches, and its number.
NUMBERS: dict[str, float | None] = {
    **{"12": 12, "-3": -3, "1e3": 1000.0, "50%": 50, "(0.25)": 0.25, "0.5,": 0.5, "'0.5'": 0.5, "5.": 5.0},
    **{"12ms": 12, "10.0it/s": 10.0, "1e-3|": 0.001, "45%|####": 45, "tensor(0.5000,": 0.5, "lr=0.1": 0.1},
    **{"7,282": 7282, "1,234,567.5": 1234567.5},
    **dict.fromkeys(["", "x", "1e", "abc", "1.2.3", "3/10", "1,23", "0.1,0.2", "2024-01-01", "12:30", "0x1f", "v2"]),
    **dict.fromkeys(["-inf", "-1.#INF", "-Infinity)", "\x1b[31m-inf\x1b[0m"], -math.inf),
    **dict.fromkeys(["inf|", "\N{INFINITY}", "1.#INF00", "Infinity,"], math.inf),
    **dict.fromkeys(
        ["nan", "NaN%", "nan.", "nan|", "**nan**", "loss=nan", "tensor(nan,", "tensor(nan, device='cuda:0')"], math.nan
    ),
    **dict.fromkeys(
        ["np.float64(nan)", "\x1b[31mnan\x1b[0m", "1.#QNAN", "-nan(ind)", "float('nan')", "-nan"], math.nan
    ),
}


def test_a_number_is_read_whatever_is_around_it() -> None:
    for text in NUMBERS:
        found, expected = number(text), NUMBERS[text]
        assert repr(found) == repr(expected) or found == expected


def test_a_line_of_metrics_says_nothing_else() -> None:
    cases: list[tuple[str, bool]] = [
        ("step 12 loss 0.5", True),
        ("[rank0]: Epoch 3/9: train loss nan, acc 0.91 (3 ms)", True),
        ("{'loss': 0.5, 'epoch': 1.0}", True),
        ("[titan] - root - INFO - step: 31  loss:  0.25", True),
        ("shapes do not match in batch 5", False),
        ("step 5: bad checksum", False),
        ("checksum mismatch: 12 != 14", False),
        ("golden value differs: 0.841", False),
        ("loss 0.5 differs from golden 0.6", False),
        ("3 updates are lost", False),
        ("done", False),
    ]
    for line, is_so in cases:
        assert is_of_metrics(line) == is_so
