"""GPUs, their drivers, and the toolkits installed for them."""

from __future__ import annotations

import json
import os
import re
import shutil
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

# Characters of cuda.h in which its version is defined; the whole file has a million.
_HEAD_OF_HEADER = 65536


def accelerator(guard: Guard) -> Facts:
    """``nvidia``, ``amd``, ``cuda_toolkit`` and ``rocm``; ``None`` for each that this machine does not have."""
    return guard.facts(
        "accelerator",
        {
            "nvidia": lambda: nvidia(guard),
            "amd": lambda: amd(guard),
            "cuda_toolkit": cuda_toolkit_in_use,
            "rocm": lambda: rocm(_home("/opt/rocm", "ROCM_PATH", "ROCM_HOME")),
        },
    )


def _home(default: str, *variables: str) -> Path:
    return Path(next((os.environ[name] for name in variables if os.environ.get(name)), default))


def cuda_toolkit_in_use(default: str = "/usr/local/cuda") -> Facts | None:
    """The toolkit that extensions of torch are built with: ``path``, ``version`` and the place ``found_by``.

    Looked for where ``torch.utils.cpp_extension`` does: the variables, the folder of nvcc, the usual folder. Other than
    torch, this passes over a folder that holds no toolkit, as where nvcc on PATH is a script that calls the real one.
    """
    nvcc = shutil.which("nvcc")
    places = {
        "CUDA_HOME": os.environ.get("CUDA_HOME"),
        "CUDA_PATH": os.environ.get("CUDA_PATH"),
        "nvcc": str(Path(os.path.realpath(nvcc)).parents[1]) if nvcc else None,
        default: default,
    }
    for place, home in places.items():
        toolkit = cuda_toolkit(Path(home)) if home else None
        if toolkit is not None:
            return {**toolkit, "found_by": place}
    return None


def cuda_toolkit(home: Path) -> Facts | None:
    """``path`` and ``version`` of the CUDA toolkit in ``home``."""
    file = home / "version.json"
    if file.exists():
        return {"path": home, "version": json.loads(file.read_text(encoding="utf-8"))["cuda"]["version"]}
    old = home / "version.txt"  # before CUDA 11.1
    if old.exists():
        return {"path": home, "version": old.read_text(encoding="utf-8").strip().removeprefix("CUDA Version ")}
    header = home / "include/cuda.h"  # where only parts of it have been installed
    if header.exists():
        with header.open(encoding="utf-8", errors="replace") as lines:
            found = re.search(r"#define CUDA_VERSION (\d+)", lines.read(_HEAD_OF_HEADER))
        if found is not None:
            return {"path": home, "version": f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}"}
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
