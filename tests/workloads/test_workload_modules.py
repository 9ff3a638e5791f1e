"""What holds for every workload of the package."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from aorta_workloads._common import choose_device
from pydantic import BaseModel

from pytest_aorta.trials.workload import Workload

WORKLOADS = {
    "fsdp": ("Fsdp", "distributed"),
    "allreduce": ("AllReduce", "distributed"),
    "gemm": ("Gemm", "single_process"),
    "pipeline": ("Pipeline", "single_process"),
    "determinism": ("Determinism", "single_process"),
    "attention": ("Attention", "single_process"),
    "copies": ("Copies", "single_process"),
    "alltoall": ("AllToAll", "distributed"),
    "checkpoint": ("Checkpoint", "single_process"),
    "dataloader": ("DataLoading", "single_process"),
    "overflow": ("Overflow", "single_process"),
    "workspace": ("Workspace", "single_process"),
    "replay": ("Replay", "single_process"),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_is_declared_as_the_runner_expects_it(name: str) -> None:
    class_name, launch_mode = WORKLOADS[name]

    workload_class = getattr(importlib.import_module(f"aorta_workloads.{name}"), class_name)

    assert issubclass(workload_class, Workload)
    assert workload_class.launch_mode == launch_mode
    assert workload_class.min_world_size == (2 if launch_mode == "distributed" else 1)
    config_class = workload_class.Config
    assert issubclass(config_class, BaseModel)
    assert config_class.model_config["extra"] == "forbid"
    assert "steps" in config_class.model_fields
    assert all(field.description for field in config_class.model_fields.values())
    assert f'{name} = "aorta_workloads.{name}:{class_name}"' in PYPROJECT.read_text()


PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"

IMPORT = """
import os, sys
import {names}
import torch
print(len(os.listdir("/proc/self/task")), torch.cuda.is_initialized(), "pytest" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_their_imports_start_no_thread_and_no_gpu() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", IMPORT.format(names=", ".join(f"aorta_workloads.{name}" for name in WORKLOADS))],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # NumPy's pool survives a fork and does not count
        capture_output=True,
        text=True,
        check=True,
    )

    assert completed.stdout.split() == ["1", "False", "False"]


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int, **variables: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_auto_is_the_gpu_of_the_local_rank_or_the_cpu_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 2, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    assert choose_device("auto") == choose_device("hip") == torch.device("cuda", 1)
    assert choose_device("cpu") == torch.device("cpu")

    for rank in ("0", "1"):  # fewer GPUs than ranks
        with_gpus(monkeypatch, 1, LOCAL_RANK=rank, LOCAL_WORLD_SIZE="2")
        assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(RuntimeError, match=r"device='cuda' needs GPU 1 \(LOCAL_RANK\), but torch .* sees 1 GPUs"):
        choose_device("cuda")
