"""Who waits for whom."""

from __future__ import annotations

import pytest
from graph_bench import COLUMNS, GraphBench, X, Y, changes, reads, tile, writes

from pytest_aorta.runtime.graph import Footprint, Graph, Node, State, Tag


@pytest.fixture
def bench() -> GraphBench:
    return GraphBench()


@pytest.mark.statement(1)
def test_a_reader_waits_for_the_writer_and_a_stranger_does_not(bench: GraphBench) -> None:
    writer = bench.add("writer", writes(X))
    reader = bench.add("reader", reads(X))
    stranger = bench.add("stranger", reads(Y))

    assert (reader.state, reader.fan_in) == (State.PENDING, 1)
    assert (stranger.state, stranger.fan_in) == (State.READY, 0)
    assert bench.ready == ["writer", "stranger"]

    bench.finish(writer)

    assert reader.state is State.READY
    assert bench.ready == ["writer", "stranger", "reader"]


@pytest.mark.statement(2)
def test_a_producer_counts_once_however_often_it_is_named(bench: GraphBench) -> None:
    writer = bench.add("writer", writes(tile((0, 4))), writes(tile((4, 8))), writes(Y))
    reader = bench.add("reader", reads(X), reads(X), reads(Y), changes(tile((0, 1))), after=[writer, writer])

    assert reader.fan_in == 1

    bench.finish(writer)

    assert bench.ready == ["writer", "reader"]


@pytest.mark.statement(3)
def test_a_completed_producer_stays_for_a_later_consumer_which_does_not_wait(bench: GraphBench) -> None:
    writer = bench.add("writer", writes(X))
    bench.finish(writer)

    later = bench.add("later", changes(X))
    bench.graph.release_scope(writer)

    assert (later.state, later.fan_in) == (State.READY, 0)
    assert bench.consumed == []
    assert list(later.producers) == [writer]

    bench.finish(later)

    assert bench.consumed == ["writer"]


@pytest.mark.statement(4)
@pytest.mark.parametrize("tag", [Tag.OUTPUT, Tag.OUTPUT_EXISTING])
def test_a_pure_overwrite_waits_for_no_writer_and_owns_what_it_writes(bench: GraphBench, tag: Tag) -> None:
    older = bench.add("older", (X, tag))
    newer = bench.add("newer", (X, tag))
    reader = bench.add("reader", reads(X))

    assert newer.state is State.READY
    assert list(reader.producers) == [newer]
    assert not older.consumers


def test_a_writer_does_not_wait_for_readers(bench: GraphBench) -> None:
    bench.add("writer", writes(X))
    reader = bench.add("reader", reads(X))
    overwrite = bench.add("overwrite", writes(X))

    assert reader.state is State.PENDING
    assert overwrite.state is State.READY


@pytest.mark.statement(5)
def test_consuming_a_superseded_writer_leaves_the_newer_one(bench: GraphBench) -> None:
    older = bench.add("older", writes(X))
    newer = bench.add("newer", writes(X))
    bench.finish(older)

    bench.graph.release_scope(older)

    assert older.state is State.CONSUMED
    assert list(bench.graph.writers.meeting(1, X)) == [newer]


@pytest.mark.statement(6)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tile((0, 1)), tile((1, 2))),
        (tile((0, 1)), tile((5, 7))),
        (tile(columns=(0, 4)), tile(columns=(4, 8))),
        (tile(columns=(0, 3)), tile(columns=(5, 8))),
        (tile((0, 4), (0, 4)), tile((0, 4), (4, 8))),
        (tile((0, 4), (4, 8)), tile((4, 8), (0, 4))),
        (tile((2, 6), (5, 8)), tile((2, 6), (2, 5))),
    ],
    ids=["rows", "far rows", "columns", "far columns", "tiles", "tiles across", "middle tiles"],
)
def test_disjoint_parts_of_a_matrix_do_not_serialize(bench: GraphBench, one: Footprint, other: Footprint) -> None:
    first = bench.add("first", changes(one))
    second = bench.add("second", changes(other))

    assert first.state is second.state is State.READY


