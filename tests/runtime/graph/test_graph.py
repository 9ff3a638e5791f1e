"""Who waits for whom, what a failure spreads to; and any graph, run in any order, against what its dependencies say."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_aorta.runtime.graph import Footprint, Graph, GraphNode, State, Tag

#: Rows and columns of the matrix, and bytes of an item.
ROWS, COLUMNS, ITEM = 8, 8, 4


class GraphBench:
    """A graph, and what it has reported: names of nodes by kind of report, and all of it in order."""

    def __init__(self) -> None:
        self.ready: list[str] = []
        self.settled: list[str] = []
        self.consumed: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.nodes: list[GraphNode] = []
        self.graph = Graph(*(partial(self._tell, word) for word in ("ready", "settled", "consumed")))

    def _tell(self, word: str, node: GraphNode) -> None:
        getattr(self, word).append(node.label)
        self.told.append((word, node.label))

    def add(
        self, name: str, *accesses: tuple[Footprint, Tag], after: Sequence[GraphNode] = (), run: Hashable = 1
    ) -> GraphNode:
        node = self.graph.add(f"payload of {name}", run, accesses, after, name)
        self.nodes.append(node)
        return node

    def running(self, name: str, *accesses: tuple[Footprint, Tag]) -> GraphNode:
        """Add a node that can run at once, and claim it."""
        node = self.add(name, *accesses)
        assert self.graph.claim(node)
        return node

    def finish(self, *nodes: GraphNode) -> None:
        """Claim and complete each of them."""
        for node in nodes:
            assert self.graph.claim(node), node
            self.graph.complete(node)

    def break_down(self, node: GraphNode, error: BaseException) -> None:
        """Claim a node and fail it."""
        assert self.graph.claim(node)
        self.graph.fail(node, error)

    def leave_scope(self) -> None:
        """Let go of every node that was added."""
        for node in self.nodes:
            self.graph.release_scope(node)

    def is_empty(self) -> bool:
        """Once the runs of its nodes have ended."""
        for node in self.nodes:
            self.graph.end_run(node.run)
        return self.graph.live == len(self.graph.writers) == len(self.graph.unsettled) == 0


def tile(rows: tuple[int, int] = (0, ROWS), columns: tuple[int, int] = (0, COLUMNS), of: Hashable = "x") -> Footprint:
    """Rows and columns, from and up to, of the matrix ``of``."""
    (top, bottom), (left, right) = rows, columns
    return Footprint(of, (top * COLUMNS + left) * ITEM, (bottom - top, right - left), (COLUMNS * ITEM, ITEM), ITEM)


def reads(footprint: Footprint) -> tuple[Footprint, Tag]:
    return footprint, Tag.INPUT


def writes(footprint: Footprint) -> tuple[Footprint, Tag]:
    return footprint, Tag.OUTPUT


def changes(footprint: Footprint) -> tuple[Footprint, Tag]:
    return footprint, Tag.INOUT


X, Y = tile(of="x"), tile(of="y")


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
    between = bench.add("between", reads(X))
    newer = bench.add("newer", (X, tag))
    reader = bench.add("reader", reads(X))

    assert newer.state is State.READY
    assert list(reader.producers) == [newer]
    assert list(older.consumers or ()) == [between]


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
    ("one", "other", "serialize"),
    [
        (tile((0, 1)), tile((1, 2)), False),
        (tile(columns=(0, 4)), tile(columns=(4, 8)), False),
        (tile((0, 4), (4, 8)), tile((4, 8), (0, 4)), False),
        (tile((2, 6), (5, 8)), tile((2, 6), (2, 5)), False),
        (tile((0, 2)), tile((1, 3)), True),
        (tile(columns=(0, 4)), tile(columns=(3, 8)), True),
        (tile((0, 4), (4, 8)), tile((3, 8), (0, 5)), True),
        (tile((2, 3)), tile(columns=(7, 8)), True),
    ],
)
def test_parts_of_a_matrix_serialize_where_they_intersect(
    bench: GraphBench, one: Footprint, other: Footprint, serialize: bool
) -> None:
    bench.add("first", changes(one))
    assert bench.add("second", changes(other)).fan_in == serialize


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
def test_the_same_memory_in_two_runs_keeps_an_order_but_makes_no_shared_fate(bench: GraphBench) -> None:
    writer = bench.add("writer", writes(X), run="one")
    reader = bench.add("reader", changes(X), run="two")
    explicit = bench.add("explicit", run="two", after=[writer])
    beside = bench.add("beside", reads(Y), run="two")
    late = bench.add("late", writes(X), run="one")  # also for what an earlier run submits later

    assert beside.state is State.READY
    assert [reader.fan_in, explicit.fan_in, late.fan_in] == [1, 1, 1]
    assert list(bench.graph.writers.meeting("one", X)) == [late]
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


BROKEN = ValueError("broken")


@pytest.mark.statement(12)
@pytest.mark.statement(13)
def test_poison_reaches_grandchildren_and_names_where_it_came_from(bench: GraphBench) -> None:
    producer = bench.add("producer", writes(X))
    child = bench.add("child", reads(X), writes(Y))
    grandchild = bench.add("grandchild", reads(Y))
    bystander = bench.add("bystander")

    bench.break_down(producer, BROKEN)
    late = bench.add("late", reads(X))

    for node in (child, grandchild, late):
        assert not bench.graph.claim(node)
        assert (node.state, node.error, node.poisoned_by) == (State.FAILED, BROKEN, producer)
    assert producer.poisoned_by is None
    assert bystander.state is State.READY
    assert bench.settled == ["producer", "child", "grandchild", "late"]
    assert bench.ready == ["producer", "bystander"]
    bench.finish(bystander)
    bench.leave_scope()
    assert producer.state is child.state is State.CONSUMED
    assert bench.is_empty()


@pytest.mark.statement(14)
def test_a_producer_that_fails_in_the_middle_of_a_submission_spreads_once(bench: GraphBench) -> None:
    producer = bench.running("producer", writes(X), writes(Y))

    def accesses() -> Iterator[tuple[Footprint, Tag]]:
        yield reads(X)
        bench.graph.fail(producer, BROKEN)
        yield reads(Y)

    consumer = bench.add("consumer", *accesses(), after=[producer])

    assert consumer.state is State.FAILED
    assert bench.settled == ["producer", "consumer"]
    assert bench.ready == ["producer"]


@pytest.mark.statement(15)
def test_exactly_one_claims_or_cancels(bench: GraphBench) -> None:
    running, cancelled = bench.running("running"), bench.add("cancelled")
    assert bench.graph.cancel(cancelled, BROKEN)
    for node, state in ((running, State.RUNNING), (cancelled, State.FAILED)):
        assert not bench.graph.claim(node)
        assert not bench.graph.cancel(node, ValueError("late"))
        assert node.state is state


@pytest.mark.statement(16)
def test_cancelling_lets_go_of_the_producers_of_unstarted_nodes_only(bench: GraphBench) -> None:
    kept, let_go = bench.add("kept", writes(X)), bench.add("let go", writes(Y))
    bench.finish(kept, let_go)
    running = bench.running("running", reads(X))
    waiting = bench.add("waiting", reads(Y))
    bench.leave_scope()
    assert bench.consumed == []

    assert not bench.graph.cancel(running, BROKEN)
    assert bench.graph.cancel(waiting, BROKEN)

    assert (kept.state, let_go.state) == (State.COMPLETED, State.CONSUMED)

    bench.graph.complete(running)

    assert kept.state is State.CONSUMED
    assert bench.is_empty()


def test_a_long_chain_is_poisoned_and_goes(bench: GraphBench) -> None:
    length = 20_000
    for _ in range(length):
        bench.add("link", changes(X))
    bench.leave_scope()

    bench.break_down(bench.nodes[0], BROKEN)

    assert len(bench.settled) == len(bench.consumed) == length
    assert bench.nodes[-1].poisoned_by is bench.nodes[0]
    assert bench.is_empty()


Access = tuple[Footprint, Tag]


@st.composite
def accesses(draw: st.DrawFn) -> Access:
    top, left = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    bottom, right = draw(st.integers(top + 1, 4)), draw(st.integers(left + 1, 4))
    of = draw(st.sampled_from("ab"))
    return tile((top, bottom), (left, right), of), draw(st.sampled_from(list(Tag)))


class Oracle:
    """Who produces what for whom, item by item of every matrix; needs no geometry but that of single items."""

    def __init__(self) -> None:
        self._owner: dict[tuple[object, int], GraphNode] = {}

    def producers(self, wanted: list[Access]) -> set[GraphNode]:
        items = [item for footprint, tag in wanted if tag.reads for item in _items(footprint)]
        owners = {self._owner[item] for item in items if item in self._owner}
        # Memory has forgotten who wrote it once the writer is gone; one that has failed, when it is overwritten.
        return {owner for owner in owners if owner.failed or owner.state is not State.CONSUMED}

    def add(self, node: GraphNode, given_accesses: list[Access]) -> None:
        for footprint, tag in given_accesses:
            if tag.writes:
                for at in _items(footprint):
                    self._owner[at] = node


def _items(footprint: Footprint) -> list[tuple[object, int]]:
    (rows, columns), (down, right) = footprint.layout.shape, footprint.layout.strides
    return [
        (footprint.backing, footprint.offset + row * down + column * right)
        for row in range(rows)
        for column in range(columns)
    ]


@settings(max_examples=40)
@given(st.data())
def test_every_node_ends_and_none_runs_too_early_or_on_broken_ground(data: st.DataObject) -> None:
    bench, oracle = GraphBench(), Oracle()
    graph = bench.graph
    needs: dict[GraphNode, set[GraphNode]] = {}
    origins: set[GraphNode] = set()
    running: list[GraphNode] = []
    ran: set[GraphNode] = set()

    def submit() -> None:
        wanted = data.draw(st.lists(accesses(), max_size=3), label="accesses")
        after = data.draw(st.lists(st.sampled_from(bench.nodes), max_size=2), label="after") if bench.nodes else []
        producers = oracle.producers(wanted) | set(after)
        node = bench.add(str(len(bench.nodes)), *wanted, after=after)
        oracle.add(node, wanted)
        needs[node] = producers
        consumed = {other for other in producers if other.state is State.CONSUMED}
        assert node.failed or producers - consumed <= set(node.producers)

    def claim() -> None:
        ready = [node for node in bench.nodes if node.state is State.READY]
        if ready:
            node = data.draw(st.sampled_from(ready), label="claim")
            assert all(other.state in (State.COMPLETED, State.CONSUMED) and not other.failed for other in needs[node])
            assert graph.claim(node)
            running.append(node)
            ran.add(node)

    def end() -> None:
        if running:
            node = running.pop(data.draw(st.integers(0, len(running) - 1), label="end"))
            if data.draw(st.integers(0, 4), label="how") == 0:
                origins.add(node)
                graph.fail(node, ValueError(node.label))
            else:
                graph.complete(node)

    def cancel() -> None:
        if bench.nodes:
            node = data.draw(st.sampled_from(bench.nodes), label="cancel")
            unstarted = node.state in (State.PENDING, State.READY)
            assert graph.cancel(node, ValueError(node.label)) == unstarted
            if unstarted:
                origins.add(node)

    def leave() -> None:
        if bench.nodes:
            graph.release_scope(data.draw(st.sampled_from(bench.nodes), label="leave"))

    steps = [submit, submit, submit, claim, claim, end, end, cancel, leave]
    for step in data.draw(st.lists(st.sampled_from(steps), max_size=40), label="steps"):
        step()
    while running or any(node.state is State.READY for node in bench.nodes):
        claim()
        end()

    names = sorted(node.label for node in bench.nodes)
    assert sorted(bench.settled) == names, "every node ends, once"
    assert len(bench.ready) == len(set(bench.ready))
    assert {node.label for node in ran} <= set(bench.ready)
    for node in bench.nodes:
        if node.poisoned_by is not None:
            assert node not in ran
            assert node.poisoned_by in origins
            assert node.error is node.poisoned_by.error
        else:
            assert node.failed == (node in origins)
    bench.leave_scope()
    assert sorted(bench.consumed) == names
    assert bench.is_empty()
    for name in names:
        said = [what for what, of in bench.told if of == name]
        assert said in (["ready", "settled", "consumed"], ["settled", "consumed"])
