"""The graph of tasks: dependencies, readiness, failures, and nodes that can be dropped; no processes.

What a task waits for follows from the bytes that it reads: of every run and storage, the graph knows which task writes
which interval of bytes. Two views whose intervals meet are then compared exactly, so that columns and tiles of one
matrix do not wait for each other.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

#: Solutions that NumPy looks at before a question about two views is given up; views of one layout need a handful.
_EFFORT = 512

#: Writes of nodes that have completed, of one run and one storage, that are still found.
MAX_COMPLETED = 64


class Tag(enum.Enum):
    """What a task does to a tensor.

    ``INPUT`` and ``INOUT`` wait for earlier writers; ``INOUT``, ``OUTPUT`` and ``OUTPUT_EXISTING`` make the task the
    one that later readers wait for. An ``OUTPUT`` is overwritten as it is, without waiting. ``NO_DEP`` takes
    no part in dependencies.
    """

    INPUT = "input"
    OUTPUT = "output"
    INOUT = "inout"
    OUTPUT_EXISTING = "output_existing"
    NO_DEP = "no_dep"

    @property
    def reads(self) -> bool:
        """Whether earlier writers must be done first."""
        return self in (Tag.INPUT, Tag.INOUT)

    @property
    def writes(self) -> bool:
        """Whether later readers wait for the task."""
        return self in (Tag.INOUT, Tag.OUTPUT, Tag.OUTPUT_EXISTING)


# Bytes


class Layout(NamedTuple):
    """The layout of a view, relative to its first byte; all numbers in bytes.

    Attributes:
        nbytes: from the first byte to the last one; 0 without items.
        solid: whether all of these are touched.
        pitch: the widest stride of a view with gaps, else 0.
        inner: bytes from the first to the last one at one step of the pitch.
        tile: whether the view is all of ``inner`` at each step of the pitch, as columns and tiles of a matrix are.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    nbytes: int
    solid: bool
    pitch: int
    inner: int
    tile: bool


