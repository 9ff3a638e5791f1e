"""Allocation of shared memory in rings. Only offsets are kept here; the memory itself is in ``heap``."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

#: Bytes of a ring that keep their pages although they are released.
MAX_STALE = 2**26


@dataclass(frozen=True, eq=False)
class Slab:
    """``nbytes`` bytes from ``offset`` of a ring. Two of them are never equal, also when one follows the other."""

    ring: int
    offset: int
    nbytes: int


class HeapRings:
    """Rings of ``size_bytes`` each, handed out in order and taken back in order.

    A slab that is released before older ones is reclaimed when those are. Rings are independent, so that
    short-lived slabs of an inner scope do not wait for those of an outer one. Thread-safe; ``allocate`` may
    block, hence it must be called without any lock that ``release`` needs.

    ``discard`` is called with a ring, an offset and a number of bytes whose content is not needed any more, each time
    that these are many.
    """

    def __init__(
        self,
        size_bytes: int,
        rings: int = 4,
        align: int = 1024,
        patience: float = 10.0,
        discard: Callable[[int, int, int], None] = lambda ring, offset, nbytes: None,
    ) -> None:
        if size_bytes < align or rings < 1 or align < 1:
            raise ValueError(
                f"heap_ring_size must be at least {align} bytes, not {size_bytes}; rings, at least one, not {rings}"
            )
        if not patience >= 0:
            raise ValueError(f"patience must be a number of seconds from 0 on, not {patience}")
        self._align = align
        self._patience = patience
        self._discard = discard
        self._changed = threading.Condition()
        self._rings = [_Ring(size_bytes - size_bytes % align) for _ in range(rings)]
        self._waiting = 0
        self._closed = False

    @property
    def waiting(self) -> int:
        """Calls of ``allocate`` that are blocked at this moment."""
        return self._waiting

    def in_use(self, ring: int) -> int:
        """Bytes that cannot be allocated now: slabs, rounded up, and released ones behind older ones."""
        with self._changed:
            return self._ring(ring).in_use

    def allocate(self, ring: int, nbytes: int) -> Slab:
        """The next slab of a ring; waits while it is full.

        Raises:
            ValueError: more than the whole ring, or a negative number of bytes.
            RuntimeError: nothing has been released in time, or the rings are closed.
        """
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes")
        # A slab of no bytes takes room as well, so that no two slabs have one offset.
        rounded = max(1, -(-nbytes // self._align)) * self._align
        with self._changed:
            room = self._ring(ring)
            if rounded > room.size:
                raise ValueError(
                    f"{nbytes} bytes are more than a whole ring of {room.size}; raise heap_ring_size, or ask for less"
                )
            give_up = time.monotonic() + self._patience
            self._waiting += 1
            try:
                while True:
                    if self._closed:
                        raise RuntimeError("the heap rings are closed")
                    offset = room.take(rounded)
                    if offset is not None:
                        break
                    left = give_up - time.monotonic()
                    if left <= 0:
                        raise RuntimeError(
                            f"ring {ring} is full: waited {self._patience:g} s for {nbytes} bytes, but"
                            f" {room.size - room.in_use} of {room.size} are free and those not always in one piece;"
                            " raise heap_ring_size, or release older allocations with orch.scope()"
                        )
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
            finally:
                self._waiting -= 1
            slab = Slab(ring, offset, nbytes)
            room.live[slab] = room.newest
            return slab

    def release(self, slab: Slab) -> None:
        """Give a slab back; ``ValueError`` if that has been done, or if it is not from here."""
        with self._changed:
            part = self._ring(slab.ring).live.pop(slab, None)
            if part is None:
                raise ValueError(f"{slab} is not allocated")
            part.released = True
            for offset, nbytes in self._ring(slab.ring).reclaim():
                self._discard(slab.ring, offset, nbytes)
            self._changed.notify_all()

    def close(self) -> None:
        """Allocate nothing any more; calls that wait raise ``RuntimeError``."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _ring(self, index: int) -> _Ring:
        if not 0 <= index < len(self._rings):
            raise ValueError(f"there is no ring {index}; they are 0 to {len(self._rings) - 1}")
        return self._rings[index]


@dataclass(eq=False)
class _Part:
    """A piece of a ring that ends at the position ``stop``."""

    stop: int
    released: bool = False


class _Ring:
    """Positions grow for ever; position modulo size is the offset. What is in use lies between tail and head."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.live: dict[Slab, _Part] = {}
        self._parts: deque[_Part] = deque()
        self._head = 0
        self._tail = 0
        #: Up to this position, what was released has been discarded.
        self._clean = 0

    @property
    def in_use(self) -> int:
        return self._head - self._tail

    @property
    def newest(self) -> _Part:
        return self._parts[-1]

    def take(self, nbytes: int) -> int | None:
        """The offset of so many bytes, or None if there is no room for them."""
        start = self._head
        if start % self.size + nbytes > self.size:  # nothing straddles the end; what is left there goes with it
            start += self.size - start % self.size
        if start + nbytes - self._tail > self.size:
            return None
        self._head = start + nbytes
        self._parts.append(_Part(self._head))
        return start % self.size

    def reclaim(self) -> list[tuple[int, int]]:
        """Take back what is released; offsets and sizes of what was, since the last time, if that is much."""
        while self._parts and self._parts[0].released:
            self._tail = self._parts.popleft().stop
        stale = self._stale()
        if not self._parts:  # an empty ring has room for its whole size
            self._head = self._tail = self._clean = 0
        return stale

    def _stale(self) -> list[tuple[int, int]]:
        first = max(self._clean, self._head - self.size)  # before that, it is in use again
        # An empty ring begins anew, so that nothing would come back to what lies far from its beginning.
        high = not self._parts and self._tail > MAX_STALE
        if self._tail - first < MAX_STALE and not high:
            return []
        self._clean = self._tail
        offset, nbytes = first % self.size, self._tail - first
        until_end = min(nbytes, self.size - offset)
        return [(offset, until_end), (0, nbytes - until_end)]
