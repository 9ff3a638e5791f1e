"""What a task may be given."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from pytest_aorta.runtime.arguments import TaskArgs
from pytest_aorta.runtime.graph import Footprint, Tag
from pytest_aorta.runtime.tensors import footprint_of, share, snapshot

WRITING = [Tag.OUTPUT, Tag.INOUT, Tag.OUTPUT_EXISTING]


@pytest.fixture
def shared() -> torch.Tensor:
    tensor = torch.zeros(8, 8)
    tensor.untyped_storage().share_memory_()
    return tensor


def accesses(args: TaskArgs) -> list[tuple[Footprint, Tag]]:
    return args.submitted(lambda blank: blank, snapshot)[1]


def test_arguments_keep_their_order(shared: torch.Tensor) -> None:
    plain = torch.ones(2)

    args = TaskArgs().add(plain).add(shared, Tag.OUTPUT).add_scalar(3).add_scalar("x").add_scalar(True).add_scalar(0.5)

    assert args.tensors[0] is plain
    assert args.tensors[1] is shared
    assert args.tags == (Tag.INPUT, Tag.OUTPUT)
    assert args.scalars == (3, "x", True, 0.5)
    # Nothing else sees the bytes of a copy.
    found = [(footprint.backing, footprint.stop, tag) for footprint, tag in accesses(args)]
    assert found == [("", 0, Tag.INPUT), (footprint_of(shared).backing, 256, Tag.OUTPUT)]


@pytest.mark.statement(11)
def test_a_tag_cannot_be_changed_after_it_was_added() -> None:
    args: Any = TaskArgs().add(torch.zeros(3))

    with pytest.raises(TypeError):
        args.tags[0] = Tag.OUTPUT
    for name in ("tags", "tensors"):
        with pytest.raises(AttributeError):
            setattr(args, name, (Tag.OUTPUT,))


@pytest.mark.statement(11)
def test_other_memory_behind_an_added_tensor_is_noticed(shared: torch.Tensor) -> None:
    args = TaskArgs().add(shared, Tag.OUTPUT)
    shared.set_(torch.zeros(8, 8).untyped_storage())

    with pytest.raises(ValueError, match="share_memory_"):
        accesses(args)


@pytest.mark.statement(11)
def test_overlapping_writes_of_one_task_are_refused(shared: torch.Tensor) -> None:
    accesses(TaskArgs().add(shared).add(shared[2:]).add(shared[0], Tag.OUTPUT).add(shared[0], Tag.NO_DEP))
    tiles = TaskArgs()
    for row, column in ((0, 4), (0, 0), (4, 4), (4, 0)):
        tiles.add(shared[row : row + 4, column : column + 4], Tag.OUTPUT)
    accesses(tiles)
    for first, second in product(WRITING, WRITING):
        args = TaskArgs().add(shared[6:]).add(shared[:, 3:], second).add(shared[:4, :4], first)
        with pytest.raises(ValueError, match=rf"tensors 1 \({second.name}\) and 2 \({first.name}\).*same bytes"):
            accesses(args)


@pytest.mark.filterwarnings("ignore:.*quantize")
def test_what_cannot_be_passed_is_refused_and_leaves_nothing(shared: torch.Tensor) -> None:
    args = TaskArgs()
    refused: list[tuple[Any, Any, str]] = [
        *((value, Tag.INPUT, r"expected a torch\.Tensor") for value in (3, None, [1.0], "tensor")),
        *((torch.zeros(3), tag, rf"{tag.name}.*share_memory_\(\).*orch\.alloc") for tag in WRITING),
        *((shared[:1].expand(2, 8), tag, f"several items are the same memory .* {tag.name}") for tag in WRITING),
        (torch.zeros(3, device="meta"), Tag.INPUT, "on meta.*slots share CPU memory only"),
        (torch.eye(3).to_sparse(), Tag.INPUT, "sparse_coo"),
        (torch.zeros(2, dtype=torch.complex64).conj(), Tag.INPUT, r"resolve_conj\(\)"),
        (torch.zeros(2, dtype=torch.complex64).conj().imag, Tag.INPUT, r"resolve_neg\(\)"),
        (torch.nested.nested_tensor([torch.zeros(1)]), Tag.INPUT, "nested"),
        (torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.qint8), Tag.INPUT, "quantized"),
        (torch.zeros(1), "INPUT", "expected a Tag, not 'INPUT'"),
    ]
    for tensor, tag, why in refused:
        with pytest.raises((TypeError, ValueError), match=why):
            args.add(tensor, tag)
    assert args.tensors == args.tags == ()


def test_there_is_a_limit() -> None:
    args, tensor = TaskArgs(), torch.zeros(1)
    for _ in range(256):
        args.add(tensor)
    for number in range(128):
        args.add_scalar(number)

    with pytest.raises(ValueError, match="256 tensors"):
        args.add(tensor)
    with pytest.raises(ValueError, match="128 scalars"):
        args.add_scalar(1)
    assert (len(args.tensors), len(args.tags), len(args.scalars)) == (256, 256, 128)


def test_instead_of_a_pointer_memory_has_a_number_that_no_other_memory_gets() -> None:
    """Where an allocator gives one address to one tensor after another, a pointer would order their tasks."""
    numbers, addresses = set(), set()
    for _ in range(20):
        tensor = share(torch.zeros(4096))
        numbers.add(footprint_of(tensor).backing)
        addresses.add(tensor.data_ptr())
        del tensor
    assert len(numbers) == 20 > len(addresses)