@pytest.mark.statement(6)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tile((0, 2)), tile((1, 3))),
        (tile(columns=(0, 4)), tile(columns=(3, 8))),
        (tile((0, 4), (0, 4)), tile((3, 8), (3, 8))),
        (tile((0, 4), (4, 8)), tile((3, 8), (0, 5))),
        (tile((2, 3)), tile(columns=(7, 8))),
    ],
    ids=["rows", "columns", "tiles", "tiles across", "row and column"],
)
def test_intersecting_parts_of_a_matrix_serialize(bench: GraphBench, one: Footprint, other: Footprint) -> None:
    bench.add("first", changes(one))
    second = bench.add("second", changes(other))

    assert (second.state, second.fan_in) == (State.PENDING, 1)


@pytest.mark.statement(7)
def test_a_reader_of_everything_waits_for_every_writer_of_a_part(bench: GraphBench) -> None:
    parts = [bench.add(f"column {at}", writes(tile(columns=(at, at + 1)))) for at in range(COLUMNS)]
    reader = bench.add("reader", reads(X))

    assert list(reader.producers) == parts

    bench.finish(*parts[:-1])
    assert reader.fan_in == 1
    bench.finish(parts[-1])

    assert reader.state is State.READY


@pytest.mark.statement(8)
def test_what_takes_no_part_leaves_no_trace(bench: GraphBench) -> None:
    bench.add("writer", writes(Y))
    outside = bench.add("outside", (X, Tag.NO_DEP), (Y, Tag.NO_DEP))
    reader = bench.add("reader", reads(X))

    assert outside.state is reader.state is State.READY
    assert len(bench.graph.writers) == 1
    assert list(bench.graph.writers.meeting(1, X)) == []


@pytest.mark.statement(9)
def test_the_same_memory_in_two_runs_makes_no_dependency(bench: GraphBench) -> None:
    writer = bench.add("writer", writes(X), run="one")
    reader = bench.add("reader", changes(X), run="two")

    assert reader.state is State.READY
    assert list(bench.graph.writers.meeting("one", X)) == [writer]
    assert list(bench.graph.writers.meeting("two", X)) == [reader]


@pytest.mark.statement(10)
def test_members_of_a_group_may_write_one_buffer_and_do_not_wait_for_themselves(bench: GraphBench) -> None:
    group = bench.add("group", writes(X), writes(X), changes(X), writes(tile((0, 2))), reads(X))
    downstream = bench.add("downstream", reads(X))

    assert group.state is State.READY
    assert not group.producers
    assert list(downstream.producers) == [group]
    assert downstream.fan_in == 1

    bench.finish(group)

    assert bench.ready == ["group", "downstream"]


def test_an_explicit_order_holds_across_runs(bench: GraphBench) -> None:
    first = bench.add("first", run="one")
    second = bench.add("second", run="two", after=[first])

    assert bench.ready == ["first"]
    assert list(second.producers) == [first]

    bench.finish(first)

    assert bench.ready == ["first", "second"]


def test_memory_stays_for_tasks_that_use_it(bench: GraphBench) -> None:
    slab = bench.graph.add_memory("slab", 1)
    user = bench.add("user", after=[slab])
    assert user.state is State.READY
    bench.leave_scope()
    bench.graph.release_scope(slab)

    assert bench.graph.claim(user)
    assert "memory" not in bench.consumed

    bench.graph.complete(user)

    assert "memory" in bench.consumed
    assert bench.is_empty()


@pytest.mark.statement(33)
def test_a_slab_that_no_task_uses_goes_with_its_scope(bench: GraphBench) -> None:
    slab = bench.graph.add_memory("slab", 1)

    bench.graph.release_scope(slab)
    bench.graph.release_scope(slab)

    assert bench.consumed == ["memory"]
    assert bench.is_empty()


def test_reports_may_change_the_graph() -> None:
    done: list[str] = []

    def run(node: Node) -> None:
        assert graph.claim(node)
        graph.complete(node)
        graph.release_scope(node)
        if node.label == "first":
            graph.add(None, 1, [reads(X)], label="born in a report")

    graph = Graph(run, lambda node: done.append(node.label), lambda node: None)

    graph.add(None, 1, [writes(X)], label="first")
    graph.add(None, 1, [reads(X)], label="last")

    assert done == ["first", "born in a report", "last"]
    assert (graph.live, len(graph.writers)) == (0, 0)


def test_a_long_chain_completes_and_goes(bench: GraphBench) -> None:
    length = 20_000
    for _ in range(length):
        bench.add("link", changes(X))
    bench.leave_scope()

    for node in bench.nodes:
        bench.finish(node)

    assert len(bench.ready) == len(bench.settled) == len(bench.consumed) == length
    assert bench.is_empty()
