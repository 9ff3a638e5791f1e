"""Builds of the libraries that are loaded, and their databases of kernels: recorded trees are doubles of ROCm's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.records import record

from pytest_aorta.probe import kernels as module
from pytest_aorta.probe.guard import Facts, Guard
from pytest_aorta.probe.host import nics
from pytest_aorta.probe.kernels import Reader, build_of, kernels
from pytest_aorta.triage.environments import Environments, differences

FOREVER = float("inf")

#: Double of a ROCm release: only names, and a line in place of each code object.
ROCM = {
    "lib/libhipblaslt.so.0.12": "hipblaslt",
    "lib/libMIOpen.so.1.0": "miopen",
    "lib/hipblaslt/library/TensileLibrary_lazy_gfx942.dat": "solutions",
    "lib/hipblaslt/library/gfx950/Kernels.so-000-gfx950.hsaco": "kernels",
    "lib/hipblaslt/library/a.cache": "no kernel",
    "share/miopen/db/gfx942130.db.txt": "perf",
    "share/miopen/db/gfx942.kdb": "kernels",
    ".config/miopen/gfx942130.HIP.ufdb.txt": "found by this user",
}


@pytest.fixture
def rocm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in ROCM.items():
        path = tmp_path / "rocm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "rocm"))
    return tmp_path / "rocm"


def look(rocm: Path, seconds: float = FOREVER) -> Facts:
    """What a fresh process finds."""
    module._noted, guard = None, Guard()
    found = kernels(sorted(map(str, (rocm / "lib").glob("*.so*"))), guard, seconds)
    assert guard.reasons == []
    return found


def said(a: Facts, b: Facts, **others: Any) -> list[str]:
    sides = []
    for facts, version in ((a, "2.9"), (b, others.get("torch", "2.9"))):
        sides.append(Environments())
        sides[-1].add(record(env={"torch": {"version": version}, "end": {"kernels": facts}, "process": {"pid": 1}}))
    return [str(each) for each in differences(*sides)]


def test_another_database_under_the_same_version_is_said(rocm: Path) -> None:
    before = look(rocm)
    tensile = before["databases"]["Tensile database of hipBLASLt"]
    assert (tensile["files"], tensile["bytes"]) == (2, len("solutions") + len("kernels"))
    assert said(before, look(rocm)) == []
    (rocm / "lib/hipblaslt/library/TensileLibrary_lazy_gfx942.dat").write_text("Solutions")  # of the same size
    (rocm / ".config/miopen/gfx942130.HIP.ufdb.txt").write_text("found in the last trial")
    tuned = look(rocm)
    assert said(before, tuned) == ["same versions, different Tensile database of hipBLASLt"]
    assert said(before, tuned, torch="2.10") == ["torch 2.9 -> 2.10", "Tensile database of hipBLASLt changed"]
    (rocm / "share/miopen/db/gfx942.kdb").unlink()
    (rocm / "lib/libMIOpen.so.1.0").write_text("built again")
    names = ["database of MIOpen", "build of libMIOpen.so.1.0"]
    assert said(tuned, look(rocm)) == [f"same versions, different {name}" for name in names]


def test_a_variable_that_names_the_folder_counts_and_what_is_not_loaded_is_not_read(
    rocm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rocm / "mine").mkdir()
    (rocm / "mine/own.dat").write_text("own")
    monkeypatch.setenv("HIPBLASLT_TENSILE_LIBPATH", str(rocm / "mine"))
    (rocm / "lib/libMIOpen.so.1.0").unlink()
    found = look(rocm)["databases"]
    assert {name: each["folder"] for name, each in found.items()} == {
        "Tensile database of hipBLASLt": os.path.realpath(rocm / "mine")
    }


def test_a_large_folder_is_read_over_several_processes_and_until_then_nothing_is_said_of_its_content(
    rocm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_FILES", 1)
    whole = look(rocm)
    shutil.rmtree(rocm.parent / "cache")
    clock = iter(range(1000))  # each look at the clock is a second later
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(module, "PATIENCE", FOREVER)
    cut = look(rocm, 2.0)
    notes = [each["note"] for each in cut["databases"].values() if "note" in each]
    assert notes
    assert all(re.fullmatch(r"\d+% of 0\.0 GiB read yet; the next process goes on", each) for each in notes)
    assert said(cut, whole) == said(whole, cut) == []
    for _ in range(4):
        found = look(rocm, 2.0)
    assert found == whole


def test_builds_are_those_that_readelf_tells_and_forks_look_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("there is no readelf")
    libraries = [str(Path(torch.__file__).parent / "lib" / name) for name in ("libtorch_cpu.so", "libc10.so")]
    libraries.append(sys.executable)
    for path in libraries:
        notes = subprocess.run([readelf, "-n", path], capture_output=True, text=True, check=True).stdout
        told = re.search(r"Build ID: (\w+)", notes)
        assert build_of(path, Reader(FOREVER)) == f"build-id:{told[1]}" if told else build_of(path, Reader(FOREVER))
    found = kernels(libraries, Guard())
    assert found["builds"].keys() >= {"libtorch_cpu.so of torch", "libc10.so of torch"}
    monkeypatch.setattr(module, "build_of", lambda *arguments: pytest.fail("looked again"))
    assert kernels(libraries, Guard()) is found


def test_nics_have_their_firmware_and_driver_and_software_has_none(tmp_path: Path) -> None:
    """A double of /sys: an InfiniBand adapter, its network device, a virtual function, and a bridge."""
    classes, pci = tmp_path / "sys/class", tmp_path / "sys/devices/0000:3b:00.0"
    for folder in ("infiniband/mlx5_0", "net/eth0", "net/eth0v0", "net/bridge0"):
        (classes / folder).mkdir(parents=True)
    (tmp_path / "drivers/mlx5_core").mkdir(parents=True)
    for device in (pci, pci.parent / "0000:3b:00.1"):
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x15b3\n")
        (device / "device").write_text("0x1021\n")
        (device / "driver").symlink_to(tmp_path / "drivers/mlx5_core")
    (tmp_path / "sys/devices/0000:3b:00.1/physfn").symlink_to(pci)
    (classes / "infiniband/mlx5_0/fw_ver").write_text("28.39.1002\n")
    (classes / "infiniband/mlx5_0/board_id").write_text("MT_0000000838\n")
    for name, target in (("infiniband/mlx5_0", pci), ("net/eth0", pci), ("net/eth0v0", pci.parent / "0000:3b:00.1")):
        (classes / name / "device").symlink_to(target)
    card = {"driver": "mlx5_core", "device": "0x15b3:0x1021"}
    assert nics(tmp_path) == {"mlx5_0": {"firmware": "28.39.1002", "board": "MT_0000000838", **card}, "eth0": card}
