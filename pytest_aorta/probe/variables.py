"""Which environment variables of a trial are recorded, and which never are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_aorta.probe.plain import printable, words

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

REDACTED = "<redacted>"
"""Stands for the value of a known variable that carries a secret inside it."""

FAMILIES = words(
    """
    CUDA CUBLAS CUBLASLT CUDNN CUFFT CUSPARSE CUTLASS NVTE NVSHMEM
    HIP HIPBLAS HIPBLASLT HSA HSAKMT ROC ROCM ROCR ROCBLAS ROCSOLVER ROCSPARSE ROCFFT ROCPROFILER ROCSHMEM
    MIOPEN TENSILE AMD AMDGPU GPU AITER
    NCCL RCCL GLOO UCX FI IBV MSCCL MSCCLPP
    TORCH PYTORCH TORCHINDUCTOR TORCHDYNAMO TORCHELASTIC PET TRITON ATEN
    OMP GOMP KMP MKL ONEDNN DNNL OPENBLAS BLIS
    SLURM
    """
)
"""Families of variables: ``ROC`` has the member ``ROC`` and those that start with ``ROC_``, so not ``ROCKET_X``."""

NAMES = words(
    """
    RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE ROLE_NAME
    MASTER_ADDR MASTER_PORT
    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
    DISABLE_TF32 NVIDIA_TF32_OVERRIDE NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES
    LD_LIBRARY_PATH LD_PRELOAD GLIBC_TUNABLES MALLOC_ARENA_MAX MALLOC_CONF MALLOC_PERTURB_
    PYTHONHASHSEED PYTHONMALLOC PYTHONOPTIMIZE
    """
)
"""Single names outside the families: ranks, numerics, and what decides which libraries and allocator are loaded."""

# A family is a naming convention, and may have tokens in it (SLURM_JWT is set by SLURM itself). Losing a harmless
# variable costs a line in a report, publishing a token costs more: so these match anywhere in the name ...
_SECRET_WORDS = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|API_KEY|ACCESSKEY|PRIVATEKEY|JWT"
)
# ... and these, which are also syllables of harmless words, as a whole part between underscores.
_SECRET_PARTS = frozenset(
    {"AUTH", "BEARER", "COOKIE", "CRED", "CREDS", "KEY", "KEYS", "OAUTH", "PRIVATE", "PW", "PWD", "SIGNATURE"}
)
# sbatch --export=ALL,HF_TOKEN=... comes back here with the assignments inside; nothing in it is worth that.
_NEVER = frozenset({"SLURM_EXPORT_ENV"})

_USER_IN_URL = re.compile(r"://[^/\s@]*@")
# NAME=value, and "name": value. Not NAME:value: the folders of a search path are separated like that.
_ASSIGNMENT = re.compile(r"(\w+)[\"']?\s*=|[\"'](\w+)[\"']\s*:")


def recorded_variables(environ: Mapping[str, str], overlay: Collection[str] = ()) -> dict[str, str]:
    """The variables of ``environ`` that go into a trial's file, sorted by name.

    Recorded as they are: those named in ``overlay``, because the user asked for them by name. Recorded when they look
    harmless: members of ``FAMILIES`` and ``NAMES``. A name that says it is a secret is left out; a value that holds one
    (``redis://user:password@host``, ``A_TOKEN=...``) is replaced by ``REDACTED``. Nothing else is recorded.
    """
    named = frozenset(overlay)
    found: dict[str, str] = {}
    # Over the names, not the items: os.environ decodes each value that is looked at, and this runs in every trial.
    for name in environ:
        if name in named:
            found[printable(name)] = printable(environ[name])
        elif (name in NAMES or name.partition("_")[0] in FAMILIES) and not _says_secret(name):
            value = environ[name]
            found[printable(name)] = REDACTED if _holds_secret(value) else printable(value)
    return dict(sorted(found.items()))


def _says_secret(name: str) -> bool:
    if name in _NEVER:
        return True
    upper = name.upper()
    if _SECRET_WORDS.search(upper):
        return True
    parts = upper.split("_")
    # PASS inside a name is a compiler's pass (TRITON_DUMP_PASS_STAGES), at its end more likely a password.
    return parts[-1] == "PASS" or not _SECRET_PARTS.isdisjoint(parts)


def _holds_secret(value: str) -> bool:
    if "://" in value and _USER_IN_URL.search(value):
        return True
    return any(_says_secret(left or right) for left, right in _ASSIGNMENT.findall(value))
