"""Snapshots of machines that this one is not, for tests of what is said about them."""

from __future__ import annotations

import copy
from typing import Any

#: The parts of a snapshot that differ between machines, as a machine with two GPUs has them.
TWO_GPUS: dict[str, Any] = {
    "schema_version": "1.2",
    "partial": False,
    "partial_reasons": [],
    "accelerator": {
        "nvidia": {
            "driver_version": "550.54",
            "devices": [
                {"index": index, "name": "NVIDIA H100", "uuid": f"GPU-{index}", "memory_total_bytes": 80 * 2**30}
                for index in range(2)
            ],
        },
        "amd": None,
        "cuda_toolkit": {"path": "/usr/local/cuda", "version": "12.4"},
        "rocm": None,
    },
    "torch": {"version": "2.12.0", "cuda": "12.4", "hip": None, "git_version": "c0ffee", "nccl_version": "2.21.5"},
    "packages": {
        "versions": {"numpy": "2.1", "torch": "2.12.0"},
        "count": 2,
        "digest": "sha256:" + "a" * 64,
    },
    "python": {"version": "3.12.1", "executable": "/a/bin/python"},
    "env_vars": {"OMP_NUM_THREADS": "8", "NCCL_DEBUG": "INFO", "AORTA_TRIAL_INDEX": "0", "TMPDIR": "/tmp/a"},
    "host": {
        "hostname": "node1",
        "kernel": "6.1.0",
        "kernel_command_line": "ro quiet iommu=pt",
        "cpu_model": "AMD EPYC 7B13",
        "cpu_count": 64,
        "memory_total_bytes": 32 * 2**30,
    },
    "process": {
        "pid": 1,
        "cwd": "/a",
        "cpu_affinity": "0-63",
        "load_average": [0.1, 0.1, 0.1],
        "memory_available_bytes": 30 * 2**30,
        "rlimits": {"memlock": {"soft": 65536, "hard": None}},
        "torch_threads": {"intraop": 8, "interop": 64},
    },
    "runtime_context": {"container": None, "cgroup": {"memory_limit_bytes": None, "cpu_limit": None}},
    "git": {"root": "/a", "commit": "1234567890abcdef", "branch": "main", "changed_files": 0},
    "end": {"torch": {"cpu_capability": "AVX512", "deterministic": {"algorithms": False}}},
}


def env(**changes: Any) -> dict[str, Any]:
    """``TWO_GPUS`` with other values: ``env(torch__version="2.13.0")``; ``None`` for a section is a section that it has
    not."""
    changed = copy.deepcopy(TWO_GPUS)
    for path, value in changes.items():
        *parents, key = path.split("__")
        place = changed
        for parent in parents:
            place = place[parent]
        place[key] = value
    return changed
