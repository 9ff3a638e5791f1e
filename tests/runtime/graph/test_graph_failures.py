"""What a failure spreads to, and what a submission that raises leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from graph_bench import GraphBench, X, Y, changes, reads, tile, writes

from pytest_aorta.runtime.graph.args import Tag
from pytest_aorta.runtime.graph.footprint import Footprint
from pytest_aorta.runtime.graph.graph import Graph
from pytest_aorta.runtime.graph.nodes import Node, State

BROKEN = ValueError("broken")


@pytest.fixture
def bench() -> GraphBench:
    return GraphBench()


@pytest.mark.statement(12)
def test_the_consumer_of_a_failed_producer_never_runs_and_both_go(bench: GraphBench) -> None:
    producer = bench.add("producer", writes(X))
    consumer = bench.add("consumer", reads(X))

    bench.break_down(producer, BROKEN)
    bench.leave_scope()

    assert bench.ready == ["producer"]
    assert not bench.graph.claim(consumer)
    assert producer.state is consumer.state is State.CONSUMED
    assert bench.is_empty()


@pytest.mark.statement(13)
def test_poison_reaches_grandchildren_and_names_where_it_came_from(bench: GraphBench) -> None:
    producer = bench.add("producer", writes(X))
    child = bench.add("child", reads(X), writes(Y))
    grandchild = bench.add("grandchild", reads(Y))
    bystander = bench.add("bystander")

    bench.break_down(producer, BROKEN)

    assert child.state is grandchild.state is State.FAILED
    assert child.error is grandchild.error is producer.error is BROKEN
    assert child.poisoned_by is grandchild.poisoned_by is producer
    assert producer.poisoned_by is None
    assert bystander.state is State.READY
    assert bench.settled == ["producer", "child", "grandchild"]


@pytest.mark.statement(13)
def test_submitting_onto_a_failed_producer_poisons_at_once(bench: GraphBench) -> None:
    producer = bench.add("producer", writes(X))
    bench.break_down(producer, BROKEN)

    child = bench.add("child", reads(X), writes(Y))
    grandchild = bench.add("grandchild", reads(Y))

    assert child.state is grandchild.state is State.FAILED
    assert child.poisoned_by is grandchild.poisoned_by is producer
    assert bench.ready == ["producer"]
    assert bench.settled == ["producer", "child", "grandchild"]

    bench.leave_scope()
    assert bench.is_empty()


def test_a_failed_node_is_known_as_failed_after_it_is_gone(bench: GraphBench) -> None:
    producer = bench.add("producer")
    bench.break_down(producer, BROKEN)
    bench.graph.release_scope(producer)

    later = bench.add("later", after=[producer], run="another")

    assert producer.state is State.CONSUMED
    assert producer.failed
    assert later.state is State.FAILED
    assert later.poisoned_by is producer


def test_an_overwrite_heals(bench: GraphBench) -> None:
    bench.break_down(bench.add("broken", writes(X)), BROKEN)
    bench.add("overwrite", writes(X))

    reader = bench.add("reader", reads(X))

    assert reader.state is State.PENDING


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


@pytest.mark.statement(14)
def test_two_failed_producers_fail_their_consumer_once(bench: GraphBench) -> None:
    one, two = bench.running("one", writes(X)), bench.running("two", writes(Y))
    consumer = bench.add("consumer", reads(X), reads(Y))

    bench.graph.fail(one, BROKEN)
    bench.graph.fail(two, KeyError("later"))

    assert bench.settled == ["one", "consumer", "two"]
    assert consumer.poisoned_by is one
    bench.leave_scope()
    assert sorted(bench.consumed) == ["consumer", "one", "two"]
    assert bench.is_empty()


def test_a_diamond_is_poisoned_once(bench: GraphBench) -> None:
    top = bench.running("top", writes(X))
    left = bench.add("left", reads(X))
    right = bench.add("right", reads(X), after=[left])
    bench.add("bottom", after=[left, right, top])

    bench.graph.fail(top, BROKEN)

    assert bench.settled == ["top", "left", "right", "bottom"]


@pytest.mark.statement(15)
def test_exactly_one_claims_or_cancels() -> None:
    lock = threading.Lock()
    for _ in range(50):
        bench = GraphBench()
        node = bench.add("node")
        together = threading.Barrier(8)
        won: list[str] = []

        def claim(
            bench: GraphBench = bench, node: Node = node, together: threading.Barrier = together, won: list[str] = won
        ) -> None:
            together.wait()
            with lock:
                if bench.graph.claim(node):
                    won.append("claim")

        def cancel(
            bench: GraphBench = bench, node: Node = node, together: threading.Barrier = together, won: list[str] = won
        ) -> None:
            together.wait()
            with lock:
                if bench.graph.cancel(node, BROKEN):
                    won.append("cancel")

        threads = [threading.Thread(target=target) for target in (claim, cancel) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(won) == 1
        assert node.state is (State.RUNNING if won == ["claim"] else State.FAILED)


@pytest.mark.statement(15)
def test_what_runs_or_has_ended_cannot_be_cancelled_or_claimed(bench: GraphBench) -> None:
    running, done, gone = bench.running("running"), bench.running("done"), bench.running("gone")
    bench.graph.complete(done)
    bench.graph.fail(gone, BROKEN)
    bench.graph.release_scope(gone)
    told = list(bench.told)

    for node in (running, done, gone):
        assert not bench.graph.cancel(node, KeyError())
        assert not bench.graph.claim(node)

    assert bench.told == told
    assert running.state is State.RUNNING
    assert running.error is None


def test_a_pending_node_cannot_be_claimed_but_cancelled(bench: GraphBench) -> None:
    producer = bench.running("producer", writes(X))
    pending = bench.add("pending", reads(X), writes(Y))
    behind = bench.add("behind", reads(Y))

    assert not bench.graph.claim(pending)
    assert bench.graph.cancel(pending, BROKEN)
    assert behind.state is State.FAILED
    assert behind.poisoned_by is pending

    bench.graph.complete(producer)

    assert bench.ready == ["producer"]


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


@pytest.mark.parametrize("method", ["complete", "fail"])
def test_only_a_running_node_ends(bench: GraphBench, method: str) -> None:
    node = bench.add("node")

    with pytest.raises(RuntimeError, match=r"\(node\) is ready, not running"):
        bench.graph.complete(node) if method == "complete" else bench.graph.fail(node, BROKEN)

    assert node.state is State.READY


def test_a_node_that_was_cancelled_by_a_report_is_not_reported_ready() -> None:
    ready: list[str] = []

    def settled(node: Node) -> None:
        if node.label == "first":
            assert graph.cancel(second, BROKEN)

    graph = Graph(lambda node: ready.append(node.label), settled, lambda node: None)
    first = graph.add(None, 1, [writes(X)], label="first")
    second = graph.add(None, 1, [reads(X)], label="second")
    graph.claim(first)
    graph.complete(first)

    assert ready == ["first"]


def test_a_long_chain_is_poisoned_and_goes(bench: GraphBench) -> None:
    length = 20_000
    for _ in range(length):
        bench.add("link", changes(X))
    bench.leave_scope()

    bench.break_down(bench.nodes[0], BROKEN)

    assert len(bench.settled) == len(bench.consumed) == length
    assert bench.nodes[-1].poisoned_by is bench.nodes[0]
    assert bench.is_empty()


class Unusable:
    """A footprint, a tag or a node that is none."""


@pytest.mark.statement(23)
@pytest.mark.parametrize("step", ["lookup", "insert", "second insert", "attach", "make ready", "ready", "after", "run"])
def test_a_submission_that_raises_leaves_nothing_behind(
    bench: GraphBench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    slab = bench.graph.add_completed(None, 1, [writes(tile((0, 2)))], "slab")
    writer = bench.add("writer", writes(tile((2, 8))))
    bench.finish(writer)
    graph = bench.graph
    before = (graph.live, len(graph.map), writer.holds, slab.holds)
    run: Any = 1
    after: list[Node] = []

    def explode(*_: object) -> None:
        raise MemoryError(step)

    if step == "lookup":
        monkeypatch.setattr(graph.map, "writers", explode)
    elif step == "insert":
        monkeypatch.setattr(graph.map, "insert", explode)
    elif step == "second insert":
        insert, calls = graph.map.insert, iter([True])
        monkeypatch.setattr(graph.map, "insert", lambda *a: insert(*a) if next(calls, False) else explode())
    elif step == "attach":
        attach = graph._attach

        def attach_and_explode(*a: Any) -> None:
            attach(*a)
            explode()

        monkeypatch.setattr(graph, "_attach", attach_and_explode)
    elif step == "make ready":
        monkeypatch.setattr(graph, "_make_ready", explode)
    elif step == "ready":
        monkeypatch.setattr(bench, "told", Unusable())
    elif step == "after":
        after = [writer, cast(Node, Unusable())]
    else:
        run = []  # cannot be hashed

    with pytest.raises((MemoryError, AttributeError, TypeError)):
        graph.add("new", run, [changes(X), writes(Y)], after)
    monkeypatch.undo()

    assert (graph.live, len(graph.map), writer.holds, slab.holds) == before
    assert not writer.consumers
    assert not slab.consumers
    assert set(graph.map.writers(1, X)) == {slab, writer}
    assert graph.map.writers(1, Y) == []
    graph.release_scope(slab)
    bench.leave_scope()
    assert bench.consumed == ["slab", "writer"]
    assert bench.is_empty()


@pytest.mark.statement(23)
def test_a_poisoned_submission_whose_report_raises_leaves_nothing_behind() -> None:
    def settled(node: Node) -> None:
        if node.label == "second":
            raise MemoryError

    graph = Graph(lambda node: None, settled, lambda node: None)
    first = graph.add(None, 1, [writes(X)], label="first")
    graph.claim(first)
    graph.fail(first, BROKEN)

    with pytest.raises(MemoryError):
        graph.add(None, 1, [changes(X)], label="second")

    assert graph.live == 1
    assert graph.map.writers(1, X) == [first]


@pytest.mark.statement(23)
def test_a_node_that_was_claimed_by_a_report_that_raised_stays() -> None:
    claimed: list[Node] = []

    def ready(node: Node) -> None:
        graph.claim(node)
        claimed.append(node)
        raise MemoryError

    graph = Graph(ready, lambda node: None, lambda node: None)
    with pytest.raises(MemoryError):
        graph.add(None, 1, [writes(X)])

    assert graph.live == 1
    graph.complete(claimed[0])
    graph.release_scope(claimed[0])
    assert (graph.live, len(graph.map)) == (0, 0)


def test_a_report_that_raises_keeps_no_other_back(bench: GraphBench, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = bench.running("producer", writes(X))
    consumer = bench.add("consumer", reads(X))
    monkeypatch.setattr(bench, "settled", Unusable())

    with pytest.raises(AttributeError):
        bench.graph.complete(producer)

    assert bench.ready == ["producer", "consumer"]
    assert consumer.state is State.READY
