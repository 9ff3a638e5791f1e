"""Messages as bytes, to be sent in pieces: a big one on a slow line must not hold up the signs of life beside it."""

from __future__ import annotations

import struct
from typing import Any

import execnet

#: Bytes of one piece. A line that needs more than a second for it is of no use anyway.
PIECE = 256 * 1024


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
    """The reverse of :func:`encode`."""
    return execnet.loads(data)
