"""The stage that acceptance tests play on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from acceptance_stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A fresh one; in the end nothing may be left running on it."""
    stage = Stage(tmp_path / "stage")
    yield stage
    stage.close()
