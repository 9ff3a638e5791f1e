"""What a worker with ``check=True`` warns of: accesses that nothing orders, and inputs that a task has written."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from pytest_aorta.runtime.graph import UNSTARTED, Footprint, Node, State, Tag

if TYPE_CHECKING:
    import torch


class HazardWarning(UserWarning):
    """Two tasks access the same bytes in an order that nothing fixes, or a task has written one of its inputs."""


class Hazards:
    """Of one run; guarded by the dispatcher's lock."""

    def __init__(self) -> None:
        #: Accesses of the tasks that have not ended.
        self._open: list[tuple[Node, Footprint, Tag]] = []
        self._found: list[str] = []

    def submitted(self, node: Node, accesses: Sequence[tuple[Footprint, Tag]]) -> None:
        """Look for earlier tasks that this one does not wait for, although it writes what they access."""
        self._open = [entry for entry in self._open if entry[0].state in UNSTARTED or entry[0].state is State.RUNNING]
        before = _ancestors(node)
        for footprint, tag in accesses:
            for other, theirs, its in self._open if tag.writes else ():
                if other not in before and theirs.overlaps(footprint):
                    self._found.append(
                        f"{node.label} (task {node.id}) writes bytes that {other.label} (task {other.id})"
                        f" {'writes' if its.writes else 'reads'}, and nothing orders them: give it other memory, or"
                        " after=[that task]"
                    )
        self._open += [(node, *access) for access in accesses if access[1] is not Tag.NO_DEP]

    def changed(self, node: Node, number: int) -> None:
        self._found.append(
            f"tensor {number} of {node.label} (task {node.id}), an INPUT, has changed while it ran: it wrote it (tag it"
            " INOUT), or a task that nothing orders did"
        )

    def take(self) -> list[str]:
        found, self._found = self._found, []
        return found


def _ancestors(node: Node) -> set[Node]:
    found: set[Node] = set()
    left = deque(node.producers)
    while left:
        producer = left.popleft()
        if producer not in found:
            found.add(producer)
            left.extend(producer.producers)
    return found


def digests(tensors: Sequence[torch.Tensor], written: Sequence[int]) -> dict[int, int]:
    """A number for the content of each tensor that a task only reads."""
    from pytest_aorta.runtime.tensors import to_bytes

    return {number: crc32(to_bytes(t)[3]) for number, t in enumerate(tensors) if number not in written}
