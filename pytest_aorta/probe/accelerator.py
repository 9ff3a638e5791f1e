"""GPUs, their drivers, and the toolkits installed for them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.probe.amd import amd
from pytest_aorta.probe.nvidia import nvidia

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts, Guard

# Where each component of ROCm keeps its version: lib/cmake/<folder>/*version.cmake.
_ROCM_COMPONENTS = (
    "hip",
    "hsa-runtime64",
    "rccl",
    "rocblas",
    "hipblas",
    "hipblaslt",
    "miopen",
    "composable_kernel",
    "rocsolver",
    "Tensile",
    "amd_comgr",
)


def accelerator(guard: Guard) -> Facts:
    """``nvidia``, ``amd``, ``cuda_toolkit`` and ``rocm``; ``None`` for each that this machine does not have."""
    return guard.facts(
        "accelerator",
        {
            "nvidia": lambda: nvidia(guard),
            "amd": lambda: amd(guard),
            "cuda_toolkit": lambda: cuda_toolkit(_home("/usr/local/cuda", "CUDA_HOME", "CUDA_PATH")),
            "rocm": lambda: rocm(_home("/opt/rocm", "ROCM_PATH", "ROCM_HOME")),
        },
    )


def _home(default: str, *variables: str) -> Path:
    return Path(next((os.environ[name] for name in variables if os.environ.get(name)), default))


def cuda_toolkit(home: Path) -> Facts | None:
    """``path`` and ``version`` of the CUDA toolkit in ``home``."""
    file = home / "version.json"
    if file.exists():
        return {"path": home, "version": json.loads(file.read_text(encoding="utf-8"))["cuda"]["version"]}
    old = home / "version.txt"  # before CUDA 11.1
    if old.exists():
        return {"path": home, "version": old.read_text(encoding="utf-8").strip().removeprefix("CUDA Version ")}
    return None


def rocm(home: Path) -> Facts | None:
    """``path``, ``version`` and the versions of the ``components`` of the ROCm release in ``home``."""
    file = home / ".info/version"
    if not file.exists():
        return None
    versions = ((name, _component_version(home / "lib/cmake" / name)) for name in _ROCM_COMPONENTS)
    return {
        "path": os.path.realpath(home),
        "version": file.read_text(encoding="utf-8").strip(),
        "components": {name: version for name, version in versions if version is not None},
    }


def _component_version(folder: Path) -> str | None:
    for file in sorted(folder.glob("*.cmake")):
        if file.name.lower().endswith(("config-version.cmake", "configversion.cmake")):
            found = re.search(
                r'set\s*\(\s*PACKAGE_VERSION\s+"([^"]+)"', file.read_text(encoding="utf-8", errors="replace")
            )
            return found[1] if found else None
    return None
