"""Which copies of the libraries that matter are loaded in this process.

The RCCL of a wheel, of the system and a preloaded one have one name; the path tells them apart.
"""

from __future__ import annotations

import re
from pathlib import Path

_RELEVANT = re.compile(
    r"lib(?:nccl|rccl|mscclpp|nvshmem|rocshmem|ucp|fabric"
    r"|amdhip64|hsa-runtime64|hipblas|hipblaslt|rocblas|hipsparse|rocsolver|MIOpen|hiprtc|amd_comgr"
    r"|cuda|cudart|cublas|cublasLt|cudnn|cusparse|cusolver|nvrtc"
    r"|torch_cpu|torch_cuda|torch_hip|c10|gomp|omp|iomp5|mkl_\w+|openblas\w*|scipy_openblas\w*|blis|dnnl"
    r"|jemalloc|tcmalloc\w*|mimalloc|asan|tsan)[-.\d]*\b.*\.so"
)


def loaded_libraries(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Paths of the relevant shared libraries mapped now, sorted; empty where the kernel does not list them."""
    try:
        text = maps.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    paths = {columns[5] for columns in (line.split(None, 5) for line in text.splitlines()) if len(columns) == 6}
    return sorted(path for path in paths if _RELEVANT.match(path.rpartition("/")[2]))
