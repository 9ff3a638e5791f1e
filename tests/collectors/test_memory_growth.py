from __future__ import annotations

import numpy as np
import pytest

from pytest_aorta.collectors.machine import growth

MIB = 2**20


def series(changes: np.ndarray) -> list[tuple[int, float]]:
    return list(enumerate((500 * MIB + np.cumsum(changes)).tolist(), 1))


def test_a_leak_of_1_mib_a_step_is_found_within_20_steps_with_its_size() -> None:
    noise = np.random.default_rng(1)
    for _ in range(100):
        up_and_down = np.diff(noise.normal(0, 0.1 * MIB, 21))
        found = growth(series(MIB + up_and_down))
        assert found is not None
        assert found.is_leak
        assert found.bytes_per_step == pytest.approx(MIB, rel=0.1)


def test_a_leak_that_shows_in_chunks_is_found() -> None:
    changes = np.where(np.arange(400) % 16 == 0, 2 * MIB, 0)
    found = growth(series(changes))
    assert found is not None
    assert found.is_leak
    assert found.low <= 2 * MIB / 16 <= found.high


def test_what_runs_without_a_leak_do_is_none() -> None:
    """Warm-up, jumps of caches, and ups and downs, in 500 runs of all lengths: at a level of 1 % for each."""
    noise, wrong = np.random.default_rng(2), 0
    for _ in range(500):
        steps = int(noise.integers(12, 300))
        level = noise.normal(0, noise.choice([0, 0.1, 8]) * MIB, steps + 1)  # allocated and freed again
        changes = np.diff(level)
        changes[: steps // 6] += 20 * MIB  # warm-up
        changes[noise.integers(0, steps, noise.integers(0, 4))] += noise.uniform(1, 50) * MIB
        found = growth(series(changes))
        wrong += found is not None and found.is_leak
    assert wrong <= 12


def test_of_few_steps_nothing_is_said() -> None:
    assert growth(series(np.full(9, MIB))) is None
    assert growth([]) is None


def test_a_growth_of_a_few_kib_in_all_is_no_leak() -> None:
    found = growth(series(np.full(50, 1024)))
    assert found is not None
    assert found.low > 0
    assert not found.is_leak
