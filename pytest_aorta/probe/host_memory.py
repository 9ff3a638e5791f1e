"""Memory: huge pages, and the NUMA nodes that it comes from."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.probe.kernel_files import first_line, keyed_lines

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts

_HUGE_PAGES = {
    "total": "HugePages_Total",
    "free": "HugePages_Free",
    "reserved": "HugePages_Rsvd",
    "surplus": "HugePages_Surp",
}
# Enough for a policy. The kernel walks through the pages of every mapping that it gives a line for, which takes
# milliseconds for all of them, and for the heap alone.
_ONE_MAPPING = 128


def transparent_huge_pages(root: Path = Path("/")) -> Facts | None:
    """The settings in force (``always``, ``madvise``, ``never``, ...) as ``enabled``, ``defrag``, ``shmem_enabled``."""
    folder = root / "sys/kernel/mm/transparent_hugepage"
    if not folder.is_dir():
        return None
    return {name: _chosen(first_line(folder / name)) for name in ("enabled", "defrag", "shmem_enabled")}


def _chosen(line: str | None) -> str | None:
    """``madvise`` of ``always [madvise] never``."""
    found = re.search(r"\[(\w[\w+-]*)\]", line or "")
    return found[1] if found else None


def memory_state(root: Path = Path("/")) -> Facts:
    """``available_bytes``: what can be allocated without swapping; ``huge_pages``: the pool of explicit ones, in pages.

    Both ``None`` where the kernel does not show it.
    """
    lines = keyed_lines(root / "proc/meminfo")
    pool = None
    if _HUGE_PAGES["total"] in lines:
        pool = {name: int(lines[key]) for name, key in _HUGE_PAGES.items() if key in lines}
        pool["page_size_bytes"] = _bytes(lines.get("Hugepagesize", "0 kB"))
    return {
        "available_bytes": _bytes(lines["MemAvailable"]) if "MemAvailable" in lines else None,
        "huge_pages": pool,
    }


def _bytes(kilobytes: str) -> int:
    return int(kilobytes.split()[0]) * 1024


def numa_nodes(root: Path = Path("/")) -> list[Facts] | None:
    """``node``, its ``cpus``, ``memory_total_bytes`` and ``distances`` to every node, by number."""
    folder = root / "sys/devices/system/node"
    if not folder.is_dir():
        return None
    numbers = sorted(int(path.name[4:]) for path in folder.glob("node[0-9]*"))
    return [{"node": number, **_node(folder / f"node{number}")} for number in numbers]


def _node(folder: Path) -> Facts:
    # "Node 0 MemTotal:       32814200 kB"
    total = next((text for key, text in keyed_lines(folder / "meminfo").items() if key.endswith(" MemTotal")), None)
    return {
        "cpus": first_line(folder / "cpulist"),
        "memory_total_bytes": _bytes(total) if total else None,
        "distances": [int(text) for text in (first_line(folder / "distance") or "").split()],
    }


def numa_balancing(root: Path = Path("/")) -> bool | None:
    """Whether the kernel moves pages to the node that uses them; ``None`` for a kernel that cannot."""
    line = first_line(root / "proc/sys/kernel/numa_balancing")
    return None if line is None else line != "0"


def memory_policy(maps: Path = Path("/proc/self/numa_maps")) -> str | None:
    """Where this process gets its memory from, as numactl has set it: ``default``, ``bind:0``, ``interleave:0-1``, ...

    Read from the first mapping, the program, which has no policy apart from the process's. ``None`` for a kernel
    without NUMA.
    """
    try:
        file = os.open(maps, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        columns = os.read(file, _ONE_MAPPING).decode("utf-8", "replace").split(maxsplit=2)
    finally:
        os.close(file)
    return columns[1] if len(columns) > 1 else None
