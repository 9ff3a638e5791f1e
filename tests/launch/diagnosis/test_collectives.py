"""Where the collectives of ranks differ, by their flight recorders; torch's own analysis of them is the reference."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_aorta.launch.diagnosis.collectives import find_mismatch, positions, read_collectives

#: Of a group: its name and its ranks.
WORLD, PAIR = ("0", (0, 1, 2)), ("1", (0, 1))
Entry = tuple[str, tuple[str, tuple[int, ...]], int]


def trace(entries: list[Entry], rank: int = 0, *, members: bool = True) -> dict[str, Any]:
    """What a recorder holds of a rank that has entered these: an operation, a group, and the size of a tensor."""
    counted: dict[str, int] = {}
    found = []
    for at, (operation, (group, _), size) in enumerate(entries):
        counted[group] = counted.get(group, 0) + 1
        found.append(
            {
                "record_id": at,
                "collective_seq_id": counted[group],
                "p2p_seq_id": 0,
                "profiling_name": f"gloo:{operation}",
                "process_group": [group, "default_pg" if group == "0" else "undefined"],
                "input_sizes": [[size]],
                "output_sizes": [[size]],
                "input_dtypes": ["Float"],
                "output_dtypes": ["Float"],
                "state": "scheduled",
                "is_p2p": False,
                "time_created_ns": at,
                "frames": [],
            }
        )
    groups = {
        name: {"name": name, "desc": "default_pg" if name == "0" else "undefined", "ranks": str(list(ranks))}
        for name, ranks in (WORLD, PAIR)
        if rank in ranks
    }
    return {"version": "2.10", "entries": found, "pg_config": groups if members else {"": {"ranks": "[]"}}}


SUM, COPY = ("all_reduce", WORLD, 4), ("broadcast", WORLD, 4)
LONG, PAIRED = ("all_reduce", WORLD, 8), ("all_reduce", PAIR, 4)


def test_the_first_collective_that_differs() -> None:
    cases: list[tuple[list[list[Entry]], str | None, int | None]] = [
        ([[SUM, SUM], [SUM, SUM], [SUM, SUM]], None, None),
        ([[SUM, SUM], [SUM], [SUM, SUM]], None, None),
        (
            [[SUM, SUM], [SUM, COPY], [SUM, SUM]],
            "collective 2 differs: rank 1: gloo:broadcast of Float[4]; ranks 0,2: gloo:all_reduce of Float[4]",
            1,
        ),
        (
            [[SUM, LONG], [SUM, SUM], [SUM, SUM]],
            "collective 2 differs: rank 0: gloo:all_reduce of Float[8]; ranks 1-2: gloo:all_reduce of Float[4]",
            0,
        ),
        # An extra one shifts the ones behind it.
        ([[SUM, SUM], [COPY, SUM, SUM], [SUM, SUM]], "collective 1 differs: rank 1: gloo:broadcast", 1),
        # Nobody is right where each has another one, or of two, or where the third is not known.
        ([[SUM], [COPY], [LONG]], "collective 1 differs: rank 0: gloo:all_reduce of Float[4]; rank 1:", None),
        ([[SUM], [COPY], []], "collective 1 differs: rank 0: gloo:all_reduce of Float[4]; rank 1:", None),
        ([[PAIRED], [("all_reduce", PAIR, 8)], [SUM]], "collective 1 of group 1 from rank 0 differs: rank 0:", None),
        # The first that differs, of whichever group.
        ([[PAIRED, SUM, SUM], [PAIRED, COPY, PAIRED], [SUM, SUM]], "collective 1 differs: rank 1: gloo:broadcast", 1),
        # What legally differs.
        ([[("all_to_all", WORLD, 4)], [("all_to_all", WORLD, 8)], [("all_to_all", WORLD, 2)]], None, None),
    ]
    for by_rank, text, odd in cases:
        entered = {rank: read_collectives(trace(entries, rank)) for rank, entries in enumerate(by_rank)}

        found = find_mismatch(entered, len(by_rank))

        assert (None if found is None else found.odd) == odd
        assert found is None if text is None else found is not None and found.text.startswith(text)


def test_ranks_that_others_wait_for_and_that_wait_for_none() -> None:
    cases: list[tuple[list[list[Entry]], set[int]]] = [
        ([[SUM, SUM], [SUM], [SUM, SUM]], {1}),
        ([[SUM], [SUM], [SUM]], set()),
        # Rank 0 waits for rank 1 in the pair, which waits with rank 2 for rank 0 in the world: nobody is behind.
        ([[SUM, PAIRED], [SUM, SUM], [SUM, SUM]], set()),
        # Rank 2 waits for ranks 0 and 1, and of these rank 0 for rank 1.
        ([[SUM, PAIRED, PAIRED], [SUM, PAIRED], [SUM, SUM]], {1}),
        ([[SUM], [PAIRED], []], set()),
    ]
    for by_rank, behind in cases:
        entered = {rank: read_collectives(trace(entries, rank, members=False)) for rank, entries in enumerate(by_rank)}

        assert positions(entered)[0] == behind


def test_groups_that_a_split_has_made_are_not_confused() -> None:
    traces = [trace([SUM]), trace([LONG], 1)]
    for each, ranks in zip(traces, ("[0]", "[1]"), strict=True):
        each["entries"][0]["process_group"] = ["7", "mesh_tp"]
        each["pg_config"] = {"7": {"ranks": ranks}}

    assert find_mismatch(dict(enumerate(map(read_collectives, traces))), 2) is None


entries = st.lists(st.sampled_from([SUM, COPY, LONG, PAIRED, ("all_reduce", PAIR, 8)]), max_size=5)


@settings(max_examples=200, deadline=None)
@given(st.tuples(entries, entries, entries))
def test_it_agrees_with_the_analysis_of_torch(by_rank: tuple[list[Entry], ...]) -> None:
    builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder")
    own = [[entry for entry in each if rank in entry[1][1]] for rank, each in enumerate(by_rank)]
    traces = {rank: trace(each, rank) for rank, each in enumerate(own)}

    found = find_mismatch({rank: read_collectives(each) for rank, each in traces.items()}, 3)

    config = {rank: each["pg_config"] for rank, each in traces.items()}
    _, by_name, _, members, names = builder.build_groups_memberships(config)
    entries = {rank: copy.deepcopy(each["entries"]) for rank, each in traces.items()}
    for entry in chain(*entries.values()):  # torch 2.11 reads no other backend's
        entry["profiling_name"] = entry["profiling_name"].replace("gloo", "nccl")
    _, collectives, _ = builder.build_collectives(entries, by_name, members, names, "2.10")
    differ = {(each.pg_desc, each.collective_seq_id) for each in collectives if each.mismatch_collectives}
    assert (found is not None) == bool(differ)
