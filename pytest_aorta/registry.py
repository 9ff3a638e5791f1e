"""Names -> workloads, mitigations, environments and collectors.

Payloads are checked by hand and not by pydantic: the rules are few, and collecting tests must not import pydantic.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from pytest_aorta.common.cache import cache_folder
from pytest_aorta.common.texts import COMMIT_PREFIX, INLINE_PREFIX
from pytest_aorta.settings import BESIDE, COLLECT, OPTION, PREFIX, RequestError

if TYPE_CHECKING:
    from importlib import metadata

EnvironmentKind = Literal["docker", "venv", "rocm", "local"]

#: What starts a process in a container.
Engine = Literal["docker", "podman"]

#: ``source_package`` of everything that this distribution brings itself.
BUILTIN_SOURCE: Final = "pytest-aorta"

# The values of variables may be secrets (a token for a private index, say), so the representations below, which end up
# in assertion messages and tracebacks, leave them out. Mappings do not hash, so they take part in equality only.


@dataclass(frozen=True)
class Mitigation:
    """A named bundle of environment variables, and of options of the workload.

    Attributes:
        name: as it is typed; unique in a registry.
        env: variable -> value; empty for the mitigation that changes nothing.
        source_package: ``pytest-aorta``, the name of a distribution, ``sidecar:<file name>``, or ``recipe``.
        read_by: names of the libraries that read the variables, for the user; empty where that is not known.
        options: option of the workload -> value, which is one of JSON.
        collect: the collectors that trials run with; ``None`` for those that the run asks for.
        launcher: words put before the command of a trial, and before the prefix of its environment.
        beside: words of a program that runs beside each trial, and is killed at its end.
    """

    name: str
    env: Mapping[str, str] = field(hash=False, repr=False)
    source_package: str
    read_by: str = field(default="", compare=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)
    collect: tuple[str, ...] | None = None
    launcher: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Environment:
    """Where a trial runs.

    Attributes:
        name: as it is typed; unique in a registry.
        docker: reference of a container image; a label, unless ``enter`` is set.
        venv: path of a virtual environment.
        rocm: a ROCm version, or the path of an installation; a label.
        launcher: words put before the command of a trial, such as ``("numactl", "--cpunodebind=0")``.
        env: variable -> value, set before those of the mitigations, which therefore win.
        enter: whether trials run in a container of the image, started by this engine, or by the first that is there.
        engine_options: words for the engine, before the image.
        repository, commit: of a commit: the top of its repository, and its whole hash.
        build: a command for the shell that makes the working tree of a commit ready, in it.
        beside: words of a program that runs beside each trial, of a mitigation.
        source_package: ``pytest-aorta``, the name of a distribution, or ``sidecar:<file name>``.
    """

    name: str
    docker: str | None = None
    venv: str | None = None
    rocm: str | None = None
    launcher: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    enter: bool | Engine = False
    engine_options: tuple[str, ...] = ()
    repository: str | None = None
    commit: str | None = None
    build: str = ""
    beside: tuple[str, ...] = ()
    source_package: str = field(kw_only=True)

    @property
    def folder(self) -> str | None:
        """The working directory of trials of a commit, in the user's cache folder; ``None`` for that of pytest."""
        if self.commit is None:
            return None
        key = hashlib.sha256(f"{self.repository}\n{self.commit}\n{self.build}".encode()).hexdigest()[:16]
        return str(cache_folder() / "commits" / key / "tree")

    @property
    def kind(self) -> EnvironmentKind:
        """The outermost part of the environment; ``local`` when it has none."""
        return "docker" if self.docker else "venv" if self.venv else "rocm" if self.rocm else "local"


@dataclass(frozen=True)
class WorkloadEntry:
    """Where the class of a workload is to be found; the registry never imports it.

    Attributes:
        name: as it is typed; unique in a registry.
        target: ``module:Class``, or ``/absolute/file.py:Class``.
        source_package: ``pytest-aorta`` or the name of a distribution.
        options: of the workload, that come with the entry.
    """

    name: str
    target: str
    source_package: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


