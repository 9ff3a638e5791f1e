"""The environments that come with the package: both are the host and the interpreter that pytest runs in."""

from __future__ import annotations

from typing import Final

from pytest_aorta.registry.types import BUILTIN_SOURCE, Environment, Mitigation

BUILTIN_ENVIRONMENTS: Final = (
    Environment("local", source_package=BUILTIN_SOURCE),
    # Recipes of other tools call the same thing so.
    Environment("default", source_package=BUILTIN_SOURCE),
)


# The mitigations that come with the package.
#
# ``read_by`` and the comments say what reads the variable: one that nothing reads makes a second baseline under
# another name. The CPU ones were tried, and say what was seen, with torch 2.13 (MKL 2024.2, oneDNN 3.12, libgomp) and
# glibc 2.36 on an AMD EPYC with AVX-512; OMP_DYNAMIC=FALSE was tried too and left out, as libgomp's default is already
# that. The GPU ones are taken from the sources and the documentation of the libraries named, not from a run on such a
# machine.


def _mitigation(name: str, env: dict[str, str], read_by: str = "") -> Mitigation:
    return Mitigation(name, env, BUILTIN_SOURCE, read_by)


BUILTIN_MITIGATIONS: Final = (
    # The baseline: nothing is set.
    _mitigation("none", {}),
    #
    # --- AMD: the HSA runtime (ROCr and its thunk), read once, when the process opens the GPU ---
    #
    # ROCr asks the driver for retryable page faults. Refused, silently, by GPUs whose hardware cannot replay them.
    _mitigation("xnack", {"HSA_XNACK": "1"}, read_by="ROCr (HSA runtime)"),
    # ROCr: copies are done by kernels instead of the SDMA engines.
    _mitigation("hsa_no_sdma", {"HSA_ENABLE_SDMA": "0"}, read_by="ROCr (HSA runtime)"),
    # ROCr: scratch memory is kept for the life of a queue. Some images (rocm/primus, ROCm's own CI) export it already;
    # there this is the baseline.
    _mitigation("hsa_no_scratch_reclaim", {"HSA_NO_SCRATCH_RECLAIM": "1"}, read_by="ROCr (HSA runtime)"),
    # The thunk maps GPU memory uncached. Any value but "0" means yes. Slow.
    _mitigation("hsa_disable_cache", {"HSA_DISABLE_CACHE": "1"}, read_by="ROCr's thunk"),
    # The opposite, for images that export HSA_DISABLE_CACHE=1. Elsewhere this is the default.
    _mitigation("hsa_enable_cache", {"HSA_DISABLE_CACHE": "0"}, read_by="ROCr's thunk"),
    #
    # --- AMD: the HIP runtime (CLR), read once, when libamdhip64 initialises ---
    #
    # CLR, and newer ROCrs: streams share two hardware queues instead of four.
    _mitigation("gpu_max_hw_queues_2", {"GPU_MAX_HW_QUEUES": "2"}, read_by="CLR (HIP runtime), newer ROCrs"),
    # CLR: how streams are spread over hardware queues. Older CLRs read a flag, for which 2 is the same as 1, and the
    # oldest do not have it.
    _mitigation("debug_hip_dynamic_queues_1", {"DEBUG_HIP_DYNAMIC_QUEUES": "1"}, read_by="CLR (HIP runtime)"),
    _mitigation("debug_hip_dynamic_queues_2", {"DEBUG_HIP_DYNAMIC_QUEUES": "2"}, read_by="CLR (HIP runtime)"),
    # CLR: packets in a hardware queue (default 16384), so that launches block earlier.
    _mitigation("roc_aql_queue_size_1024", {"ROC_AQL_QUEUE_SIZE": "1024"}, read_by="CLR (HIP runtime)"),
    # CLR: signals allocated at the start (default 32), so that none is allocated, or recycled, while kernels run.
    _mitigation("roc_signal_pool_16k", {"ROC_SIGNAL_POOL_SIZE": "16384"}, read_by="CLR (HIP runtime)"),
    # CLR: copies below 128 KiB are done by kernels instead of the SDMA engines (default: none).
    _mitigation("gpu_force_blit_copy_128", {"GPU_FORCE_BLIT_COPY_SIZE": "128"}, read_by="CLR (HIP runtime)"),
    # CLR: smallest batch that a synchronisation waits for on the host (default 8). Newer CLRs only.
    _mitigation(
        "debug_clr_no_batch_cpu_sync", {"DEBUG_CLR_BATCH_CPU_SYNC_SIZE": "0"}, read_by="newer CLRs (HIP runtime)"
    ),
    # CLR: waits for every kernel after its launch; the same as AMD_SERIALIZE_KERNEL=2.
    _mitigation("hip_launch_blocking", {"HIP_LAUNCH_BLOCKING": "1"}, read_by="CLR (HIP runtime)"),
    # CLR: logs every call to stderr. Slow enough to hide a race, which is why it is here.
    _mitigation("amd_log_level_4", {"AMD_LOG_LEVEL": "4"}, read_by="CLR (HIP runtime)"),
    #
    # --- AMD: libraries above it ---
    #
    # Only hipBLASLt was ever said to read it; users who searched the binaries of current ROCm stacks found that nothing
    # does. Kept because recipes name it: expect a second baseline. On NVIDIA take nvidia_tf32_override_off.
    _mitigation("tf32_off", {"DISABLE_TF32": "1"}, read_by="nothing in current ROCm stacks"),
    # RCCL on gfx942 and gfx950: a full fence on the sender's side. The first name is the one that current RCCLs read;
    # the second, found in no current binary, is for older ones.
    _mitigation(
        "rccl_gfx942_cheap_fence_off",
        {"RCCL_GFX9_CHEAP_FENCE_OFF": "1", "RCCL_GFX942_CHEAP_FENCE_OFF": "1"},
        read_by="RCCL on gfx942, gfx950",
    ),
    # ROCm builds of torch, for scaled_dot_product_attention. Refused, with a warning, by builds without CK.
    _mitigation("fa_prefer_ck", {"TORCH_ROCM_FA_PREFER_CK": "1"}, read_by="torch for ROCm"),
    # The same variable with the value that is the default, for images that export 1. Elsewhere this is a baseline.
    _mitigation("fa_prefer_aotriton", {"TORCH_ROCM_FA_PREFER_CK": "0"}, read_by="torch for ROCm"),
    #
    # --- both vendors ---
    #
    # NCCL 2.26 and later, and the RCCLs made from them: collectives of several communicators run in the order of their
    # launch on the host. Reported to crash every rank with signal 11 on some RCCL builds: a crash here may be its own.
    _mitigation("nccl_launch_order_implicit", {"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}, read_by="NCCL from 2.26 on, RCCL"),
    # torch's CUDA and HIP allocator: every tensor is its own cudaMalloc. Any value, also "0", means yes.
    _mitigation(
        "pytorch_no_cuda_memory_caching", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, read_by="torch's GPU allocator"
    ),
    # torch's CUDA and HIP allocator. The name is the old one, which torch before 2.9 needs and later ones still read
    # (2.13 prefers it to PYTORCH_ALLOC_CONF). Refused, with a warning, where the platform lacks virtual memory calls.
    _mitigation(
        "pytorch_alloc_expandable_segments",
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        read_by="torch's GPU allocator",
    ),
    # The CUDA driver: waits for every kernel after its launch. NCCL and RCCL read it too. Of the HIP runtimes only the
    # old ones did: there take hip_launch_blocking.
    _mitigation("cuda_launch_blocking", {"CUDA_LAUNCH_BLOCKING": "1"}, read_by="CUDA driver, NCCL, RCCL"),
    #
    # --- NVIDIA, and what NCCL and RCCL share ---
    #
    # NVIDIA's libraries (cuBLAS, cuDNN): never TF32, whatever the framework asks for.
    _mitigation("nvidia_tf32_override_off", {"NVIDIA_TF32_OVERRIDE": "0"}, read_by="cuBLAS, cuDNN"),
    # cuBLAS, and torch.use_deterministic_algorithms, which asks for it: a fixed workspace, hence reproducible sums when
    # several streams share a handle.
    _mitigation("cublas_workspace_4096_8", {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, read_by="cuBLAS, torch"),
    # NCCL, RCCL: no direct access between the GPUs of a host; shared memory instead.
    _mitigation("nccl_p2p_off", {"NCCL_P2P_DISABLE": "1"}, read_by="NCCL, RCCL"),
    # NCCL, RCCL: sockets instead of InfiniBand or RoCE. Changes nothing on one host.
    _mitigation("nccl_ib_off", {"NCCL_IB_DISABLE": "1"}, read_by="NCCL, RCCL"),
    # NCCL, RCCL: one algorithm and one protocol, so that the order of a reduction does not depend on its size.
    _mitigation("nccl_algo_ring", {"NCCL_ALGO": "Ring"}, read_by="NCCL, RCCL"),
    _mitigation("nccl_proto_simple", {"NCCL_PROTO": "Simple"}, read_by="NCCL, RCCL"),
    #
    # --- CPU ---
    #
    # libgomp and torch: torch.get_num_threads() was 1 instead of 2, and sums and dot products changed bits. Both
    # variables are needed: where the host exports MKL_NUM_THREADS, torch obeys that one (2 threads were seen with
    # MKL_NUM_THREADS=2 and OMP_NUM_THREADS=1). torchrun exports OMP_NUM_THREADS=1 itself: there this is the baseline.
    _mitigation("omp_1", {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}, read_by="libgomp, MKL, torch"),
    # MKL (matrix products and LAPACK in x86 builds of torch): one code path on every CPU. MKL_VERBOSE said
    # CNR:COMPATIBLE, and mm, dot, svd and solve changed bits, also on this AMD CPU.
    _mitigation("mkl_cbwr_compatible", {"MKL_CBWR": "COMPATIBLE"}, read_by="MKL"),
    # ATen: kernels without vector instructions. get_cpu_capability() went from AVX512 to DEFAULT; matrix products,
    # convolutions and element-wise functions changed bits, since ATen hands the choice on to MKL and oneDNN.
    _mitigation("aten_cpu_default", {"ATEN_CPU_CAPABILITY": "default"}, read_by="ATen (torch)"),
    # oneDNN: ONEDNN_VERBOSE said SSE4.1 instead of AVX-512; convolutions and bfloat16 products changed bits. The name
    # is assembled at run time, so a search of the binaries does not find it.
    _mitigation("onednn_isa_sse41", {"ONEDNN_MAX_CPU_ISA": "SSE41"}, read_by="oneDNN"),
    # glibc: fresh memory is filled with 0x5a, freed memory with 0xa5 (165). torch.empty() showed 0x5a where it had
    # shown zeros: what changes with it reads uninitialized memory.
    _mitigation("malloc_perturb", {"MALLOC_PERTURB_": "165"}, read_by="glibc"),
    # glibc: a block of a page or more for which the heap must grow is a mapping of its own (59 of 60 were seen to be, 0
    # of 60 without), unmapped when it is freed: it starts as zeros, and touching it after it was freed is a crash
    # instead of a wrong number. Linux gives a process 65530 mappings by default; a process with more blocks than that
    # gets the rest from the heap, and may fail to start threads.
    _mitigation("mmap_always", {"MALLOC_MMAP_THRESHOLD_": "4096"}, read_by="glibc"),
)
