"""A pool of jobs: a queue, and one thread for each slot that has something to do."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_aorta.launch.host.service import TrialHost


@dataclass(frozen=True)
class Slot:
    """A place of a host where one job runs at a time; ``index`` is its number on that host."""

    host: TrialHost
    index: int
    name: str


class Job(ABC):
    """One thread runs it, any may cancel it.

    Attributes:
        host: which host has to run it, as the number of that host; ``None`` for any.
    """

    host: int | None = None

    def __init__(self) -> None:
        self._cancelling = threading.Lock()
        #: Why it was cancelled, if it was.
        self.why: str | None = None
        self._callbacks: list[Callable[[str], object]] = []

    @abstractmethod
    def run(self, slot: Slot) -> None:
        """Do it. Must not raise."""

    @abstractmethod
    def give_up(self, error: Exception | None = None) -> None:
        """It will not run: it was cancelled before it began, or no host is left, which ``error`` says."""

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.why is not None

    def on_cancel(self, callback: Callable[[str], object]) -> None:
        """Call with the reason, on any thread, once it is cancelled; at once, if it was already."""
        with self._cancelling:
            self._callbacks.append(callback)
            why = self.why
        if why is not None:
            callback(why)

    def cancel(self, why: str) -> None:
        """Call what was registered with ``on_cancel``; once."""
        with self._cancelling:
            if self.why is not None:
                return
            self.why = why
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback(why)


class JobPool:
    """Runs jobs in the order in which they come; urgent ones first. Thread-safe.

    A thread lives as long as its slot has something to do: while nothing runs, there is none that a fork could miss.
    """

    def __init__(self, hosts: Sequence[Sequence[Slot]]) -> None:
        self._changed = threading.Condition()
        self._free = [(number, slot) for number, slots in enumerate(hosts) for slot in slots]
        self._order = {slot: position for position, (_, slot) in enumerate(self._free)}
        self._dead: dict[int, Exception] = {}
        self._hosts = len(hosts)
        self._urgent: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._running: dict[Slot, Job] = {}
        self._closed = False

    def submit(self, job: Job, *, urgent: bool = False) -> None:
        """Have a job run as soon as there is a slot."""
        with self._changed:
            if not self._closed:
                (self._urgent if urgent else self._waiting).append(job)
                self._start_threads()
        if self._closed:
            job.give_up()
        self._give_up_unrunnable()

    def _start_threads(self) -> None:
        for number, slot in list(self._free):
            job = self._next(number)
            if job is not None:
                self._free.remove((number, slot))
                self._running[slot] = job
                name = f"aorta-{slot.name.replace(' ', '-')}"
                threading.Thread(target=self._work, args=(number, slot, job), name=name, daemon=True).start()

    def _next(self, host: int) -> Job | None:
        if host in self._dead:
            return None
        for queue in (self._urgent, self._waiting):
            for job in queue:
                if job.host in (None, host):
                    queue.remove(job)
                    return job
        return None

    def _work(self, number: int, slot: Slot, job: Job | None) -> None:
        while job is not None:
            job.run(slot)
            with self._changed:
                job = self._next(number)
                if job is not None:
                    self._running[slot] = job
                else:
                    del self._running[slot]
                    self._free.append((number, slot))
                    self._free.sort(key=lambda it: self._order[it[1]])
                    self._changed.notify_all()

    def cancel(self, job: Job, why: str) -> None:
        """End a job, wherever it is."""
        with self._changed:
            waited = any(job in queue for queue in (self._urgent, self._waiting))
            for queue in (self._urgent, self._waiting):
                if job in queue:
                    queue.remove(job)
        job.cancel(why)
        if waited:
            job.give_up()

    def lose_host(self, number: int, error: Exception) -> None:
        """Start nothing more on this host."""
        with self._changed:
            self._dead.setdefault(number, error)
        self._give_up_unrunnable()

    def _give_up_unrunnable(self) -> None:
        if not self._dead:  # the usual case, asked at every submission
            return
        with self._changed:
            lost = [
                job
                for queue in (self._urgent, self._waiting)
                for job in queue
                if job.host in self._dead or len(self._dead) == self._hosts
            ]
            for job in lost:
                (self._urgent if job in self._urgent else self._waiting).remove(job)
            error = next(iter(self._dead.values()), None)
        for job in lost:
            job.give_up(error)

    def close(self, patience: float) -> bool:
        """Cancel everything; whether all that ran has ended within ``patience`` seconds."""
        with self._changed:
            self._closed = True
            waiting = [*self._urgent, *self._waiting]
            self._urgent.clear()
            self._waiting.clear()
            running = list(self._running.values())
        for job in (*running, *waiting):
            job.cancel("the run has ended")
        for job in waiting:
            job.give_up()
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, patience)
