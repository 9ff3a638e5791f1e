"""Which trials of a submission are asked for first where they end as soon as their cells are decided."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.workflow.groups import FIRST_WAVE, next_wave


@given(st.integers(1, 9), st.integers(1, 200), st.one_of(st.none(), st.integers(1, 100)))
def test_waves_are_whole_rounds_first_and_double_what_is_over(cells: int, trials: int, size: int | None) -> None:
    left = [f"local-m{cell}/{index}" for cell in range(cells) for index in range(trials)]
    over: list[str] = []
    while left:
        wave = next_wave(left, size, len(over))
        assert wave
        assert len(wave) <= max(len(over), size or len(left), FIRST_WAVE * cells)
        rest = set(left) - set(wave)
        assert len(wave) >= len(over) or not rest
        assert max(int(unit.rpartition("/")[2]) for unit in wave) <= min(
            (int(unit.rpartition("/")[2]) for unit in rest), default=trials
        )
        if not over:
            assert min(Counter(unit.rpartition("/")[0] for unit in wave).values()) >= min(FIRST_WAVE, trials)
            assert len(wave) >= (size or 1) or not rest
        assert size is not None or not rest
        over, left = [*over, *wave], [unit for unit in left if unit in rest]


def test_nothing_is_no_wave_of_trials() -> None:
    assert next_wave([], 4, 0) == []
