"""One graph in several legal orders: values that depend on the order show a dependency that no tag declares.

A run with an ``Order`` starts one task at a time, in an order that its number decides: 0 as they were submitted, 1 the
last one first, the others at random. What each task finds and leaves is hashed where it runs.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.graph import Footprint, GraphNode, Tag
from pytest_aorta.runtime.tensors import slab_of, storage_id

if TYPE_CHECKING:
    import torch

#: Hashes of a task's tensors before and after it, and of its result.
Hashes = tuple[Sequence[str], Sequence[str], str]


@dataclass(eq=False)
class OrderedTask:
    """A task of a recorded run; ``before``: numbers of the tasks that it has to wait for, directly or not."""

    number: int
    label: str
    accesses: Sequence[tuple[Footprint, Tag]]
    before: frozenset[int]
    found: Sequence[str] = ()
    left: Sequence[str] = ()
    result: str = ""

    def __str__(self) -> str:
        return f"{self.label} (task {self.number})"

    def wrote(self, tensor: int) -> bool:
        """Whether it says so, or has done so."""
        return self.accesses[tensor][1].writes or self.found[tensor : tensor + 1] != self.left[tensor : tensor + 1]

    def outputs(self) -> dict[str, str]:
        """The hash of each tensor that it wrote, and of what it returned."""
        tensors = {f"tensor {n}": hashed for n, hashed in enumerate(self.left) if self.wrote(n)}
        return {**tensors, "result": self.result}


@dataclass(eq=False)
class Order:
    """The order of one run, and what became of it; guarded by the dispatcher's lock."""

    number: int
    tasks: list[OrderedTask] = field(default_factory=list)
    #: Numbers of the tasks as they were started.
    started: list[int] = field(default_factory=list)
    ready: list[GraphNode] = field(default_factory=list)
    running: GraphNode | None = None
    #: Whether tasks may start: the graph is complete, or somebody waits.
    is_open: bool = False
    #: Content of all memory before the first task named it, by the number of its storage; and after the last one.
    memory: dict[int, tuple[Any, bytes]] = field(default_factory=dict)
    final: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.number)
        self._numbers: dict[GraphNode, int] = {}

    # What a run reports (``Hazards``)

    def submitted(self, node: GraphNode, accesses: Sequence[tuple[Footprint, Tag]]) -> None:
        number = self._numbers[node] = len(self.tasks)
        if node.producers or self.running is not None or self.is_open:
            before = {self._numbers[it] for it in node.producers if it in self._numbers}
        else:
            before = set()
        # The builder has waited: what has been started by then comes first in every order.
        before.update(self.started)
        for earlier in tuple(before):
            before |= self.tasks[earlier].before
        self.tasks.append(OrderedTask(number, node.label, list(accesses), frozenset(before)))

    def changed(self, node: GraphNode, hashes: Hashes) -> None:
        task = self.tasks[self._numbers[node]]
        task.found, task.left, task.result = hashes

    def take(self) -> list[str]:
        return []

    # What starts

    def next(self) -> GraphNode | None:
        """The next task to start, if it is time."""
        if not self.is_open or self.running is not None or not self.ready:
            return None
        self.ready.sort(key=lambda node: self._numbers[node])
        at = {0: 0, 1: -1}.get(self.number, self._random.randrange(len(self.ready)))
        self.running = self.ready.pop(at)
        self.started.append(self._numbers[self.running])
        return self.running

    # Memory

    def remember(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep the content of the users' memory, so that the next order finds the same."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if slab_of(tensor) is None and storage.is_shared():
                number = storage_id(storage)
                if number not in self.memory:
                    self.memory[number] = storage, _content(storage)

    def end(self) -> None:
        self.final = {number: _content(storage) for number, (storage, _) in self.memory.items()}

    def restore(self, final: bool) -> None:
        """Give the memory the content that it had before the first task, or after the last one."""
        for number, (storage, before) in self.memory.items():
            _bytes_of(storage)[:] = self.final[number] if final else before


def _bytes_of(storage: Any) -> Any:
    import torch

    array: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return memoryview(array)


def _content(storage: Any) -> bytes:
    return bytes(_bytes_of(storage))


def compare(first: Order, other: Order) -> list[str]:
    """Sentences about tasks whose values differ in two orders: which ones, by which tensor, and the missing tag."""
    if [task.label for task in first.tasks] != [task.label for task in other.tasks]:
        return [
            f"order {other.number}: the graph itself depends on values: {len(other.tasks)} tasks are not those of 0"
        ]
    found: list[str] = []
    differing: set[int] = set()
    for here, there in zip(first.tasks, other.tasks, strict=True):
        ours, theirs = here.outputs(), there.outputs()
        if ours == theirs:
            continue
        if not differing & here.before:  # else it has its wrong value from another task
            what = ", ".join(name for name in ours if ours[name] != theirs.get(name))
            blame = _blame(first, other, here, there)
            if not any(blame in text for text in found):
                found.append(f"order {other.number}: {here} gives another {what}: {blame}")
        differing.add(here.number)
    for number, content in first.final.items() if not found else ():
        if other.final.get(number, content) != content:
            found.append(f"order {other.number}: memory ends with other values: {_last(first, other, number)}")
    return found


def _blame(first: Order, other: Order, here: OrderedTask, there: OrderedTask) -> str:
    for rival in first.tasks:
        if rival is here or rival.number in here.before or here.number in rival.before:
            continue
        if _comes_before(first, rival, here) == _comes_before(other, rival, here):
            continue
        for mine, theirs in _meeting(here, there, rival, other.tasks[rival.number]):
            return _sentence(rival, theirs, here, mine)
    return "nothing that it was given explains that: it uses memory, files or random numbers that no tag declares"


def _comes_before(order: Order, one: OrderedTask, another: OrderedTask) -> bool:
    return order.started.index(one.number) < order.started.index(another.number)


def _meeting(here: OrderedTask, there: OrderedTask, rival: OrderedTask, other: OrderedTask) -> list[tuple[int, int]]:
    """Pairs of tensors of two tasks with common bytes, which one of the two writes."""
    return [
        (mine, theirs)
        for mine, (footprint, _) in enumerate(here.accesses)
        for theirs, (its, _) in enumerate(rival.accesses)
        if footprint.overlaps(its)
        and (here.wrote(mine) or there.wrote(mine) or rival.wrote(theirs) or other.wrote(theirs))
    ]


def _last(first: Order, other: Order, storage: Hashable) -> str:
    backing = ("storage", storage)
    writers = [
        it for it in first.tasks if any(f.backing == backing and it.wrote(n) for n, (f, _) in enumerate(it.accesses))
    ]
    for later in reversed(writers):
        for earlier in writers:
            unordered = earlier is not later and not (
                {earlier.number} & later.before or {later.number} & earlier.before
            )
            if unordered and _comes_before(first, earlier, later) != _comes_before(other, earlier, later):
                for mine, theirs in _meeting(later, later, earlier, earlier):
                    return _sentence(earlier, theirs, later, mine)
    return "a task writes it that was not given it"


def _sentence(one: OrderedTask, its: int, another: OrderedTask, others: int) -> str:
    """``one`` was submitted, or blamed, as the one that the other has to be ordered with."""
    if another.number < one.number:
        (one, its), (another, others) = (another, others), (one, its)
    tags = one.accesses[its][1], another.accesses[others][1]
    what = [("writes" if task.wrote(n) else "reads") for task, n in ((one, its), (another, others))]
    text = f"{one} {what[0]} tensor {its} ({tags[0].name}), {another} {what[1]} the same bytes as tensor {others}"
    text += f" ({tags[1].name}), and nothing orders them; "
    for task, number, tag in ((one, its, tags[0]), (another, others, tags[1])):
        if task.wrote(number) and not tag.writes:
            return f"{text}tag tensor {number} of {task} INOUT: it writes it"
        if tag is Tag.NO_DEP:
            return f"{text}tag tensor {number} of {task} INPUT"
    if what[0] == "reads":
        return f"{text}tag both tensors INOUT, or give {another} after=[{one.label}]"
    return f"{text}tag tensor {others} of {another} INOUT"
