"""The same nothing as test items, for pytest-forked."""

from __future__ import annotations

import os

import pytest
import torch  # noqa: F401  (what a real test would do)


@pytest.mark.parametrize("trial", range(int(os.environ["BENCHMARK_TRIALS"])))
def test_trivial(trial: int) -> None:
    pass
