"""Any graph, run in any order, against what its dependencies say."""

from __future__ import annotations

from graph_bench import GraphBench, tile
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_aorta.runtime.graph import Footprint, Node, State, Tag

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
        self._owner: dict[tuple[object, int], Node] = {}

    def producers(self, wanted: list[Access]) -> set[Node]:
        items = [item for footprint, tag in wanted if tag.reads for item in _items(footprint)]
        owners = {self._owner[item] for item in items if item in self._owner}
        # Memory has forgotten who wrote it once the writer is gone; one that has failed, when it is overwritten.
        return {owner for owner in owners if owner.failed or owner.state is not State.CONSUMED}

    def add(self, node: Node, given_accesses: list[Access]) -> None:
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
    needs: dict[Node, set[Node]] = {}
    origins: set[Node] = set()
    running: list[Node] = []
    ran: set[Node] = set()

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
