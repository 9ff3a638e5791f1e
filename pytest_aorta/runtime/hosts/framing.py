"""Messages in pieces, so that a big one on a slow line does not hold up the signs of life beside it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import execnet

Message = dict[str, Any]

#: Bytes of one piece. A line that needs more than a second for it is of no use anyway.
PIECE = 256 * 1024

_MORE, _LAST = b"+", b"."


def encode(value: object) -> bytes:
    """Plain data as bytes: str, int, float, bool, None, bytes, and lists, tuples and mappings of them.

    Raises:
        ValueError: it holds something else.
    """
    try:
        return execnet.dumps(value)
    except (execnet.DataFormatError, RecursionError, struct.error) as error:  # struct: an integer below -2**31
        raise ValueError(f"cannot be sent to another host: {error}") from error


def decode(data: bytes) -> Any:
    """What :func:`encode` has made bytes of."""
    return execnet.loads(data)


def pieces_of(data: bytes) -> Iterator[bytes]:
    """Cut."""
    for start in range(0, len(data), PIECE):
        last = start + PIECE >= len(data)
        yield (_LAST if last else _MORE) + data[start : start + PIECE]


class Joiner:
    """Puts pieces together again."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> Message | None:
        """The message that this piece completes."""
        self._pieces.append(piece[1:])
        if piece[:1] == _MORE:
            return None
        data = b"".join(self._pieces)
        self._pieces.clear()
        message: Message = decode(data)
        return message
