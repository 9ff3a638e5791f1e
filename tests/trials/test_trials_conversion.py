"""Whatever a workload returns becomes plain data, and plain data becomes strict JSON and comes back."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
from collections import OrderedDict, UserDict, deque
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from pytest_aorta.trials.records import decode_non_finite, encode_non_finite
from pytest_aorta.trials.workload import to_plain


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: float
    inner: Any = None


class Model(BaseModel):
    steps: int
    lr: float


class ReprRaises:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class ReprExits:
    def __repr__(self) -> str:
        raise SystemExit(3)


class EverythingRaises:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise ValueError


class Verbose:
    def __repr__(self) -> str:
        return "x" * 100_000


class IterationRaises(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise OSError("disk on fire")

    def __repr__(self) -> str:
        return "<a bad list>"


def _kind(value: object) -> str:
    """An id that is the same in every process, as xdist needs it; the repr of a set or an object is not."""
    return type(value).__name__


def test_values_keep_their_meaning() -> None:
    cases: list[tuple[object, object]] = [
        (None, None),
        (True, True),
        (3, 3),
        (2**1000, 2**1000),
        (0.5, 0.5),
        ("x" * 100_000, "x" * 100_000),
        ((1, 2), [1, 2]),
        (range(3), [0, 1, 2]),
        (deque([1, "a"]), [1, "a"]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (b"bytes", "bytes"),
        (b"\xff", "\\xff"),
        (Path("/a/b"), "/a/b"),
        (PurePosixPath("c"), "c"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc), "2024-01-02T03:04:05+00:00"),
        (Color.RED, "red"),
        (Level.HIGH, 3),
        (Point(1.0, Point(2.0)), {"x": 1.0, "inner": {"x": 2.0, "inner": None}}),
        (Model(steps=3, lr=0.1), {"steps": 3, "lr": 0.1}),
        (OrderedDict(a=1), {"a": 1}),
        (UserDict({"a": 1}), {"a": 1}),
        ({1: "a", None: "b", (2, 3): "c", Color.RED: "d"}, {"1": "a", "None": "b", "[2, 3]": "c", "red": "d"}),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.float16(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.int64(-3), -3),
        (np.uint8(200), 200),
        (np.bool_(True), True),
        (np.str_("s"), "s"),
        (np.array(7), 7),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.array([]), []),
        (torch.tensor(2.5), 2.5),
        (torch.tensor(2), 2),
        (torch.tensor(False), False),
        (torch.tensor([1.0, 2.0]), [1.0, 2.0]),
        (torch.tensor([1.5], dtype=torch.bfloat16), [1.5]),
        (torch.tensor(1.5, requires_grad=True), 1.5),
        (torch.Size([2, 3]), [2, 3]),
    ]
    for value, plain in cases:
        notes: list[str] = []

        reduced = to_plain(value, notes)

        assert reduced == plain
        assert type(reduced) is type(plain)
        assert notes == []


UNIQUE, META = object(), torch.empty(2, device="meta")


def test_what_has_no_json_form_becomes_text_and_costs_only_itself() -> None:
    cases: list[tuple[object, str, str]] = [
        (UNIQUE, repr(UNIQUE), "object has no JSON form"),
        (1 + 2j, "(1+2j)", "complex has no JSON form"),
        (torch.float32, "torch.float32", "dtype has no JSON form"),
        (Point, repr(Point), "type has no JSON form"),
        (np.complex64(1j), "1j", "complex has no JSON form"),
        (META, repr(META), "NotImplementedError while reading it"),
        (np.zeros((100, 100)), "<ndarray of shape (100, 100), float64>", "10000 elements"),
        (torch.zeros(100, 100), "<Tensor of shape (100, 100), torch.float32>", "10000 elements"),
        (2**20_000, hex(2**20_000)[:1000], "an integer of 20001 bits"),
        (ReprRaises(), "<ReprRaises, whose repr raised RuntimeError>", "ReprRaises has no JSON form"),
        (ReprExits(), "<ReprExits, whose repr raised SystemExit>", "ReprExits has no JSON form"),
        (EverythingRaises(), "<EverythingRaises, whose repr raised ValueError>", "RuntimeError while reading it"),
        (IterationRaises([1]), "<a bad list>", "OSError while reading it"),
        ({ReprRaises()}, "<set, whose repr raised RuntimeError>", "RuntimeError while reading it"),
        ({ReprExits()}, "<set, whose repr raised SystemExit>", "SystemExit while reading it"),
        (Verbose(), "x" * 1000, "Verbose has no JSON form"),
    ]
    for value, text, note in cases:
        notes: list[str] = []

        assert to_plain({"metrics": [1, value]}, notes) == {"metrics": [1, text]}
        assert notes == [f"metrics[1]: {note}; kept as text"]


def test_ctrl_c_is_the_only_thing_that_gets_through() -> None:
    class Interrupted:
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_plain(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        to_plain({Interrupted()})


def test_a_container_that_holds_itself_ends_where_it_begins_again() -> None:
    cycle: list[Any] = [1]
    cycle += [cycle, cycle]
    notes: list[str] = []

    assert to_plain({"graph": cycle}, notes) == {"graph": [1, "[1, [...], [...]]", "[1, [...], [...]]"]}
    assert notes == [f"graph[{index}]: nested too deeply or contains itself; kept as text" for index in (1, 2)]


def test_what_is_nested_too_deeply_is_cut() -> None:
    deep: Any = 0
    for _ in range(10_000):
        deep = [deep]
    notes: list[str] = []

    plain = to_plain(deep, notes)

    json.dumps(plain, allow_nan=False)
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({1: "number", "1": "text"}, {"1": "number", "1_": "text"}),
        ({"1": "text", 1: "number"}, {"1": "text", "1_": "number"}),
        ({"1": "a", 1: "b", "1_": "c"}, {"1": "a", "1_": "b", "1__": "c"}),
    ],
)
def test_keys_that_read_the_same_are_all_kept(value: object, plain: object) -> None:
    notes: list[str] = []

    assert to_plain(value, notes) == plain
    assert notes
    assert all("two keys read" in note for note in notes)


def same(left: object, right: object) -> bool:
    """Equal, of equal types all the way down, where a NaN equals a NaN and 0.0 is not -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and isinstance(right, float):
        return left.hex() == right.hex()
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return left == right


_tokens = st.sampled_from(["NaN", "Infinity", "-Infinity", "nan", "Nan", "\\", ""])
texts_like_tokens = st.builds(lambda slashes, token: "\\" * slashes + token, st.integers(0, 4), _tokens)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | texts_like_tokens,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | texts_like_tokens, inner),
    max_leaves=12,
)


@given(plain_values)
def test_strict_json_gives_back_exactly_what_was_put_in(value: object) -> None:
    text = json.dumps(encode_non_finite(value), allow_nan=False)

    assert same(decode_non_finite(json.loads(text)), value)


def test_non_finite_numbers_are_texts_in_json_and_such_texts_are_escaped() -> None:
    assert encode_non_finite([math.nan, math.inf, -math.inf]) == ["NaN", "Infinity", "-Infinity"]
    texts = ["NaN", "\\NaN", "-Infinity", "nan", "\\", "C:\\NaN"]
    assert encode_non_finite(texts) == ["\\NaN", "\\\\NaN", "\\-Infinity", "nan", "\\", "C:\\NaN"]
