"""Which environment variables of a trial are recorded, and which never are."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.probe.guard import printable, words

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


REDACTED = "<redacted>"
"""Stands for a value that is a secret or carries one inside it."""

DIGEST = "sha256:"
"""How a text begins that stands for a value which is not recorded itself, but may be compared."""

# Known prefixes may have tokens behind them (SLURM_JWT is set by SLURM itself). Losing a harmless value costs a line in
# a report, publishing a token costs more: so these match anywhere in the name ...
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
_ASSIGNMENT = re.compile(r"\b(\w+)[\"']?\s*=|[\"'](\w+)[\"']\s*:")
# A word of a command line; blanks inside double quotes belong to it.
_WORD = re.compile(r'(?:"[^"]*"?|[^\s"])+')
_NOT_IN_NAMES = re.compile(r"\W+")


def is_secret_name(name: str) -> bool:
    if name in _NEVER:
        return True
    upper = name.upper()
    if _SECRET_WORDS.search(upper):
        return True
    parts = upper.split("_")
    # PASS inside a name is a compiler's pass (TRITON_DUMP_PASS_STAGES), at its end more likely a password.
    return parts[-1] == "PASS" or not _SECRET_PARTS.isdisjoint(parts)


def has_secret(value: str) -> bool:
    """Whether a value has a user in a URL, or an assignment to the name of a secret."""
    if "://" in value and _USER_IN_URL.search(value):
        return True
    return any(map(is_secret_name, itertools.chain(*_ASSIGNMENT.findall(value))))


def redacted_command_line(line: str) -> str:
    """The words of ``line`` by the rules for variables: ``name=value`` is one, so is ``--name`` with the next word.

    Names keep their dots and dashes, which count as underscores (``rd.api-key=x`` is the name ``rd_api_key``).
    """
    words: list[str] = []
    value_follows = False
    for word in _WORD.findall(line):
        name, assigns, value = word.partition("=")
        secret = is_secret_name(_NOT_IN_NAMES.sub("_", name).strip("_"))
        option = word.startswith("-")
        if value_follows and not option:
            words.append(REDACTED)
        elif assigns:
            words.append(f"{name}={REDACTED}" if secret or has_secret(value) else word)
        else:
            words.append(REDACTED if has_secret(word) else word)
        value_follows = option and secret and not assigns
    return " ".join(words)


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


#: Variables that launchers set for each job or process: they say where it runs, and are no settings.
_PLACES = words("SLURM PET TORCHELASTIC RANK LOCAL ROLE GROUP WORLD MASTER OMPI")

#: Variables with lists of devices: which ones says where a process runs, how many is a setting.
_VISIBLE_DEVICES = words("CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES")


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The ``recorded_variables`` that are equal in all jobs and processes that do the same.

    A list of devices is replaced by the number of devices.
    """
    settings = {}
    for name, value in recorded_variables(environ).items():
        if (setting := as_setting(name, value)) is not None:
            settings[name] = setting
    return settings


def as_setting(name: str, value: str) -> str | None:
    if name.partition("_")[0] in _PLACES:
        return None
    if name in _VISIBLE_DEVICES:
        listed = [device for device in value.split(",") if any(map(str.isdigit, device)) and not device.startswith("-")]
        return f"{len(listed)} listed" if listed else value
    return value


def recorded_variables(environ: Mapping[str, str], overlay: Collection[str] = ()) -> dict[str, str]:
    """The variables of ``environ`` that go into a trial's file, sorted by name.

    Recorded are those named in ``overlay``, because the user asked for them by name, and members of ``FAMILIES`` and
    ``NAMES``. The value of a secret, by its name or because it holds one (``redis://user:password@host``,
    ``A_TOKEN=...``), is replaced by ``REDACTED``; of the families, a name that says it is a secret is left out. Nothing
    else is recorded.
    """
    named = frozenset(overlay)
    variables: dict[str, str] = {}
    # Over the names, not the items: os.environ decodes each value that is looked at, and this runs in every trial.
    for name in environ:
        if name in named or ((name in NAMES or name.partition("_")[0] in FAMILIES) and not is_secret_name(name)):
            variables[printable(name)] = shown_value(name, environ[name])
    return dict(sorted(variables.items()))


#: What pytest, its plugins and a shell set for each process.
_OF_RUNNERS = re.compile(r"AORTA_|PYTEST_(XDIST_|CURRENT_TEST|VERSION|AORTA_ZYGOTE)|(_|COLUMNS|LINES)$")


#: Variables that say who is logged in where; those of runners are not recorded.
OF_A_SESSION = re.compile(
    r"SHLVL|(OLD)?PWD|TMPDIR|TMP|TEMP|LS_COLORS|WINDOWID|DISPLAY|MAIL|HIST\w+|TERM(_\w+)?|COLORTERM|STY"
    r"|TMUX(_\w+)?|(SSH|XDG|DBUS|COV|SUDO|SYSTEMD|VSCODE|GIT)_\w+|INVOCATION_ID|JOURNAL_STREAM|WINDOW"
)


def values_to_share(environ: Mapping[str, str]) -> list[str]:
    """Variables that a user may want to compare on two machines: no secret, nothing of a session or a runner."""
    return [
        name
        for name, value in environ.items()
        if not (OF_A_SESSION.fullmatch(name) or _OF_RUNNERS.match(name) or is_secret_name(name) or has_secret(value))
    ]


#: Where a machine has no id, no two processes agree.
_UNKNOWN = os.urandom(64)


def other_variables(environ: Mapping[str, str], recorded: Collection[str]) -> dict[str, Any]:
    """The variables whose values are not ``recorded``: a digest of each, so that ``compare`` sees which has changed.

    ``of`` stands for machine and user: digests of others say nothing. They are keyed by the id of the machine, as
    machine-id(5) asks for, and cut to 16 bits, so that nobody else learns a value from its digest.
    """
    machine = _UNKNOWN
    with suppress(OSError):
        machine = Path("/etc/machine-id").read_bytes()
    key, digests = hashlib.blake2b(machine, salt=b"%d" % os.getuid()).digest(), {}
    for name in sorted(environ):
        if name not in recorded and not _OF_RUNNERS.match(name):
            text = f"{name}={environ[name]}".encode("utf-8", "surrogateescape")
            digests[printable(name)] = hashlib.blake2b(text, digest_size=2, key=key).hexdigest()
    return {"of": hashlib.blake2b(key, digest_size=4).hexdigest(), "digests": digests}


def shown_value(name: str, value: str) -> str:
    return REDACTED if is_secret_name(name) or has_secret(value) else printable(value)
