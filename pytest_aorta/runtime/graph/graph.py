"""The graph of tasks: who waits for whom, who may run, who must not, and who may go."""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from pytest_aorta.runtime.graph.args import Tag
from pytest_aorta.runtime.graph.footprint import Footprint
from pytest_aorta.runtime.graph.nodes import UNSTARTED, Node, State
from pytest_aorta.runtime.graph.tensor_map import Entry, TensorMap

Report = Callable[[Node], None]


_READY, _CONSUMED = State.READY, State.CONSUMED


class News(enum.Enum):
    """What there is to report of a node."""

    READY = enum.auto()
    SETTLED = enum.auto()
    CONSUMED = enum.auto()


class Graph:
    """The nodes of all runs of one engine. It takes no lock: callers hold the engine's.

    ``on_ready`` is told once of every node that may run now, ``on_settled`` once of every node that has completed or
    failed (not of those that were completed from the start), ``on_consumed`` once of every node that nobody holds any
    more, in this order for one node. All of them are called when the change they tell of is over, and may change the
    graph in turn; what follows from that is reported after they have returned.
    """

    def __init__(self, on_ready: Report, on_settled: Report, on_consumed: Report) -> None:
        self._on_ready = on_ready
        self._on_settled = on_settled
        self._on_consumed = on_consumed
        self._ids = itertools.count()
        self._news: deque[tuple[News, Node]] = deque()
        self._telling = False
        #: Writes of the nodes that are live.
        self.map = TensorMap()
        #: Memory that lives as long as its node, which is in no other way a producer.
        self._slabs = TensorMap()
        #: Nodes that are not consumed.
        self.live = 0

    def add(
        self,
        payload: Any,
        run: Hashable,
        accesses: Iterable[tuple[Footprint, Tag]],
        after: Iterable[Node] = (),
        label: str = "",
    ) -> Node:
        """Add a node that waits for ``after``, of whatever run, and for the writers of what it reads, of its own run.

        It is ready at once if all of them are done, and failed at once if one of them has failed. When anything here
        raises, ``on_ready`` and ``on_settled`` included, the graph is as it was.
        """
        accesses = list(accesses)
        wanted = self._wanted(run, accesses, after)
        bad = next((other for other in wanted if other.failed), None) if wanted else None
        node = Node(next(self._ids), run, label, payload=payload)
        replaced: list[Entry] = []
        born = None
        self.live += 1
        try:
            # Even a failed node is the writer of its outputs: those who read them must fail as well.
            self._put(node, accesses, replaced)
            if bad is not None:
                self._fail(node, *_reason(bad))
            else:
                for producer in wanted:
                    if producer.state is not _CONSUMED:
                        self._attach(node, producer)
                if node.fan_in:
                    node.state = State.PENDING
                else:
                    self._make_ready(node)
            born = node.state
            self._tell()
        except BaseException:
            # A callback that has raised may have done something with the new node before; then it stays.
            if born is None or (node.state is born and node.in_scope):
                self._detach(node)
                self._take_back(node, replaced)
            raise
        return node

    def _wanted(self, run: Hashable, accesses: list[tuple[Footprint, Tag]], after: Iterable[Node]) -> dict[Node, None]:
        """Those that a new node waits for, in order."""
        wanted = dict.fromkeys(after)
        for other in wanted:
            if not isinstance(other, Node):
                raise TypeError(f"expected nodes to come after, not {other!r}")
        for footprint, tag in accesses:
            # Whoever was given a part of a slab keeps it, whatever is done to it: an overwrite has no other reason to.
            wanted.update(dict.fromkeys(self._slabs.writers(run, footprint)))
            if tag.reads:
                wanted.update(dict.fromkeys(self.map.writers(run, footprint)))
        return wanted

    def add_completed(
        self, payload: Any, run: Hashable, accesses: Iterable[tuple[Footprint, Tag]], label: str = ""
    ) -> Node:
        """Add a node that has nothing to do but to be: it stands for memory, and stays until its scope is over and all
        nodes of its run that were given a part of that memory have settled, whatever their tags.
        """
        accesses = list(accesses)
        node = Node(next(self._ids), run, label, payload=payload)
        replaced: list[Entry] = []
        self.live += 1
        try:
            self._put(node, accesses, replaced)
            for footprint, _ in accesses:
                self._slabs.insert(run, footprint, node)
        except BaseException:
            self._take_back(node, replaced)
            raise
        node.state = State.COMPLETED
        node.holds -= 1
        return node

    def claim(self, node: Node) -> bool:
        """Take a ready node to run it. False when somebody was faster, or when it has been cancelled."""
        if node.state is not State.READY:
            return False
        node.state = State.RUNNING
        return True

    def complete(self, node: Node) -> None:
        """A running node is done; those who waited for nothing else become ready."""
        self._expect_running(node)
        node.state = State.COMPLETED
        self._news.append((News.SETTLED, node))
        for consumer in node.consumers:
            consumer.fan_in -= 1
            if not consumer.fan_in:
                self._make_ready(consumer)
        self._let_go(node)
        self._tell()

    def fail(self, node: Node, error: BaseException) -> None:
        """A running node has failed, and with it every node that waits for it, however indirectly."""
        self._expect_running(node)
        self._fail(node, error)
        self._tell()

    def cancel(self, node: Node, error: BaseException) -> bool:
        """Fail a node that has not started. False, and nothing is changed, if it has."""
        if node.state not in UNSTARTED:
            return False
        self._fail(node, error)
        self._tell()
        return True

    def release_scope(self, node: Node) -> None:
        """The scope that the node was added in is over; further calls do nothing."""
        if node.in_scope:
            node.in_scope = False
            self._drop(node)
            self._tell()

    def _put(self, node: Node, accesses: Iterable[tuple[Footprint, Tag]], replaced: list[Entry]) -> None:
        """Enter the node's writes; those of others that they replace are added to ``replaced``."""
        for footprint, tag in accesses:
            if tag.writes:
                replaced += [entry for entry in self.map.insert(node.run, footprint, node) if entry.node is not node]

    def _take_back(self, node: Node, replaced: list[Entry]) -> None:
        """The node has never been."""
        for entry in reversed(replaced):
            if entry.node.state is not _CONSUMED:
                self.map.restore(entry)
        self.map.forget(node)
        self._slabs.forget(node)
        self.live -= 1
        node.state = State.CONSUMED
        node.in_scope = False
        node.holds = 0
        self._tell()

    def _attach(self, node: Node, producer: Node) -> None:
        node.producers[producer] = None
        producer.consumers[node] = None
        producer.holds += 1
        node.fan_in += producer.state is not State.COMPLETED

    def _detach(self, node: Node) -> None:
        """Let go of the producers."""
        for producer in node.producers:
            del producer.consumers[node]
            self._drop(producer)
        node.producers.clear()

    def _make_ready(self, node: Node) -> None:
        node.state = _READY
        self._news.append((News.READY, node))

    def _fail(self, node: Node, error: BaseException, root: Node | None = None) -> None:
        """Fail an unsettled node and all that wait for it. Not by recursion, for chains may be long."""
        doomed = deque([node])
        node.poisoned_by = root
        while doomed:
            node = doomed.popleft()
            node.state = State.FAILED
            node.error = error
            self._news.append((News.SETTLED, node))
            for consumer in node.consumers:
                if consumer.state is not State.FAILED:  # of two that have failed, the first is the reason
                    consumer.state = State.FAILED
                    consumer.poisoned_by = root or node
                    doomed.append(consumer)
            root = root or node
            self._let_go(node)

    def _let_go(self, node: Node) -> None:
        """A settled node holds neither its producers nor itself."""
        self._detach(node)
        self._drop(node)

    def _drop(self, node: Node) -> None:
        node.holds -= 1
        if not node.holds:
            node.state = _CONSUMED
            self.live -= 1
            self.map.forget(node)
            self._slabs.forget(node)
            self._news.append((News.CONSUMED, node))

    def _tell(self) -> None:
        """Report what has happened, in order, also what happens meanwhile. One report that raises stops no other."""
        if self._telling:
            return
        raised: BaseException | None = None
        self._telling = True
        try:
            while self._news:
                news, node = self._news.popleft()
                try:
                    if news is News.SETTLED:
                        self._on_settled(node)
                    elif news is News.CONSUMED:
                        self._on_consumed(node)
                    elif node.state is _READY:  # not taken or cancelled by somebody who was told something before
                        self._on_ready(node)
                except BaseException as error:
                    raised = error if raised is None else raised
        finally:
            self._telling = False
        if raised is not None:
            raise raised

    @staticmethod
    def _expect_running(node: Node) -> None:
        if node.state is not State.RUNNING:
            raise RuntimeError(f"node {node.id} ({node.label}) is {node.state.value}, not running")


def _reason(failed: Node) -> tuple[BaseException, Node]:
    """Error and origin of a failure, as those who are poisoned by it see them."""
    assert failed.error is not None
    return failed.error, failed.poisoned_by or failed
