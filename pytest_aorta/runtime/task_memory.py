"""Memory that comes with the submission of a task: outputs that it asks for, copies of what only this process sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_aorta.runtime.memory.tensor_bytes import share

if TYPE_CHECKING:
    import torch

    from pytest_aorta.runtime.graph.nodes import Node
    from pytest_aorta.runtime.memory.heap import Heap
    from pytest_aorta.runtime.memory.rings import Slab


class TaskMemory:
    """Of one submission.

    Attributes:
        outputs: what was allocated, in order.
        output_nodes: the memory of these; it belongs to the scope of the task.
        copy_nodes: the memory of copies; it is needed until the task has ended, and no longer.

    Args:
        heap: where the memory comes from.
        keep: gives the node of new memory.
        depth: of the scope.
    """

    def __init__(self, heap: Heap, keep: Callable[[torch.Tensor, Slab], Node], depth: int) -> None:
        self.outputs: list[torch.Tensor] = []
        self.output_nodes: list[Node] = []
        self.copy_nodes: list[Node] = []
        self._heap = heap
        self._keep = keep
        self._depth = depth
        self._copies: dict[int, torch.Tensor] = {}

    def output(self, blank: torch.Tensor) -> torch.Tensor:
        """A tensor with the shape and the type of another one."""
        tensor, slab = self._heap.allocate(tuple(blank.shape), blank.dtype, self._depth)
        self.output_nodes.append(self._keep(tensor, slab))
        self.outputs.append(tensor)
        return tensor

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in shared memory, made once per submission, however many members are given the tensor."""
        if id(tensor) not in self._copies:
            found = self._heap.copy(tensor)
            if found is None:
                made = share(tensor)  # a file of its own, which a process cannot have many of
            else:
                made, slab = found
                self.copy_nodes.append(self._keep(made, slab))
            self._copies[id(tensor)] = made
        return self._copies[id(tensor)]
