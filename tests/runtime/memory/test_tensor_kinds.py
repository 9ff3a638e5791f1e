"""A tensor is passed as it is, or refused before there is a task."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensor_stage import DTYPES, Pipe, content, new_memory, views

from pytest_aorta.runtime import Tag, TaskArgs
from pytest_aorta.runtime.memory.tensor_bytes import byte_view, from_bytes, overwrite, share, to_bytes

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def invert(tensors: Any, tags: Any) -> None:
    """What the task does: all bits of what it may write are others afterwards."""
    for tensor, tag in zip(tensors, tags, strict=True):
        if tag.writes and tensor.numel():
            byte_view(tensor).bitwise_not_()


@given(st.data(), st.booleans())
def test_a_task_sees_and_does_what_a_call_in_this_process_would(data: st.DataObject, shared: bool) -> None:
    memory, same = new_memory(160, shared), new_memory(160, shared)
    args, tensors, refused = TaskArgs(), [], []
    for _ in range(data.draw(st.integers(1, 4), label="tensors")):
        view = data.draw(views(memory))
        tag = data.draw(st.sampled_from(list(Tag)))
        try:
            args.add(view, tag)
        except ValueError:
            refused.append(tag)
            continue
        plain = torch.empty(0, dtype=view.dtype)
        tensors.append(plain.set_(same.untyped_storage(), view.storage_offset(), view.shape, view.stride()))
    assert all(tag.writes for tag in refused), "all of them can be read"
    try:
        args.check()
    except ValueError:
        return  # two of them write the same bytes

    pipe = Pipe()
    passed = pipe.pass_on(args)

    for got, expected in zip(passed.tensors, tensors, strict=True):
        assert type(got) is torch.Tensor
        assert (got.shape, got.dtype, got.device.type) == (expected.shape, expected.dtype, "cpu")
        assert content(got) == content(expected)
        assert not got.requires_grad
        if shared:
            assert got.stride() == expected.stride()
    invert(passed.tensors, args.tags)
    invert(tensors, args.tags)
    assert memory.tolist() == same.tolist()
    assert [content(got) for got in passed.tensors] == [content(expected) for expected in tensors]
    pipe.close()


@given(st.data())
def test_by_value_a_tensor_comes_and_goes_as_it_is(data: st.DataObject) -> None:
    view = data.draw(views(new_memory(160, shared=False)))

    got = from_bytes(*to_bytes(view))

    assert (got.shape, got.dtype) == (view.shape, view.dtype)
    assert content(got) == content(view) == content(share(view))
    into = torch.empty_strided(view.shape, view.stride(), dtype=view.dtype) if 0 not in view.stride() else got
    overwrite(into, got)
    assert content(into) == content(view)


def test_a_copy_is_about_as_large_as_what_it_is_a_copy_of() -> None:
    assert share(torch.zeros(1).expand(10**12)).untyped_storage().nbytes() == 4
    assert share(torch.zeros(1000, 1000)[:, 3]).untyped_storage().nbytes() == 4000
    assert len(to_bytes(torch.zeros(1).expand(10**12))[3]) == 4


class Labelled(torch.Tensor):
    """A tensor that is more than its memory."""


def in_transform() -> torch.Tensor:
    """A tensor that only stands for others."""
    found: list[torch.Tensor] = []

    def keep(row: torch.Tensor) -> torch.Tensor:
        found.append(row)
        return row

    torch.vmap(keep)(torch.zeros(2, 3))
    return found[0]


def let_go() -> torch.Tensor:
    tensor = torch.zeros(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def nested(**more: Any) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], **more)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no tensor": (lambda: [1.0], "expected a torch.Tensor, not \\[1.0\\]"),
    "meta": (lambda: torch.zeros(3, device="meta"), "a tensor on meta"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "layout torch.sparse_coo"),
    "sparse rows": (lambda: torch.eye(3).to_sparse_csr(), "layout torch.sparse_csr"),
    "conjugated": (lambda: torch.zeros(2, dtype=torch.complex64).conj(), r"call \.resolve_conj\(\)"),
    "negated": (lambda: torch.zeros(2, dtype=torch.complex64).conj().imag, r"\.resolve_neg\(\)"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.quint8), r"\.dequantize\(\)"),
    "nested": (nested, r"nested.*\.unbind\(\)"),
    "jagged": (lambda: nested(layout=torch.jagged), r"NestedTensor cannot be passed"),
    "subclass": (lambda: torch.zeros(2).as_subclass(Labelled), "Labelled cannot be passed: what the class adds"),
    "not yet there": (torch.nn.UninitializedParameter, "UninitializedParameter cannot be passed"),
    "within vmap": (in_transform, "without memory of its own"),
    "let go": (let_go, "needs 16 bytes of its storage, which has 0"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("tag", [Tag.INPUT, Tag.INOUT])
def test_what_is_no_plain_view_of_memory_is_refused_with_the_reason(name: str, tag: Tag) -> None:
    make, said = REFUSED[name]
    args = TaskArgs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates some of them
        tensor = make()

    with pytest.raises((TypeError, ValueError), match=said) as caught:
        args.add(tensor, tag)

    assert "\n" not in str(caught.value)
    assert args.tensors == ()


def test_what_has_no_items_can_be_written_wherever_it_is() -> None:
    pipe = Pipe()
    memory = new_memory(8, shared=True)
    empty: Any = torch.zeros(0)
    kinds = [torch.zeros(0), empty.share_memory_(), memory[3:3], torch.zeros(2, 0, 3), torch.zeros(0, dtype=torch.bool)]
    args = TaskArgs()
    for tensor in kinds:
        args.add(tensor, Tag.OUTPUT)

    got = pipe.pass_on(args).tensors

    assert [(tensor.shape, tensor.dtype) for tensor in got] == [(tensor.shape, tensor.dtype) for tensor in kinds]
    assert pipe.mapped == 0
    pipe.close()


def test_memory_whose_items_are_one_cannot_be_written() -> None:
    memory = new_memory(8, shared=True)
    for view in (memory[:1].expand(4), memory.as_strided((3, 3), (1, 1))):
        assert TaskArgs().add(view).tensors == (view,)
        with pytest.raises(ValueError, match=r"several items are the same memory.*cannot be INOUT"):
            TaskArgs().add(view, Tag.INOUT)
    TaskArgs().add(memory.view(2, 4).t(), Tag.INOUT).add(memory[::3], Tag.NO_DEP).check()


def test_a_mapped_file_is_read_as_a_copy_and_not_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(8)))
    for shared in (True, False):
        mapped = torch.from_file(str(tmp_path / "file"), shared=shared, size=8, dtype=torch.uint8)
        pipe = Pipe()
        assert pipe.pass_on(TaskArgs().add(mapped)).tensors[0].tolist() == list(range(8))
        with pytest.raises(ValueError, match=r"maps a file.*cannot be OUTPUT"):
            TaskArgs().add(mapped, Tag.OUTPUT)
        pipe.close()


def test_every_type_is_known_to_the_other_side() -> None:
    memory = new_memory(16, shared=True)
    for dtype in DTYPES:
        tensor = torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), 0, (1,), (1,))
        pipe = Pipe()
        assert pipe.pass_on(TaskArgs().add(tensor, Tag.INOUT)).tensors[0].dtype is dtype
        pipe.close()
