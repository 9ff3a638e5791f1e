"""Thirty ends of programs: what was printed, the exit status, and who takes it for a failure: AORTA's tiers, or we."""

from __future__ import annotations

BOTH, OURS, THEIRS, NONE = "both", "ours", "theirs", "none"

#: Printed, exit status, and who finds a failure without any pattern of the user.
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
    ("no loss=nan was found", 0, THEIRS),  # it is denied
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
