"""Messages that are larger than a packet: cut on one side, put together on the other."""

from __future__ import annotations

import math
from collections.abc import Iterator

#: First byte of a packet that others follow, and of the last one.
MORE, LAST = b"+", b"."


def cut(data: bytes, size: int) -> Iterator[bytes]:
    """Packets of ``size`` bytes of data and one more."""
    for start in range(0, len(data), size):
        last = start + size >= len(data)
        yield (LAST if last else MORE) + data[start : start + size]


class Joiner:
    """Puts packets together; a message may have ``limit`` bytes."""

    def __init__(self, limit: float = math.inf) -> None:
        self._limit = limit
        self._begun = bytearray()

    def add(self, packet: bytes) -> bytes | None:
        """The message that this packet completes; raises ``ValueError`` when it is too long."""
        self._begun += packet[1:]
        if len(self._begun) > self._limit:
            raise ValueError(f"a message of more than {self._limit} bytes")
        if packet[:1] == MORE:
            return None
        whole, self._begun = bytes(self._begun), bytearray()
        return whole
