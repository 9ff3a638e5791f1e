"""Reading what other programs write: ends of logs, and the topology of AMD's driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_aorta.common.kfd_topology import kfd_nodes, kfd_properties
from pytest_aorta.common.texts import read_tail


def test_the_tail_of_a_file_is_text_whatever_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"first\nsecond \xff")

    assert read_tail(file, 8) == "second \N{REPLACEMENT CHARACTER}"
    assert read_tail(file, 1000).startswith("first")


def test_a_file_that_cannot_be_read_has_no_tail(tmp_path: Path) -> None:
    assert read_tail(tmp_path / "log", 8) == ""
    assert read_tail(tmp_path, 8) == ""


def test_nodes_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for name in ("10", "9", "0", "other"):
        (nodes / name).mkdir(parents=True)

    assert kfd_nodes(tmp_path) == [nodes / "0", nodes / "9", nodes / "10"]


def test_properties_are_numbers_by_name(tmp_path: Path) -> None:
    (tmp_path / "properties").write_text("simd_count 304\n\nunique_id 7\nno_value\n")

    assert kfd_properties(tmp_path) == {"simd_count": 304, "unique_id": 7}
    with pytest.raises(OSError):
        kfd_properties(tmp_path / "elsewhere")
