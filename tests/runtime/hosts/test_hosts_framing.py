"""Messages in pieces."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_aorta.runtime.channel import Joiner, cut
from pytest_aorta.runtime.hosts.framing import PIECE, decode, encode


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"text": "grüße", "int": -(2**31), "big": 2**80, "float": 1.5, "yes": True, "none": None, "bytes": b"\0\xff"},
        {"list": [1, [2, {"deep": b""}]]},
        {"body": b"x" * (3 * PIECE)},
        {"body": b"x" * (PIECE - len(encode({"body": b""})))},
    ],
)
def test_a_message_is_the_same_after_it_was_cut_and_joined(message: dict[str, Any]) -> None:
    joiner = Joiner()

    *begun, whole = (joiner.add(piece) for piece in cut(encode(message), PIECE))

    assert begun == [None] * len(begun)
    assert whole is not None
    assert decode(whole) == message


@pytest.mark.parametrize("value", [object(), -(2**40), "\udcff", print])
def test_what_cannot_be_sent_is_refused_before_anything_is(value: object) -> None:
    with pytest.raises(ValueError, match="cannot be sent to another host"):
        encode({"value": value})
