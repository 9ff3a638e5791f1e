"""What a line says by itself: NaN in all spellings of real logs, and nothing in lines that only look like it."""

from __future__ import annotations

import math

import pytest

from pytest_aorta.trials.output import DETECTORS, detected_in, number, plain_line

#: As training scripts and their libraries print them: torch, NumPy, transformers, Lightning, nanoGPT, Megatron,
#: DeepSpeed, fairseq, Keras, tqdm, rich, C and Windows.
NOT_FINITE = """
 50%|#####     | 5/10 [00:01<00:01, 4.9it/s, loss=nan|
\x1b[1mtrain_loss\x1b[0m=\x1b[31mNaN\x1b[0m acc=0.1
{'loss': 'nan', 'grad_norm': 'inf', 'learning_rate': '5e-05', 'epoch': '0.1'}
{"step": 4, "loss": -Infinity}
Epoch 0: 100%|##########| 64/64 [00:01<00:00, 50.1it/s, v_num=3, train_loss=nan.000]
iter 10: loss nan, time 12.30ms, mfu -100.00%
 iteration  10/ 100 | consumed samples: 80 | lm loss: NAN | grad norm: nan | number of nan iterations: 1
1875/1875 [==============================] - 3s 1ms/step - loss: nan - accuracy: 0.0987
\u2502 val_loss \u2502 nan \u2502
loss tensor(nan, device='cuda:0')
np.float64(nan)
Loss is nan, stopping training
Loss is NaN or Inf!
RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.
WARNING: NaN or Inf found in input tensor.
found NaN in local grad norm in backward pass before data-parallel communication collective
NaN loss detected at step 120
loss became nan at step 7
perplexity inf
| ppl      inf
loss -inf
loss: -nan(ind)
loss = 1.#QNAN
loss = -1.#IND00
scale 1.#INF
loss: \u221e
loss ->nan
avg_loss 0.5 nan 0.3
tensor([0.1, inf], grad_fn=<MulBackward0>)
max abs diff nan
'eval_loss': np.float32(nan)
array(nan, dtype=float32)
torch.tensor(nan)
loss_ce nan loss_bbox nan
[default1]:step 4 loss nan
Detected inf in gradients
FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding: loss is nan
AssertionError: loss was nan
ValueError: loss evaluated to nan at batch 3: got nan
checksum: float('nan')
output contains nans
""".strip("\n").split("\n")  # fmt: skip

CLEAN = """
inference took 3 ms
torch.isnan(loss).any() = False
tests/test_nan.py::test_inf PASSED
loading /data/nan/train.bin
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3021
nanoGPT: number of parameters: 10.65M
nanoseconds per step: 12
elapsed_ns=120 nanos=5
[12:00:01 INF] request took 5 ms
2024-05-01 12:00:01 INF Starting server
[INF] listening
{"level":"INF","msg":"ready"}
number of nan iterations:   0 |
 iteration 10/ 100 | lm loss: 1.05E+01 | number of skipped iterations:   0 | number of nan iterations:   0 |
no NaN found
nan=0 inf=0
'nan': 0, 'inf': 0
NaN check passed
NaN check: ok
detect_anomaly: will raise if nan is produced
raise an error if the loss is nan
XGBClassifier(missing=nan, n_jobs=4)
fill_value=nan
Epoch 1: val_loss improved from inf to 0.34821, saving model to best.keras
Validation loss decreased (inf --> 0.348210).  Saving model ...
EarlyStopping: best: inf
best_val_loss=inf
best_loss: inf patience: 3
min_loss inf
patience=inf
max_grad_norm: inf
clip_grad=inf
norm_type=inf
attn_mask=-inf
mask_value: -inf
masked_fill(mask, float('-inf'))
Namespace(lr=0.1, timeout=inf, max_steps=inf)
nan.py passed
nan-safe softmax enabled
author: Nan Li
nan guard is on
Infinity Fabric link up
AMD Infinity Cache: 256 MB
loss 0.5 (nans skipped: 0)
Is NaN: False
isnan 0 isinf 0
math.inf is used as sentinel
""".strip("\n").split("\n")  # fmt: skip


def test_nothing_is_missed_and_nothing_is_found_in_clean_lines() -> None:
    assert [line for line in NOT_FINITE if "nan" not in detected_in(plain_line(line))] == []
    assert [line for line in CLEAN if detected_in(line)] == []


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
    ("cuda-error", "assert"): "RuntimeError: CUDA error: device-side assert triggered",
}


def test_each_library_is_understood() -> None:
    assert {name for names in SAID for name in names} | {"nan"} == set(DETECTORS)
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
    **dict.fromkeys(["", "x", "1e", "abc", "1.2.3", "3/10", "1,234", "0.1,0.2", "2024-01-01", "12:30", "0x1f", "v2"]),
    **dict.fromkeys(["-inf", "-1.#INF", "-Infinity)", "\x1b[31m-inf\x1b[0m"], -math.inf),
    **dict.fromkeys(["inf|", "\N{INFINITY}", "1.#INF00", "Infinity,"], math.inf),
    **dict.fromkeys(
        ["nan", "NaN%", "nan.", "nan|", "**nan**", "loss=nan", "tensor(nan,", "tensor(nan, device='cuda:0')"], math.nan
    ),
    **dict.fromkeys(
        ["np.float64(nan)", "\x1b[31mnan\x1b[0m", "1.#QNAN", "-nan(ind)", "float('nan')", "-nan"], math.nan
    ),
}


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_is_read_whatever_is_around_it(text: str) -> None:
    found, expected = number(text), NUMBERS[text]
    assert repr(found) == repr(expected) or found == expected