#: Where an environment that is given by its packages comes from.
INLINE = "inline"


def requirements_of(name: str) -> list[str]:
    """What is installed in ``uv:REQUIREMENT REQUIREMENT...``, or ``uv:+REQUIREMENT...``; paths are absolute."""
    words = name.removeprefix(INLINE_PREFIX).removeprefix("+").split()
    return [os.path.abspath(word) if os.sep in word and os.path.exists(word) else word for word in words]


def is_over_ours(name: str) -> bool:
    """Whether the packages of pytest's Python are there as well, below those of ``uv:+REQUIREMENT...``."""
    return name.startswith(f"{INLINE_PREFIX}+")


def inline_environment(name: str) -> Environment:
    """A virtual environment in the user's cache folder, of its own for these packages and this interpreter.

    It need not be there. Of a package in a folder or a file, its content counts.
    """
    requirements = requirements_of(name)
    if not requirements:
        raise RegistryError(f"environment {name!r}: it names no package, as in {INLINE_PREFIX}numpy==1.26")
    below = f"over {sys.prefix}\n" if is_over_ours(name) else ""
    known = hashlib.sha256(f"{sys.version}\n{sys.base_prefix}\n{below}".encode())
    for requirement in sorted(requirements):
        path = Path(requirement.rpartition("file://")[2])
        files = [path, *(path.rglob("*") if path.is_dir() else ())] if os.sep in requirement and path.exists() else []
        known.update(f"{requirement}\n".encode())
        for file in sorted(files):
            if file.is_file() and file.suffix != ".pyc":
                known.update(f"{file}\n".encode() + file.read_bytes())
    folder = cache_folder() / "environments" / known.hexdigest()[:16]
    return Environment(name, venv=str(folder), source_package=INLINE)


