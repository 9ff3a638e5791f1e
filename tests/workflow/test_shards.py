"""How a plan is divided between machines that do not speak to each other."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.workflow.shards import cell_of_item, divide, joined

PLANS = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 90)), min_size=1, max_size=6).map(
    lambda cells: [(f"cell{number}", size) for number, (trials, size) in enumerate(cells) for _ in range(trials)]
)


@given(PLANS, st.integers(1, 9), st.randoms(use_true_random=False))
def test_every_part_has_one_shard_and_shards_differ_by_one_part_at_most(
    parts: list[tuple[str, int]], count: int, random: Random
) -> None:
    random.shuffle(parts)  # interleaved, grouped, random: any order
    shards = divide(parts, count)
    assert len(shards) == len(parts)
    assert set(shards) <= set(range(count))
    loads = [sum(part[1] for part, own in zip(parts, shards, strict=True) if own == shard) for shard in range(count)]
    assert max(loads) - min(loads) <= max(part[1] for part in parts)
    sizes = Counter(shards)
    for cell in {part[0] for part in parts}:
        own = Counter(shard for part, shard in zip(parts, shards, strict=True) if part[0] == cell)
        assert max(own.values()) - min(own[shard] for shard in range(count)) <= 1
    assert sum(sizes.values()) == len(parts)


def test_another_process_divides_alike() -> None:
    """Whatever its hash seed is."""
    code = (
        "from pytest_aorta.workflow.shards import divide\n"
        "print(divide([(f'cell{n % 3}', 1 + n % 3) for n in range(20)], 3))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


@given(st.lists(st.lists(st.integers(0, 12), max_size=3), max_size=12))
def test_what_has_a_key_in_common_stays_together(keys: list[list[int]]) -> None:
    groups = joined(keys)
    assert sorted(index for group in groups for index in group) == list(range(len(keys)))
    place = {index: number for number, group in enumerate(groups) for index in group}
    for one, own in enumerate(keys):
        for other, others in enumerate(keys):
            if set(own) & set(others):
                assert place[one] == place[other]
    # Nothing else is together: within a group, each is reached from the first one.
    for group in groups:
        reached, seen = {group[0]}, set(keys[group[0]])
        for _ in group:
            reached |= {index for index in group if seen & set(keys[index])}
            seen |= {key for index in reached for key in keys[index]}
        assert reached == set(group)


def test_the_cell_of_an_item() -> None:
    assert cell_of_item("gemm[local-tf32_off+omp_1-12]") == "gemm[local-tf32_off+omp_1]"
    assert cell_of_item("compare[local-none]") == "compare[local-none]"
    assert cell_of_item("test_plain") == "test_plain"
