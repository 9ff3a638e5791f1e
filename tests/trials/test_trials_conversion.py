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


class IterationRaises(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise OSError("disk on fire")

    def __repr__(self) -> str:
        return "<a bad list>"


def _kind(value: object) -> str:
    """An id that is the same in every process, as xdist needs it; the repr of a set or an object is not."""
    return type(value).__name__


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.5, 0.5),
        ("text", "text"),
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
    ],
    ids=_kind,
)
def test_python_values_keep_their_meaning(value: object, plain: object) -> None:
    notes: list[str] = []

    reduced = to_plain(value, notes)

    assert reduced == plain
    assert type(reduced) is type(plain)
    assert notes == []


@pytest.mark.parametrize(
    ("value", "plain"),
    [
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
    ],
    ids=_kind,
)
def test_numpy_and_torch_values_become_numbers_and_lists(value: object, plain: object) -> None:
    notes: list[str] = []

    reduced = to_plain(value, notes)

    assert reduced == plain
    assert type(reduced) is type(plain)
    assert notes == []


@pytest.mark.parametrize("array", [np.zeros((100, 100)), torch.zeros(100, 100)], ids=["numpy", "torch"])
def test_a_large_array_is_described_and_not_kept(array: object) -> None:
    notes: list[str] = []

    text = to_plain({"weights": array}, notes)["weights"]

    assert "(100, 100)" in text
    assert "float" in text
    assert notes == ["weights: 10000 elements; kept as text"]


@pytest.mark.parametrize(
    "value", [object(), 1 + 2j, torch.float32, len, Point, np.complex64(1j), torch.empty(2, device="meta")], ids=_kind
)
def test_what_has_no_json_form_becomes_text_and_a_note_names_the_place(value: object) -> None:
    notes: list[str] = []

    plain = to_plain({"metrics": [1, value]}, notes)

    assert isinstance(plain["metrics"][1], str)
    assert len(notes) == 1
    assert notes[0].startswith("metrics[1]: ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ReprRaises(), "<ReprRaises, whose repr raised RuntimeError>"),
        (ReprExits(), "<ReprExits, whose repr raised SystemExit>"),
        (EverythingRaises(), "<EverythingRaises, whose repr raised ValueError>"),
        (IterationRaises([1]), "<a bad list>"),
        ({ReprRaises()}, "<set, whose repr raised RuntimeError>"),
        ({ReprExits()}, "<set, whose repr raised SystemExit>"),
    ],
    ids=lambda value: value if type(value) is str else "",
)
def test_a_hostile_object_costs_only_itself(value: object, text: str) -> None:
    notes: list[str] = []

    assert to_plain({"bad": value, "good": 1}, notes) == {"bad": text, "good": 1}
    assert [note.partition(":")[0] for note in notes] == ["bad"]


def test_ctrl_c_is_the_only_thing_that_gets_through() -> None:
    class Interrupted:
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_plain(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        to_plain({Interrupted()})


def test_a_long_text_of_an_unknown_object_is_cut_but_a_text_is_not() -> None:
    class Verbose:
        def __repr__(self) -> str:
            return "x" * 100_000

    assert len(to_plain(Verbose())) == 1000
    assert len(to_plain("x" * 100_000)) == 100_000


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


def test_an_integer_beyond_the_range_of_a_float_becomes_hexadecimal_text() -> None:
    notes: list[str] = []

    assert to_plain(2**1000, notes) == 2**1000
    assert notes == []
    assert to_plain({"n": 2**20_000}, notes)["n"].startswith("0x1000")
    assert notes == ["n: an integer of 20001 bits; kept as text"]


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


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        ("NaN", "\\NaN"),
        ("\\NaN", "\\\\NaN"),
        ("-Infinity", "\\-Infinity"),
        ("nan", "nan"),
        ("\\", "\\"),
        ("C:\\NaN", "C:\\NaN"),
    ],
)
def test_non_finite_numbers_are_texts_in_json_and_such_texts_are_escaped(value: object, encoded: str) -> None:
    assert encode_non_finite(value) == encoded
    assert same(decode_non_finite(encoded), value)
