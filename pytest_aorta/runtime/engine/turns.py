"""Turns: what is changed in an engine is changed under its lock, and followed up before the lock is given back."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from pytest_aorta.runtime.engine.sigint import INTERRUPTS

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.engine import Engine


class Turn:
    """See ``Engine.turn``. One object serves for all turns, because there are very many."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._deferred: list[Callable[[], None]] = []
        self._depth = 0

    def defer(self, call: Callable[[], None]) -> None:
        """Call when the outermost turn is over, without the lock."""
        self._deferred.append(call)

    def __enter__(self) -> None:
        INTERRUPTS.hold()
        self._engine.mutex.acquire()
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deferred: list[Callable[[], None]] = []
        try:
            try:
                if kind is None and self._depth == 1:
                    self._engine.start_all()
            finally:
                self._depth -= 1
                if self._deferred and not self._depth:
                    deferred, self._deferred = self._deferred, deferred
                self._engine.mutex.release()
            for call in deferred:
                try:
                    call()
                except Exception:
                    traceback.print_exc()  # whoever made this turn has nothing to do with it
        finally:
            INTERRUPTS.release()
