"""The topology that AMD's compute driver (KFD) shows as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def kfd_nodes(root: Path) -> list[Path]:
    """The folders of all nodes, GPUs and CPUs, in the order of their numbers."""
    nodes = [path for path in root.glob("sys/class/kfd/kfd/topology/nodes/*") if path.name.isdecimal()]
    return sorted(nodes, key=lambda path: int(path.name))


def kfd_properties(folder: Path) -> dict[str, int]:
    """The properties of a node, or of one of its parts.

    Raises:
        PermissionError: the GPU is not one of this container.
        OSError, ValueError: there is no such file, or it is malformed.
    """
    pairs = (line.split() for line in (folder / "properties").read_text(encoding="utf-8").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def kfd_address(properties: Mapping[str, int]) -> str:
    """The PCI address of a node: ``0000:c1:00.0``."""
    location = properties.get("location_id", 0)
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
    return f"{properties.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function:x}"
