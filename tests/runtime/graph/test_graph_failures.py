"""What a failure spreads to, and what a submission that raises leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from graph_bench import GraphBench, X, Y, changes, reads, writes

from pytest_aorta.runtime.graph import Footprint, Graph, Node, State, Tag

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
