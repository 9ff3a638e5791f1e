"""The ring of a run: a fixed number of slots for tasks that have not ended, so that a submission can wait for one."""

from __future__ import annotations

import threading


class RingFull(RuntimeError):
    """All slots of a run's ring are taken by tasks that have not ended."""


class TaskRing:
    """Guarded by the dispatcher's lock.

    Every run has its own: if two shared one, the later one could fill it with tasks that cannot start before the
    earlier one has ended.

    Args:
        size: the most tasks that have not ended; ``None`` for any number.
    """

    def __init__(self, size: int | None) -> None:
        self.size = size
        #: Tasks that have not ended.
        self.taken = 0
        #: Set once the number has fallen so low that it is worth to wake a submitter.
        self.room: threading.Event | None = None
        self._low_water = 0 if size is None else size - max(1, size // 8)

    @property
    def full(self) -> bool:
        """Whether no further task may be submitted now."""
        return self.size is not None and self.taken >= self.size

    def take(self) -> None:
        """Take a slot for a task; raises ``RingFull``."""
        if self.size is not None and self.taken >= self.size:
            raise RingFull(
                f"the ring is full: {self.taken} tasks of this run have not ended; submit fewer at a time, or raise"
                " ring_size or ring_timeout of the worker"
            )
        self.taken += 1

    def give_back(self) -> bool:
        """The task has ended; whether an event was set that a submitter waits for."""
        self.taken -= 1
        if self.room is None or self.taken > self._low_water:
            return False
        self.room.set()
        self.room = None
        return True

    def awaited(self) -> threading.Event:
        """The event of which ``give_back`` speaks; slots may be free long before."""
        self.room = self.room or threading.Event()
        return self.room
