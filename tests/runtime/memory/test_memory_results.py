"""What tasks return arrives as it was, or is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy
import pytest
import torch

from pytest_aorta.runtime.memory.results import MAX_RESULT, decode_result, encode_result


def sent(value: Any) -> Any:
    """What arrives."""
    text, parts = encode_result(value)
    plain, parts = json.loads(text), json.loads(json.dumps(parts))
    return decode_result(plain, parts) if parts else plain


@pytest.mark.parametrize("value", [None, 1, 1.5, "x", True, [1, [2]], {"a": {"b": None}}])
def test_json_values_arrive_without_parts(value: Any) -> None:
    assert encode_result(value)[1] == []
    assert sent(value) == value


def test_bytes_arrive_wherever_they_are() -> None:
    assert sent(b"") == b""
    assert sent({"a": [b"\xff", {"b": bytearray(b"12")}], "0": 0}) == {"a": [b"\xff", {"b": b"12"}], "0": 0}


@pytest.mark.parametrize("name", ["int8", "uint64", "float16", "float64", "bool_"])
def test_numpy_scalars_arrive_as_plain_numbers(name: str) -> None:
    found = sent({"x": getattr(numpy, name)(1)})["x"]
    assert found == 1
    assert type(found) in (int, float, bool)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (3, 2)])
def test_tensors_arrive_with_shape_and_type(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = torch.ones(shape).to(dtype)
    found = sent(["loss", value])[1]
    assert (found.shape, found.dtype) == (value.shape, dtype)
    assert torch.equal(found, value)


def test_a_view_arrives_without_the_rest_of_its_memory() -> None:
    value = torch.arange(10.0**6)[::100000].requires_grad_()
    found = sent(value)
    assert torch.equal(found, value.detach())
    assert found.untyped_storage().nbytes() == 40
    assert torch.equal(sent(torch.ones(2, dtype=torch.complex64).conj()), torch.ones(2, dtype=torch.complex64))


@pytest.mark.parametrize(
    "value",
    [
        {1},
        numpy.zeros(2),
        numpy.complex64(1),
        numpy.timedelta64(1, "s"),
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
        {(1, 2): 3},
    ],
)
def test_the_rest_is_refused_with_the_remedy(value: Any) -> None:
    with pytest.raises(TypeError, match=r"the return value (has|cannot be read).*fit into a record"):
        encode_result([value])


def test_the_bound_counts_text_and_bytes() -> None:
    assert sent(b"x" * (MAX_RESULT - 100)) == b"x" * (MAX_RESULT - 100)
    for value in ("x" * MAX_RESULT, b"x" * MAX_RESULT, torch.zeros(MAX_RESULT // 4), [b"x" * 600_000] * 2):
        with pytest.raises(ValueError, match=r"bytes or more: .* write other results to a tensor in shared memory"):
            encode_result(value)
