"""What the trials of a cell import that their zygote may import before them, as their first trial has shown."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class _Known:
    """Of one cell.

    Attributes:
        modules: to be imported in advance, in this order.
        complete: whether a trial has shown all that it imports.
        note: what is not among ``modules``, and why.
    """

    modules: tuple[str, ...] = ()
    complete: bool = False
    note: str | None = None


class Preloads:
    """Thread-safe; ``key`` is that of a cell's zygote."""

    def __init__(self) -> None:
        self._cells: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def known(self, key: str) -> _Known:
        """A copy of what is known of a cell."""
        with self._lock:
            it = self._cells.get(key, _Known())
            return _Known(it.modules, it.complete, it.note)

    def learn(self, key: str, before: Sequence[str], imported: Sequence[str], complete: bool, note: str | None) -> None:
        """Take in what a trial has imported that was forked after the import of ``before``."""
        with self._lock:
            it = self._cells.setdefault(key, _Known())
            if not it.complete and it.modules == tuple(before):
                it.modules += tuple(imported)
                it.complete, it.note = complete, note

    def refuse(self, key: str, modules: Sequence[str], culprit: str | None, why: str) -> tuple[str, ...]:
        """The import of ``modules`` in advance has failed at ``culprit``, if that is known; those before it."""
        with self._lock:
            it = self._cells.setdefault(key, _Known())
            if it.modules == tuple(modules):
                it.modules = it.modules[: it.modules.index(culprit)] if culprit in it.modules else ()
                it.complete, it.note = True, f"{culprit or ', '.join(modules)}: its import in advance {why}"
            return it.modules
