"""The graph of tasks: which wait for which, which are ready, which are poisoned, which can be forgotten."""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from pytest_aorta.runtime.graph.args import Tag
from pytest_aorta.runtime.graph.footprint import Footprint
from pytest_aorta.runtime.graph.nodes import UNSTARTED, Node, State
from pytest_aorta.runtime.graph.tensor_map import Entry, TensorMap

Report = Callable[[Node], None]

_READY, _CONSUMED = State.READY, State.CONSUMED


class Change(enum.Enum):
    """A change of a node's state that is reported."""

    READY = enum.auto()
    SETTLED = enum.auto()
    CONSUMED = enum.auto()


class Graph:
    """The nodes of all runs of one dispatcher. It takes no lock: callers hold the dispatcher's.

    ``on_ready`` is called once for every node that becomes ready, ``on_settled`` once for every node that completes or
    fails (not for those that are added as completed), ``on_consumed`` once for every node that nothing holds any more,
    in this order for one node. They are called when the change is over, and may change the graph in turn; what follows
    from that is reported after they have returned.
    """

    def __init__(self, on_ready: Report, on_settled: Report, on_consumed: Report) -> None:
        self._on_ready = on_ready
        self._on_settled = on_settled
        self._on_consumed = on_consumed
        self._ids = itertools.count()
        self._changes: deque[tuple[Change, Node]] = deque()
        self._reporting = False
        #: Writes of the nodes that are live.
        self.map = TensorMap()
        #: Memory that lives as long as its node, which is a producer in no other way.
        self._slabs = TensorMap()
        #: Nodes that are not consumed.
        self.live = 0

    def add(
        self,
        payload: Any,
        run: Hashable,
        accesses: Iterable[tuple[Footprint, Tag]],
        after: Sequence[Node] = (),
        label: str = "",
    ) -> Node:
        """Add a node that waits for ``after``, of any run, and for the writers of what it reads, of the same run.

        It is ready at once if all of them are done, and failed at once if one of them has failed. When anything here
        raises, ``on_ready`` and ``on_settled`` included, the graph is as it was.
        """
        accesses = list(accesses)
        wanted = self._wanted(run, accesses, after) if accesses or after else {}
        bad = next((other for other in wanted if other.failed), None) if wanted else None
        node = Node(next(self._ids), run, label, payload=payload)
        replaced: list[Entry] = []
        born = None
        self.live += 1
        try:
            # Even a failed node is the writer of its outputs: nodes that read them must fail as well.
            if accesses:
                self._put(node, accesses, replaced)
            if bad is not None:
                self._fail(node, *_reason(bad))
            else:
                if wanted:
                    self._attach(node, [producer for producer in wanted if producer.state is not _CONSUMED])
                if node.fan_in:
                    node.state = State.PENDING
                else:
                    self._make_ready(node)
            born = node.state
            self._report()
        except BaseException:
            # A callback that has raised may have changed the new node before; then it stays.
            if born is None or (node.state is born and node.in_scope):
                self._detach(node)
                self._take_back(node, replaced)
            raise
        return node

    def _wanted(self, run: Hashable, accesses: list[tuple[Footprint, Tag]], after: Iterable[Node]) -> dict[Node, None]:
        """The nodes that a new node waits for, in order."""
        wanted = dict.fromkeys(after)
        for other in wanted:
            if not isinstance(other, Node):
                raise TypeError(f"expected nodes to come after, not {other!r}")
        for footprint, tag in accesses:
            # A node that uses a part of a slab holds it, whatever its tag: nothing else would hold it for an overwrite.
            wanted.update(dict.fromkeys(self._slabs.writers(run, footprint)))
            if tag.reads:
                wanted.update(dict.fromkeys(self.map.writers(run, footprint)))
        return wanted

    def add_completed(
        self, payload: Any, run: Hashable, accesses: Iterable[tuple[Footprint, Tag]], label: str = ""
    ) -> Node:
        """Add a node that stands for memory. It stays until its scope has ended and all nodes of its run that use a
        part of that memory have settled, whatever their tags.
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
        """Take a ready node to run it. False when it has been taken, or cancelled."""
        if node.state is not State.READY:
            return False
        node.state = State.RUNNING
        return True

    def complete(self, node: Node) -> None:
        """A running node is done; nodes that waited for nothing else become ready."""
        self._expect_running(node)
        node.state = State.COMPLETED
        self._changes.append((Change.SETTLED, node))
        self.map.completed(node)
        for consumer in node.consumers or ():
            consumer.fan_in -= 1
            if not consumer.fan_in:
                self._make_ready(consumer)
        self._release(node)
        self._report()

    def fail(self, node: Node, error: BaseException) -> None:
        """A running node has failed, and with it every node that waits for it, directly or not."""
        self._expect_running(node)
        self._fail(node, error)
        self._report()

    def cancel(self, node: Node, error: BaseException) -> bool:
        """Fail a node that has not started. False, and nothing is changed, if it has."""
        if node.state not in UNSTARTED:
            return False
        self._fail(node, error)
        self._report()
        return True

    def release_scope(self, node: Node) -> None:
        """The scope that the node was added in has ended; further calls do nothing."""
        if node.in_scope:
            node.in_scope = False
            self._drop(node)
            self._report()

    def _put(self, node: Node, accesses: Iterable[tuple[Footprint, Tag]], replaced: list[Entry]) -> None:
        """Enter the node's writes; those of others that they replace are added to ``replaced``."""
        for footprint, tag in accesses:
            if tag.writes:
                replaced += [entry for entry in self.map.insert(node.run, footprint, node) if entry.node is not node]

    def _take_back(self, node: Node, replaced: list[Entry]) -> None:
        """Remove a node as if it had never been added."""
        for entry in reversed(replaced):
            if entry.node.state is not _CONSUMED:
                self.map.restore(entry)
        self.map.forget(node)
        self._slabs.forget(node)
        self.live -= 1
        node.state = State.CONSUMED
        node.in_scope = False
        node.holds = 0
        self._report()

    @staticmethod
    def _attach(node: Node, producers: list[Node]) -> None:
        node.producers = tuple(producers)
        for producer in producers:
            if producer.consumers is None:
                producer.consumers = {node: None}
            else:
                producer.consumers[node] = None
            producer.holds += 1
            node.fan_in += producer.state is not State.COMPLETED

    def _detach(self, node: Node) -> None:
        """Drop the holds on the producers."""
        producers, node.producers = node.producers, ()
        for producer in producers:
            assert producer.consumers is not None
            del producer.consumers[node]
            if not producer.consumers:
                producer.consumers = None
            self._drop(producer)

    def _make_ready(self, node: Node) -> None:
        node.state = _READY
        self._changes.append((Change.READY, node))

    def _fail(self, node: Node, error: BaseException, root: Node | None = None) -> None:
        """Fail an unsettled node and all that wait for it; without recursion, for chains may be long."""
        doomed = deque([node])
        node.poisoned_by = root
        while doomed:
            node = doomed.popleft()
            node.state = State.FAILED
            node.error = error
            self._changes.append((Change.SETTLED, node))
            for consumer in node.consumers or ():
                if consumer.state is not State.FAILED:  # of two failed producers, the first is the reason
                    consumer.state = State.FAILED
                    consumer.poisoned_by = root or node
                    doomed.append(consumer)
            root = root or node
            self._release(node)

    def _release(self, node: Node) -> None:
        """Drop the holds of a node that has settled: on its producers, and on itself."""
        if node.producers:
            self._detach(node)
        self._drop(node)

    def _drop(self, node: Node) -> None:
        node.holds -= 1
        if not node.holds:
            node.state = _CONSUMED
            self.live -= 1
            self.map.forget(node)
            self._slabs.forget(node)
            self._changes.append((Change.CONSUMED, node))

    def _report(self) -> None:
        """Report all changes in order, also those made meanwhile. A report that raises stops no other."""
        if self._reporting:
            return
        raised: BaseException | None = None
        self._reporting = True
        try:
            while self._changes:
                change, node = self._changes.popleft()
                try:
                    if change is Change.SETTLED:
                        self._on_settled(node)
                    elif change is Change.CONSUMED:
                        self._on_consumed(node)
                    elif node.state is _READY:  # not taken or cancelled in an earlier report
                        self._on_ready(node)
                except BaseException as error:
                    raised = error if raised is None else raised
        finally:
            self._reporting = False
        if raised is not None:
            raise raised

    @staticmethod
    def _expect_running(node: Node) -> None:
        if node.state is not State.RUNNING:
            raise RuntimeError(f"node {node.id} ({node.label}) is {node.state.value}, not running")


def _reason(failed: Node) -> tuple[BaseException, Node]:
    """Error and origin of a failure, for the nodes that are poisoned by it."""
    assert failed.error is not None
    return failed.error, failed.poisoned_by or failed
