"""The tables of docs/clusters.md name tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_feature_of_row_has_a_test() -> None:
    text = (ROOT / "docs/clusters.md").read_text()
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)] == [*range(1, 35)]
    named = re.findall(r"`(tests/\S+)::(\w+)`", text)
    assert len(named) == 34 + 6
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(), (file, name)
