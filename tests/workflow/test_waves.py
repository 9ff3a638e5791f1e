"""In which order the trials of a submission begin where they end as soon as their cells are decided."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, chain

from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.workflow.groups import FIRST_WAVE, waves


@given(st.integers(1, 9), st.integers(1, 200), st.one_of(st.none(), st.integers(1, 100)))
def test_waves_hold_all_trials_in_rounds_and_double_them(cells: int, trials: int, size: int | None) -> None:
    units = [f"local-m{cell}/{index}" for cell in range(cells) for index in range(trials)]
    found = waves(units, size)
    assert sorted(chain(*found)) == sorted(units)
    assert all(found)
    rounds = [int(unit.rpartition("/")[2]) for unit in chain(*found)]
    assert rounds == sorted(rounds)
    lengths = [len(wave) for wave in found]
    before = list(accumulate(lengths))
    assert all(length <= earlier for length, earlier in zip(lengths[1:], before, strict=False))
    assert all(length == earlier for length, earlier in zip(lengths[1:-1], before, strict=False))
    if size is None:
        assert len(found) == 1
    elif len(found) > 1:
        assert min(Counter(unit.rpartition("/")[0] for unit in found[0]).values()) >= min(FIRST_WAVE, trials)
        assert len(found[0]) >= size


def test_nothing_is_no_wave_of_trials() -> None:
    assert waves([], 4) == [[]]