@lru_cache(maxsize=1024)  # very many views, the rows of a matrix say, have one layout
def _layout(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Layout:
    if len(shape) != len(strides) or itemsize < 1 or min((*shape, *strides), default=0) < 0:
        raise ValueError(f"no view has negative numbers or empty items: {shape}, {strides}, {itemsize}")
    nbytes, solid = itemsize, True
    pitch, inner, inner_solid = 0, itemsize, True
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride:
            pitch, inner, inner_solid = stride, nbytes, solid
            solid = solid and stride <= nbytes
            nbytes += stride * (size - 1)
    if 0 in shape:
        nbytes, solid = 0, True
    if solid:
        pitch, inner = 0, nbytes
    return Layout(shape, strides, itemsize, nbytes, solid, pitch, inner, inner_solid and inner <= pitch)


class Footprint:
    """The bytes of the storage ``backing`` that a view touches; ``offset``, ``strides``, ``itemsize`` in bytes."""

    __slots__ = ("backing", "layout", "offset", "stop")

    def __init__(
        self, backing: Hashable, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> None:
        if offset < 0:
            raise ValueError(f"no view has negative numbers: it begins at {offset}")
        self.backing = backing
        self.offset = offset
        self.layout = _layout(shape, strides, itemsize)
        #: One past the last byte.
        self.stop = offset + self.layout.nbytes

    @property
    def empty(self) -> bool:
        return not self.layout.nbytes

    def overlaps(self, other: Footprint) -> bool:
        """Whether both touch a common byte; also true if that is too costly to decide."""
        if self.backing != other.backing or self.empty or other.empty:
            return False
        if self.stop <= other.offset or other.stop <= self.offset:
            return False
        if (self.layout.solid and self.offset <= other.offset) or (other.layout.solid and other.offset <= self.offset):
            return True
        boxes = self._boxes(other)
        if boxes is not None:
            (top, bottom, left, right), (its_top, its_bottom, its_left, its_right) = boxes
            return top <= its_bottom and its_top <= bottom and left <= its_right and its_left <= right
        import numpy as np

        try:
            effort: Any = _EFFORT  # NumPy's stubs know two special values only
            return np.shares_memory(self._array(), other._array(), max_work=effort)
        except np.exceptions.TooHardError:
            return True

    def covers(self, other: Footprint) -> bool:
        if self.backing != other.backing:
            return False
        if other.empty:
            return True
        if other.offset < self.offset or self.stop < other.stop:
            return False
        boxes = self._boxes(other)
        if self.layout.solid or boxes is None:
            return self.layout.solid or (self.offset, self.layout) == (other.offset, other.layout)
        (top, bottom, left, right), (its_top, its_bottom, its_left, its_right) = boxes
        return top <= its_top and its_bottom <= bottom and left <= its_left and its_right <= right

    def _boxes(self, other: Footprint) -> tuple[_Box, _Box] | None:
        pitch = self.layout.pitch or other.layout.pitch
        if not pitch:
            return None
        origin = self.offset % pitch
        if not self._is_box(pitch, origin) or not other._is_box(pitch, origin):
            return None
        return _box(self, pitch, origin), _box(other, pitch, origin)

    def _is_box(self, pitch: int, origin: int) -> bool:
        at, own = (self.offset - origin) % pitch, self.layout
        return at + own.inner <= pitch and ((own.tile and own.pitch == pitch) or own.solid)

    def _array(self) -> Any:
        import numpy as np

        shape, strides, itemsize = self.layout[:3]
        data = (2**40 + self.offset, True)
        interface = {"version": 3, "shape": shape, "strides": strides, "typestr": f"|V{itemsize}", "data": data}
        return np.asarray(SimpleNamespace(__array_interface__=interface))


#: Of a copy that nothing else sees, for instance.
NO_BYTES = Footprint("", 0, (0,), (1,), 1)

Accesses = Iterable[tuple[Footprint, Tag]]

# Nodes


class State(enum.Enum):
    """The state of a node. Unstarted ones may become ``FAILED`` directly; ``CONSUMED`` once nothing holds it."""

    PENDING = "pending"
    READY = "ready"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CONSUMED = "consumed"


UNSTARTED = frozenset({State.PENDING, State.READY})
UNSETTLED = UNSTARTED | {State.RUNNING}


@dataclass(eq=False, slots=True)
class GraphNode:
    """One task, or one group of tasks. Only its graph changes anything but ``payload``.

    The garbage collector walks every container of every node that is alive, time and again: what is empty is none.
    """

    id: int
    run: Any
    label: str = ""
    state: State = State.PENDING
    #: Producers that are not done.
    fan_in: int = 0
    #: Nodes held until this one has settled, and nodes that hold this one: an ordered set, or ``None``.
    producers: tuple[GraphNode, ...] = field(default=(), repr=False)
    #: With whether the consumer fails if this node does: one of another run does not.
    consumers: dict[GraphNode, bool] | None = field(default=None, repr=False)
    #: Holds on it: of its scope, of itself until it has settled, of every consumer.
    holds: int = 2
    in_scope: bool = True
    error: BaseException | None = None
    #: The node whose failure is the reason for this one's; None if it has failed itself.
    poisoned_by: GraphNode | None = field(default=None, repr=False)
    payload: Any = field(default=None, repr=False)
    #: Those of its writes that are still found; all its accesses until it has settled.
    writes: tuple[_Access, ...] = field(default=(), repr=False)
    accesses: tuple[_Access, ...] = field(default=(), repr=False)

    @property
    def failed(self) -> bool:
        return self.error is not None


@dataclass(eq=False, slots=True)
class _Access:
    node: GraphNode
    footprint: Footprint
    writes: bool = True


#: Pitch of a grid, and the binary logarithms of the height and the width of its cells.
_Grid = tuple[int, int, int]

#: First and last row, first and last column.
_Box = tuple[int, int, int, int]


class _StorageAccesses:
    """The reads of one storage in one run, or the writes to it, found by their intervals of bytes.

    A view with gaps, such as a column or a tile, is an interval of rows and one of columns of a grid, whose pitch is
    its widest stride; any other view is an interval of columns in a grid of one row. Intervals of about one length, up
    to ``2**level``, are in cells of that length by where they begin: one that meets a given interval begins in a cell
    that this interval meets, or in the one before.
    """

    def __init__(self) -> None:
        self.grids: dict[_Grid, dict[tuple[int, int], dict[_Access, None]]] = {}
        #: Those whose nodes have completed, and some that are not here any more, the oldest one first.
        self.done: deque[_Access] = deque()

    def add(self, write: _Access) -> None:
        grid, cell = _cell_in_grid(write.footprint)
        self.grids.setdefault(grid, {}).setdefault(cell, {})[write] = None

    def remove(self, write: _Access) -> None:
        grid, cell = _cell_in_grid(write.footprint)
        cells = self.grids[grid]
        del cells[cell][write]
        if not cells[cell]:
            del cells[cell]
            if not cells:
                del self.grids[grid]

    def meeting(self, wanted: Footprint) -> Iterator[_Access]:
        for (pitch, height, width), cells in self.grids.items():
            top, bottom, left, right = _box(wanted, pitch)
            rows = range((top - (1 << height) + 1) >> height, (bottom >> height) + 1)
            columns = range((left - (1 << width) + 1) >> width, (right >> width) + 1)
            few = len(rows) * len(columns) <= len(cells)
            near: Iterable[tuple[int, int]] = itertools.product(rows, columns) if few else cells
            for cell in near:
                for write in cells.get(cell, ()):
                    if write.footprint.overlaps(wanted):
                        yield write


def _cell_in_grid(footprint: Footprint) -> tuple[_Grid, tuple[int, int]]:
    pitch, inner = footprint.layout.pitch, footprint.layout.inner
    if footprint.offset % (pitch or 1) + inner > pitch:
        pitch = 0
    top, bottom, left, right = _box(footprint, pitch)
    height, width = (bottom - top).bit_length(), (right - left).bit_length()
    return (pitch, height, width), (top >> height, left >> width)


def _box(footprint: Footprint, pitch: int, origin: int = 0) -> _Box:
    if not pitch:
        return 0, 0, footprint.offset, footprint.stop - 1
    top, left = divmod(footprint.offset - origin, pitch)
    bottom, right = divmod(footprint.stop - 1 - origin, pitch)
    own = footprint.layout
    if own.pitch == pitch and left + own.inner <= pitch:
        return top, bottom, left, left + own.inner - 1
    return (top, bottom, left, right) if top == bottom else (top, bottom, 0, pitch - 1)


class Accessors:
    """Nodes that access bytes, by storage and run."""

    def __init__(self) -> None:
        self._storages: dict[Hashable, dict[Hashable, _StorageAccesses]] = {}

    def __len__(self) -> int:
        runs = [accesses for runs in self._storages.values() for accesses in runs.values()]
        return sum(len(cell) for accesses in runs for cells in accesses.grids.values() for cell in cells.values())

    def meeting(self, run: Hashable, footprint: Footprint) -> dict[GraphNode, None]:
        return {access.node: None for access in self._overlapping(run, footprint)}

    def _overlapping(self, run: Hashable, footprint: Footprint) -> list[_Access]:
        accesses = self._storages.get(footprint.backing, {}).get(run)
        return [] if accesses is None or footprint.empty else list(accesses.meeting(footprint))

    def _insert(self, access: _Access, run: Hashable) -> None:
        runs = self._storages.setdefault(access.footprint.backing, {})
        if run not in runs:
            runs[run] = _StorageAccesses()
        runs[run].add(access)

    def _remove(self, access: _Access) -> None:
        backing, run = access.footprint.backing, access.node.run
        runs = self._storages.get(backing, {})
        if run in runs:  # it has not ended
            runs[run].remove(access)
            if not runs[run].grids:
                self._drop(backing, run)

    def _drop(self, backing: Hashable, run: Hashable) -> None:
        del self._storages[backing][run]
        if not self._storages[backing]:
            del self._storages[backing]


class Unsettled(Accessors):
    """All accesses of nodes that have not ended: what other runs have to wait for."""

    def conflicting(self, run: Hashable, footprint: Footprint, writes: bool) -> Iterator[GraphNode]:
        """Nodes of other runs that access common bytes, if one of both writes."""
        runs = self._storages.get(footprint.backing, {})
        if len(runs) > (run in runs) and not footprint.empty:
            for other, accesses in runs.items():
                if other is not run:
                    yield from (it.node for it in accesses.meeting(footprint) if it.writes or writes)

    def add(self, run: Hashable, footprint: Footprint, node: GraphNode, writes: bool) -> None:
        if not footprint.empty:
            access = _Access(node, footprint, writes)
            self._insert(access, run)
            node.accesses += (access,)

    def settled(self, node: GraphNode) -> None:
        for access in node.accesses:
            self._remove(access)
        node.accesses = ()


class Writers(Accessors):
    """Nodes that write, until nothing could read what they have written."""

    def add(self, run: Hashable, footprint: Footprint, node: GraphNode) -> None:
        """Add a write; forget writes that it covers completely.

        Of one that has failed, what is not covered stays, where both are intervals.
        """
        if footprint.empty:
            return
        for old in self._overlapping(run, footprint):
            covered = footprint.covers(old.footprint)
            intervals = footprint.layout.solid and old.footprint.layout.solid
            removed = covered or (old.node.failed and intervals)
            if removed:
                self._remove(old)
            if removed and not covered:
                for start, stop in ((old.footprint.offset, footprint.offset), (footprint.stop, old.footprint.stop)):
                    if start < stop:
                        rest = Footprint(footprint.backing, start, (stop - start,), (1,), 1)
                        self._insert(_Access(old.node, rest), run)
        self._insert(_Access(node, footprint), run)

    def _insert(self, write: _Access, run: Hashable) -> None:
        super()._insert(write, run)
        write.node.writes += (write,)

    def _remove(self, write: _Access) -> None:
        super()._remove(write)
        write.node.writes = tuple([other for other in write.node.writes if other is not write])

    def completed(self, node: GraphNode) -> None:
        """A node is done: nothing waits for its writes any more. A reader that comes soon still finds, and holds, it.

        Of completed writes, the newest ones stay. However many tasks a run has had, a reader of all of a storage then
        meets those that are not done, and a bounded number of others.
        """
        for write in node.writes:
            writes = self._storages[write.footprint.backing][node.run]
            writes.done.append(write)
            if len(writes.done) > MAX_COMPLETED:
                oldest = writes.done.popleft()
                if oldest in oldest.node.writes:
                    self._remove(oldest)

    def forget(self, node: GraphNode) -> None:
        """Remove the remaining writes of a node, but not the newer writes over them."""
        for write in node.writes:
            self._remove(write)

    def end(self, run: Hashable) -> None:
        """Forget a run, all of whose nodes have ended: only writes of failed ones are left."""
        for backing in [backing for backing, runs in self._storages.items() if run in runs]:
            self._drop(backing, run)


Report = Callable[[GraphNode], None]


class Graph:
    """The nodes of all runs of one dispatcher. It takes no lock: callers hold the dispatcher's.

    ``on_ready`` is called once for every node that becomes ready, ``on_settled`` once for every node that completes or
    fails (not for nodes added as completed), ``on_consumed`` once for every node that nothing holds any more,
    in this order for one node. They are called when the change is over, and do not change the graph.
    """

    def __init__(self, on_ready: Report, on_settled: Report, on_consumed: Report) -> None:
        self._on_ready = on_ready
        self._on_settled = on_settled
        self._on_consumed = on_consumed
        self._ids = itertools.count()
        self._changes: deque[tuple[Report, GraphNode]] = deque()
        self.writers = Writers()
        self.unsettled = Unsettled()
        #: Nodes that are not consumed.
        self.live = 0

    def add(
        self, payload: Any, run: Hashable, accesses: Accesses, after: Sequence[GraphNode] = (), label: str = ""
    ) -> GraphNode:
        """Add a node that waits for ``after``, of any run, and for the writers of what it reads, of the same run.

        It is ready at once if all of them are done, and failed at once if one of them has failed. With nodes of other
        runs it shares no fate, but the order: it waits for those that access the same bytes, if one of both writes.
        """
        accesses = [access for access in accesses if not access[0].empty]
        wanted = dict.fromkeys(after, True)
        for footprint, tag in accesses:
            if tag.reads:
                wanted.update(dict.fromkeys(self.writers.meeting(run, footprint), True))
        for footprint, tag in accesses:
            if tag is not Tag.NO_DEP:
                for other in self.unsettled.conflicting(run, footprint, tag.writes):
                    wanted.setdefault(other, False)
        node = GraphNode(next(self._ids), run, label, payload=payload)
        self.live += 1
        # Even a failed node is the writer of its outputs: nodes that read them must fail as well.
        for footprint, tag in accesses:
            if tag.writes:
                self.writers.add(run, footprint, node)
        bad = next((producer for producer in wanted if producer.failed), None)
        if bad is not None:
            assert bad.error is not None
            self._fail(node, bad.error, bad.poisoned_by or bad)
        else:
            node.producers = tuple([producer for producer in wanted if producer.state is not State.CONSUMED])
            for producer in node.producers:
                if producer.consumers is None:
                    producer.consumers = {}
                producer.consumers[node] = wanted[producer]
                producer.holds += 1
                node.fan_in += producer.state is not State.COMPLETED
            if not node.fan_in:
                self._make_ready(node)
            for footprint, tag in accesses:
                if tag is not Tag.NO_DEP:
                    self.unsettled.add(run, footprint, node, tag.writes)
        self._report()
        return node

    def add_memory(self, payload: Any, run: Hashable) -> GraphNode:
        """Add a node that stands for memory. It stays until its scope has ended, and all nodes ``after`` it have."""
        self.live += 1
        return GraphNode(next(self._ids), run, "memory", State.COMPLETED, payload=payload, holds=1)

    def claim(self, node: GraphNode) -> bool:
        """Take a ready node to run it. False when it has been taken, or cancelled."""
        if node.state is not State.READY:
            return False
        node.state = State.RUNNING
        return True

    def complete(self, node: GraphNode) -> None:
        """A running node is done; nodes that waited for nothing else become ready."""
        assert node.state is State.RUNNING
        node.state = State.COMPLETED
        self._changes.append((self._on_settled, node))
        self.writers.completed(node)
        for consumer in node.consumers or ():
            self._lacks_one_less(consumer)
        self._release(node)
        self._report()

    def fail(self, node: GraphNode, error: BaseException) -> None:
        """A running node has failed, and with it every node that waits for it, directly or not."""
        assert node.state is State.RUNNING
        self._fail(node, error)
        self._report()

    def cancel(self, node: GraphNode, error: BaseException) -> bool:
        """Fail a node that has not started. False, and nothing is changed, if it has."""
        if node.state not in UNSTARTED:
            return False
        self._fail(node, error)
        self._report()
        return True

    def release_scope(self, node: GraphNode) -> None:
        """The scope that the node was added in has ended; further calls do nothing."""
        if node.in_scope:
            node.in_scope = False
            self._drop(node)
            self._report()

    def end_run(self, run: Hashable) -> None:
        """Forget the writers of a run, all of whose nodes are consumed."""
        self.writers.end(run)

    def _lacks_one_less(self, node: GraphNode) -> None:
        node.fan_in -= 1
        if not node.fan_in:
            self._make_ready(node)

    def _make_ready(self, node: GraphNode) -> None:
        node.state = State.READY
        self._changes.append((self._on_ready, node))

    def _fail(self, node: GraphNode, error: BaseException, root: GraphNode | None = None) -> None:
        doomed = deque([node])
        node.poisoned_by = root
        while doomed:
            node = doomed.popleft()
            node.state = State.FAILED
            node.error = error
            self._changes.append((self._on_settled, node))
            for consumer, shares_fate in (node.consumers or {}).items():
                if consumer.state is State.FAILED:  # of two failed producers, the first is the reason
                    continue
                if not shares_fate:
                    self._lacks_one_less(consumer)
                else:
                    consumer.state = State.FAILED
                    consumer.poisoned_by = root or node
                    doomed.append(consumer)
            root = root or node
            self._release(node)

    def _release(self, node: GraphNode) -> None:
        self.unsettled.settled(node)
        producers, node.producers = node.producers, ()
        for producer in producers:
            assert producer.consumers is not None
            del producer.consumers[node]
            if not producer.consumers:
                producer.consumers = None
            self._drop(producer)
        self._drop(node)

    def _drop(self, node: GraphNode) -> None:
        node.holds -= 1
        if not node.holds:
            node.state = State.CONSUMED
            self.live -= 1
            if node.error is None:  # bytes whose writer has failed stay marked until they are overwritten
                self.writers.forget(node)
            self._changes.append((self._on_consumed, node))

    def _report(self) -> None:
        while self._changes:
            report, node = self._changes.popleft()
            report(node)


class HazardWarning(UserWarning):
    """Two tasks access the same bytes in an order that nothing fixes, or a task has written one of its inputs."""


class Hazards:
    """Finds unordered accesses in one run; guarded by the dispatcher's lock."""

    def __init__(self) -> None:
        #: Accesses of the tasks that have not ended.
        self._open: list[tuple[GraphNode, Footprint, Tag]] = []
        self._hazards: list[str] = []

    def submitted(self, node: GraphNode, accesses: Sequence[tuple[Footprint, Tag]]) -> None:
        """Warn of earlier tasks that a new one does not wait for, although it writes bytes that they access."""
        self._open = [entry for entry in self._open if entry[0].state in UNSETTLED]
        before = _ancestors(node)
        for footprint, tag in accesses:
            for other, theirs, its in self._open if tag.writes else ():
                if other not in before and theirs.overlaps(footprint):
                    self._hazards.append(
                        f"{node.label} (task {node.id}) writes bytes that {other.label} (task {other.id})"
                        f" {'writes' if its.writes else 'reads'}, and nothing orders them: give it other memory, or"
                        " after=[that task]"
                    )
        self._open += [(node, *access) for access in accesses if access[1] is not Tag.NO_DEP]

    def changed(self, node: GraphNode, number: int) -> None:
        self._hazards.append(
            f"tensor {number} of {node.label} (task {node.id}), an INPUT, has changed while it ran: it wrote it (tag it"
            " INOUT), or a task that nothing orders did"
        )

    def take(self) -> list[str]:
        hazards, self._hazards = self._hazards, []
        return hazards


def _ancestors(node: GraphNode) -> set[GraphNode]:
    ancestors: set[GraphNode] = set()
    left = deque(node.producers)
    while left:
        producer = left.popleft()
        if producer not in ancestors:
            ancestors.add(producer)
            left.extend(producer.producers)
    return ancestors