def commit_environment(name: str) -> Environment:
    """A working tree of a commit, ``commit:REVISION`` or ``commit:REVISION@REPOSITORY``; it need not be there.

    Without a repository, it is that of the working directory.
    """
    revision, repository = name.removeprefix(COMMIT_PREFIX), ""
    if "@" in revision and not revision.endswith("}"):  # not HEAD@{1}
        revision, _, repository = revision.rpartition("@")
    where = ["git", "-C", repository or ".", "rev-parse"]
    words = [*where, "--show-toplevel", "--verify", "--end-of-options", f"{revision}^{{commit}}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise RegistryError(f"environment {name!r}: git cannot be run: {error}") from None
    if done.returncode != 0:
        why = " ".join(done.stderr.split()).removeprefix("fatal: ")
        raise RegistryError(f"environment {name!r}: {why}; expected commit:REVISION, or commit:REVISION@REPOSITORY")
    top, commit = done.stdout.split("\n")[:2]
    label = f"{COMMIT_PREFIX}{commit[:10]}" + (f"@{repository}" if repository else "")
    return Environment(label, repository=top, commit=commit, source_package=INLINE)


class RegistryError(RequestError):
    """A name, a plugin's payload or a sidecar file that cannot be used; the message says which and why."""


class RegistryCollisionError(RegistryError):
    """One name offered by two sources. There is no winner: a table must never depend on the order of ``sys.path``."""


class UnknownWorkloadError(RegistryError):
    """No workload has that name."""


class UnknownMitigationError(RegistryError):
    """No mitigation has that name."""


class UnknownEnvironmentError(RegistryError):
    """No environment has that name."""


class UnknownCollectorError(RegistryError):
    """No collector has that name."""


def one_line_of(error: BaseException) -> str:
    """Type and message of what a plugin has raised, on one line, so that a list of problems is a list of lines."""
    from pytest_aorta.common.texts import describe_exception  # only here: most runs have no broken plugin

    found = describe_exception(error)
    return " ".join(f"{found['type']}: {found['message']}".split())


# What comes with the package. Both environments are the host and the interpreter that pytest runs in.

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

#: Collectors that come with the package, and their classes.
BUILTIN_COLLECTORS: Final = {
    "amd_log": "pytest_aorta.collectors.machine:AmdLog",
    "divergence": "pytest_aorta.collectors.divergence:DivergenceCollector",
    "memory": "pytest_aorta.collectors.machine:Memory",
    "native": "pytest_aorta.collectors.machine:Native",
    "nsys": "pytest_aorta.collectors.machine:Nsys",
    "numerics": "pytest_aorta.collectors.numerics:Numerics",
    "profile": "pytest_aorta.collectors.machine:Profile",
    "proton": "pytest_aorta.collectors.machine:Proton",
    "rocprof": "pytest_aorta.collectors.machine:Rocprof",
}


# Untrusted data -> mitigations and environments

ENVIRONMENT_FIELDS: Final = ("docker", "venv", "rocm", "launcher", "env", "enter", "engine_options")

ENGINES: Final[tuple[Engine, ...]] = get_args(Engine)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def mitigation_from(payload: object, *, name: str, source_package: str, where: str) -> Mitigation:
    """Of variables, and options of the workload as ``config.NAME``."""
    options = {}
    if isinstance(payload, Mapping):
        options = {key: value for key, value in payload.items() if isinstance(key, str) and _is_option(key)}
        payload = {key: value for key, value in payload.items() if key not in options}
    own = {key.removeprefix(OPTION): value for key, value in options.items()}
    return Mitigation(name, _variables(payload, where), source_package, options=own)


def _is_option(text: str) -> bool:
    return text.startswith(OPTION) and text != OPTION and text.isprintable()


def option_value(text: str) -> Any:
    """The value of ``config.NAME=TEXT``; a text that is JSON is read as such."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def variable_from(text: str) -> Mitigation | None:
    """The mitigation that ``NAME=VALUE`` is, called so; ``None`` where it is none.

    ``config.NAME=VALUE`` is an option of the workload, ``collect=numerics+memory`` are collectors, or ``none``.
    """
    name, _, value = text.partition("=")
    if name == COLLECT and value:
        return Mitigation(text, {}, "the command line", collect=() if value == "none" else tuple(value.split("+")))
    if _is_option(name) and text.isprintable():
        return Mitigation(text, {}, "the command line", options={name.removeprefix(OPTION): option_value(value)})
    is_one = _VARIABLE.match(name) and _fits_environ(value) and text.isprintable()
    return Mitigation(text, {name: value}, "the command line") if is_one else None


def environment_from(
    payload: object, *, name: str, source_package: str, where: str, base: Path = Path()
) -> Environment:
    """Of fields; a relative ``venv`` is one in ``base``."""
    if not isinstance(payload, Mapping):
        raise RegistryError(f"{where}: must be a mapping of fields, not {_kind(payload)}")
    found: dict[str, Any] = {}
    for key, value in payload.items():
        place = f"{where}.{key}"
        if key not in ENVIRONMENT_FIELDS:
            raise RegistryError(f"{where}: unknown field {key!r}; valid fields: {', '.join(ENVIRONMENT_FIELDS)}")
        if key == "env":
            found[key] = _variables(value, place)
        elif value is None:
            continue
        elif key == "enter":
            if not isinstance(value, bool) and value not in ENGINES:
                shown = repr(value) if isinstance(value, str) else _kind(value)
                raise RegistryError(f"{place}: must be true, false or one of {', '.join(ENGINES)}, not {shown}")
            found[key] = value
        elif key in ("launcher", "engine_options"):
            found[key] = _words(value, place)
        elif not isinstance(value, str):
            raise RegistryError(f"{place}: must be a string, not {_kind(value)}")
        elif not value.strip() or not _fits_environ(value):
            raise RegistryError(f"{place}: {value!r} is empty or holds a character that no command line can hold")
        else:
            found[key] = str(base / os.path.expanduser(value)) if key == "venv" else value
    if found.get("enter") and "docker" not in found:
        raise RegistryError(f"{where}.enter: there is nothing to enter; name an image in the field 'docker'")
    if found.get("engine_options") and not found.get("enter"):
        raise RegistryError(f'{where}.engine_options: no engine is started; add "enter": true')
    return Environment(name, source_package=source_package, **found)


def _variables(payload: object, where: str) -> dict[str, str]:
    if not isinstance(payload, Mapping):
        raise RegistryError(f"{where}: must be a mapping of environment variables, not {_kind(payload)}")
    for key, value in payload.items():
        if not isinstance(key, str):
            raise RegistryError(f"{where}: the name of a variable must be a string, not {_kind(key)}")
        if not _VARIABLE.match(key):
            # "NAME=value" as the name is a likely slip: what follows the "=" is a value.
            shown = key if "=" not in key else key.partition("=")[0] + "=..."
            raise RegistryError(
                f"{where}: {shown!r} is not the name of an environment variable "
                "(ASCII letters, digits and '_', not a digit first)"
            )
        if not isinstance(value, str):
            raise RegistryError(f"{where}.{key}: the value must be a string, not {_kind(value)}")
        if not _fits_environ(value):
            raise RegistryError(f"{where}.{key}: the value holds a character that no environment variable can hold")
    return dict(payload)


def _words(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise RegistryError(f"{where}: {value!r} cannot be split into words: {error}") from error
    elif isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        words = list(value)
    else:
        raise RegistryError(f"{where}: must be a string or a list of strings, not {_kind(value)}")
    if not all(map(_fits_environ, words)):
        raise RegistryError(f"{where}: {words!r} hold a character that no command line can hold")
    return tuple(words)


def _fits_environ(value: str) -> bool:
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _kind(value: object) -> str:
    if isinstance(value, (list, tuple)) and not all(isinstance(item, str) for item in value):
        return f"a {type(value).__name__} with something else in it"
    return "null" if value is None else type(value).__name__


# Registry files in JSON, for mitigations and environments that no package brings.
#
# ``{"version": 1, "mitigations": {name: {VARIABLE: value}}, "environments": {name: {field: value}}}``

_VERSION: Final = 1

_SECTIONS: Final = ("mitigations", "environments")


def _read_sidecar(path: Path) -> Iterator[Mitigation | Environment]:
    content = _parse(path)
    for key in content:
        if key not in ("version", *_SECTIONS):
            raise RegistryError(f"{path}: unknown key {key!r}; valid keys: version, {', '.join(_SECTIONS)}")
    version = content.get("version")
    if type(version) is not int or version != _VERSION:  # not isinstance: true is an int in Python
        wrong = f"version {version!r} is not known" if "version" in content else "the key 'version' is missing"
        raise RegistryError(f'{path}: {wrong}; this release reads "version": {_VERSION}')
    source = f"sidecar:{path.name}"  # without its folder, which differs between hosts
    for key in _SECTIONS:
        section = content.get(key, {})
        if not isinstance(section, dict):
            raise RegistryError(f"{path}: {key}: must be an object of names, not {type(section).__name__}")
        for name, payload in section.items():
            where = f"{path}: {key}.{name}"
            if key == "mitigations":
                yield mitigation_from(payload, name=name, source_package=source, where=where)
            else:
                base = path.absolute().parent
                yield environment_from(payload, name=name, source_package=source, where=where, base=base)


def _parse(path: Path) -> dict[str, object]:
    def refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        # The json module lets the last one win, which here would drop a mitigation without a word.
        unique = dict(pairs)
        if len(unique) < len(pairs):
            twice = next(key for key, _ in pairs if [other for other, _ in pairs].count(key) > 1)
            raise RegistryCollisionError(f"{path}: the key {twice!r} is there twice in one object")
        return unique

    try:
        data = path.read_bytes()
        content = json.loads(data.decode("utf-8-sig"), object_pairs_hook=refuse_duplicates)
    except OSError as error:
        raise RegistryError(f"cannot read the registry file {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RegistryError(f"{path}:{line}: not UTF-8: {error.reason}") from None
    except json.JSONDecodeError as error:
        raise RegistryError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise RegistryError(f"{path}: not usable: nested too deeply") from None
    if not isinstance(content, dict):
        raise RegistryError(f"{path}: must hold a JSON object, not {type(content).__name__}")
    return content


# Names

#: What has names; entry points are in the groups ``aorta.workloads``, ..., which AORTA reads as well, and in those of
#: ``pytest_aorta``, which it does not.
Kind = Literal["workloads", "mitigations", "environments", "collectors"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_OWNERS: Final = "aorta", "pytest_aorta"

#: Fields of an environment that AORTA knows; one that it does not know stops each of its runs.
_FIELDS_OF_AORTA: Final = frozenset(("docker", "venv", "buck_target", "emulator", "mirage_profile", "env"))

_UNKNOWN: Final[Mapping[Kind, type[RegistryError]]] = {
    "workloads": UnknownWorkloadError,
    "mitigations": UnknownMitigationError,
    "environments": UnknownEnvironmentError,
    "collectors": UnknownCollectorError,
}


@dataclass(frozen=True)
class _Offer:
    kind: Kind
    name: str
    source: str
    source_package: str
    load: Callable[[], Any]
    #: Whether to load it imports nothing.
    is_read: bool = True
    problem: RegistryError | None = None


class Registry:
    """Everything that has a name, from the package itself, from installed plugins and from sidecar files.

    Names come from metadata. A plugin is imported when one of its mitigations or environments is asked for by name, so
    one that is broken, or slow to import, costs no other name anything; a workload's module is never imported here.
    Names are matched exactly, with their case.

    Raises:
        RegistryError: a name that cannot be used; not if ``tolerant``: then it is an error to ask for it.
        RegistryCollisionError: a name with two sources, likewise.
    """

    def __init__(self, offers: Iterable[_Offer], *, tolerant: bool = False) -> None:
        self._offers: dict[Kind, dict[str, _Offer]] = {kind: {} for kind in KINDS}
        for offer in offers:
            own = self._offers[offer.kind]
            other = own.setdefault(offer.name, offer)
            if offer.is_read and other.is_read and other is not offer and _same(offer, other):
                continue
            error = _unusable(offer)
            if other is not offer:
                error = RegistryCollisionError(
                    f"the {offer.kind[:-1]} name {offer.name!r} is offered twice, by {other.source} and by "
                    f"{offer.source}; neither wins: rename or remove one of them"
                )
            if error is not None and not tolerant:
                raise error
            if error is not None:
                own[offer.name] = replace(other, problem=error)

    @classmethod
    def load(cls, sidecars: Sequence[Path] = (), *, tolerant: bool = False) -> Registry:
        """Read the metadata of what is installed, and the sidecar files. Imports no plugin.

        Raises ``RegistryError`` for a name that cannot be used or has two sources, or a sidecar that cannot be read.
        """
        source = f"{BUILTIN_SOURCE} (built in)"
        found = [*_of([*BUILTIN_MITIGATIONS, *BUILTIN_ENVIRONMENTS], source)]
        for name, target in BUILTIN_COLLECTORS.items():
            found.append(_Offer("collectors", name, source, BUILTIN_SOURCE, partial(str, target)))
        found += _of_plugins()
        by_name: dict[str, Path] = {}
        for path in map(Path, sidecars):
            if path.name in by_name:
                raise RegistryCollisionError(
                    f"two registry files are called {path.name!r}: {by_name[path.name]} and {path}; "
                    "results name a file without its folder, so the names must differ"
                )
            by_name[path.name] = path
            found += _of(_read_sidecar(path), f"the registry file {path}")
        return cls(found, tolerant=tolerant)

    def adding(self, values: Iterable[Mitigation | Environment], source: str) -> Registry:
        """With more names, from a file."""
        return Registry([*(offer for own in self._offers.values() for offer in own.values()), *_of(values, source)])

    def workload(self, name: str) -> WorkloadEntry:
        """Where the workload is; its module is not imported."""
        found: WorkloadEntry = self._get("workloads", name)
        return found

    def mitigation(self, name: str) -> Mitigation:
        """The mitigation, the variable ``NAME=VALUE``, the launcher prefix ``prefix:WORDS``, or ``beside:WORDS``.

        At most the plugin that offers it is imported.
        """
        start = next((each for each in (PREFIX, BESIDE) if name.startswith(each)), None)
        if start is not None and name not in self._offers["mitigations"]:
            words = tuple(shlex.split(name.removeprefix(start)))
            if not words:
                raise RegistryError(f"mitigation {name!r}: it names no program, as in {start}nice -n 19")
            given = Mitigation(name, {}, "the command line")
            return replace(given, launcher=words) if start == PREFIX else replace(given, beside=words)
        if "=" in name and name not in self._offers["mitigations"] and (inline := variable_from(name)) is not None:
            return inline
        found: Mitigation = self._get("mitigations", name)
        return found

    def environment(self, name: str) -> Environment:
        """The environment; of the plugins, at most the one that offers it is imported.

        ``uv:REQUIREMENT...`` is one with these packages, ``commit:REVISION`` a working tree, whatever is registered.
        """
        if name.startswith(INLINE_PREFIX) and name not in self._offers["environments"]:
            return inline_environment(name)
        if name.startswith(COMMIT_PREFIX) and name not in self._offers["environments"]:
            return commit_environment(name)
        found: Environment = self._get("environments", name)
        return found

    def collector(self, name: str) -> str:
        """The class of the collector, as ``module:Class``; it is not imported."""
        found: str = self._get("collectors", name)
        return found

    def names(self, kind: Kind) -> list[str]:
        """Sorted; a name is here also when what it names cannot be loaded."""
        return sorted(self._offers[kind])

    def source_package(self, kind: Kind, name: str) -> str:
        """Where a name comes from that is known, whether or not it can be loaded; of two offers, the first."""
        return self._offers[kind][name].source_package

    def problems(self, kind: Kind | None = None) -> list[str]:
        """One line for every name that cannot be loaded.

        Imports the plugins of mitigations and environments, but no workload: of those, only the form of the target is
        checked.
        """
        lines = []
        for each in KINDS if kind is None else (kind,):
            for name in self.names(each):
                try:
                    _load(self._offers[each][name])
                except RegistryError as error:
                    lines.append(str(error))
        return lines

    def _get(self, kind: Kind, name: str) -> Any:
        offer = self._offers[kind].get(name)
        if offer is not None:
            return _load(offer)
        names = self.names(kind)
        message = f"unknown {kind[:-1]} {name!r}; available: {', '.join(names) or '(none is registered)'}"
        import difflib  # only here: a typo is rare, and a child process never makes one

        # Names are case-sensitive; a suggestion helps after a wrong case.
        folded = {candidate.casefold(): candidate for candidate in names}
        if nearest := difflib.get_close_matches(str(name).casefold(), folded, n=1):
            message += f"; did you mean {folded[nearest[0]]!r}?"
        if problems := self.problems(kind):  # the name may belong to a plugin that is broken
            message += "\nthese plugins could not be loaded:\n  " + "\n  ".join(problems)
        raise _UNKNOWN[kind](message)


def _load(offer: _Offer) -> Any:
    if offer.problem is not None:
        raise offer.problem
    try:
        return offer.load()
    except RegistryError:
        raise
    except Exception as error:
        message = f"the {offer.kind[:-1]} {offer.name!r} from {offer.source} cannot be read: {one_line_of(error)}"
        raise RegistryError(message) from error


def _same(offer: _Offer, other: _Offer) -> bool:
    try:
        one, two = offer.load(), other.load()
    except RegistryError:
        return False
    return bool(one == two if isinstance(one, str) else replace(one, source_package=two.source_package) == two)


def _unusable(offer: _Offer) -> RegistryError | None:
    name = offer.name
    # "a,b" is a set of two mitigations on the command line, and "a+b" is the same set in the name of an item.
    separator = next((each for each in name if each in ",+"), None) if offer.kind == "mitigations" else None
    if not name:
        reason = "it is empty"
    elif not name.isprintable():
        reason = "it holds a control character, or one that cannot be seen"
    elif name != name.strip():
        reason = "it begins or ends with a space"
    elif separator is not None:
        reason = f"it holds {separator!r}, which separates names where several are given"
    else:
        return None
    return RegistryError(f"the {offer.kind[:-1]} name {name!r} from {offer.source} cannot be used: {reason}")


def _of(values: Iterable[Mitigation | Environment], source: str) -> Iterator[_Offer]:
    for value in values:
        kind: Kind = "mitigations" if isinstance(value, Mitigation) else "environments"
        yield _Offer(kind, value.name, source, value.source_package, lambda value=value: value)  # type: ignore[misc]


_TARGET = re.compile(r"(?P<module>[\w.]+)\s*(:\s*(?P<attribute>[\w.]+)\s*)?(\[.*\]\s*)?\Z")


def _of_plugins() -> Iterator[_Offer]:
    """The entry points of all kinds, in the order of ``sys.path``; of a distribution that is there twice, the first.

    ``importlib.metadata`` drops shadowed distributions itself, but compares their names as spelled in the names of
    their folders: Python 3.10 takes Foo.egg-info (an editable install) and foo-1.0.dist-info for two.
    """
    from importlib import metadata  # which brings email: where no names are asked for, that is a tenth of the time

    everything = metadata.entry_points()  # once: each call reads the metadata of everything that is installed
    for kind in KINDS:
        first: dict[str, object] = {}
        seen: set[tuple[str, str, str]] = set()
        for entry in [each for owner in _OWNERS for each in everything.select(group=f"{owner}.{kind}")]:
            distribution = f"(without metadata: {entry.value})"
            with suppress(Exception):  # a folder without a METADATA file: what happens depends on the Python version
                if entry.dist is not None and "Name" in (fields := entry.dist.metadata):
                    distribution = fields["Name"]
            key = re.sub(r"[-_.]+", "-", distribution).lower()
            identity = (key, entry.name, entry.value)
            if first.setdefault(key, entry.dist) is entry.dist and identity not in seen:
                seen.add(identity)
                source = f"distribution {distribution!r} ({entry.value})"
                load = partial(_load_plugin, kind, entry, distribution, source)
                yield _Offer(kind, entry.name, source, distribution, load, is_read=False)


def _load_plugin(kind: Kind, entry: metadata.EntryPoint, distribution: str, source: str) -> Any:
    """What an entry point offers; only mitigations and environments are imported."""
    described = f"entry point {entry.name!r} of group {entry.group!r} in {source}"
    match = _TARGET.match(entry.value)
    if match is None or not match["attribute"]:
        raise RegistryError(f"{described} does not have the form module:attribute")
    target = f"{match['module']}:{match['attribute']}"
    if kind in ("workloads", "collectors"):
        return WorkloadEntry(entry.name, target, distribution) if kind == "workloads" else target
    try:
        payload: object = entry.load()
    except KeyboardInterrupt:
        raise
    # Not only Exception: a module that calls sys.exit() or pytest.skip() while it is imported must not end the run.
    except BaseException as error:
        raise RegistryError(f"{described} cannot be loaded: {one_line_of(error)}") from error
    read_by_aorta = payload if entry.group == "aorta.environments" and isinstance(payload, Mapping) else {}
    if own := [str(key) for key in read_by_aorta if key not in _FIELDS_OF_AORTA]:
        why = f"AORTA does not know its field {own[0]!r}, and ends each run with 'invalid keys'"
        warnings.warn(f"{described}: {why}; offer it in the group 'pytest_aorta.environments'", stacklevel=2)
    read = mitigation_from if kind == "mitigations" else environment_from
    return read(payload, name=entry.name, source_package=distribution, where=f"{kind[:-1]} {entry.name!r} of {source}")
