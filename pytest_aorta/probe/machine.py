"""The machine: name, kernel, CPU, memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from pytest_aorta.probe.cpu import cpu_caches, cpu_frequency, cpu_topology
from pytest_aorta.probe.host_memory import numa_balancing, numa_nodes, transparent_huge_pages
from pytest_aorta.probe.kernel_files import first_line
from pytest_aorta.probe.own_name import own_name_lookup_ms
from pytest_aorta.probe.redaction import redacted_command_line

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts, Guard

# Instruction sets that decide which kernel of a BLAS or of ATen runs. Torch's own answer
# (torch.backends.cpu.get_cpu_capability) is not asked for: asking freezes ATEN_CPU_CAPABILITY for the process.
_SIMD = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_tile", "amx_bf16")
_SIMD_ARM = ("asimd", "sve", "sve2", "bf16", "i8mm")


def host(guard: Guard) -> Facts:
    """Facts about the host; memory in bytes."""
    uname = os.uname()
    return guard.facts(
        "host",
        {
            "hostname": lambda: uname.nodename,
            "own_name_lookup_ms": own_name_lookup_ms,
            "kernel": lambda: uname.release,
            "kernel_version": lambda: uname.version,
            "kernel_command_line": kernel_command_line,
            "machine": lambda: uname.machine,
            "os_release": _os_release,
            "libc": _libc,
            "cpu_model": lambda: _cpuinfo("model name", "Model", "cpu", "uarch"),
            "cpu_simd": _cpu_simd,
            "cpu_count": os.cpu_count,
            "cpu_cores": lambda: psutil.cpu_count(logical=False),
            "cpu_topology": cpu_topology,
            "cpu_caches": cpu_caches,
            "cpu_frequency": cpu_frequency,
            "numa_nodes": _numa_nodes,
            "numa": numa_nodes,
            "numa_balancing": numa_balancing,
            "transparent_huge_pages": transparent_huge_pages,
            "memory_total_bytes": lambda: psutil.virtual_memory().total,
            "swap_total_bytes": lambda: psutil.swap_memory().total,
        },
    )


def kernel_command_line(root: Path = Path("/")) -> str | None:
    """What the kernel was booted with, secrets redacted by the rules for variables."""
    line = first_line(root / "proc/cmdline")
    return redacted_command_line(line) if line is not None else None


def _os_release() -> dict[str, str] | None:
    try:
        release = platform.freedesktop_os_release()
    except FileNotFoundError:
        return None
    return {key.lower(): release[key] for key in ("ID", "VERSION_ID", "PRETTY_NAME") if key in release}


def _libc() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except ValueError:  # not glibc
        return None


def _cpuinfo(*keys: str) -> str | None:
    """The first processor's value of the first of ``keys`` that /proc/cpuinfo has; None where neither exists."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return next((found[key] for key in keys if key in found), None)


def _cpu_simd() -> list[str]:
    flags = set((_cpuinfo("flags", "Features") or "").split())
    return [name for name in (*_SIMD, *_SIMD_ARM) if name in flags]


def _numa_nodes() -> int | None:
    nodes = Path("/sys/devices/system/node")
    if not nodes.is_dir():
        return None
    return sum(1 for entry in nodes.iterdir() if entry.name.startswith("node") and entry.name[4:].isdigit())
