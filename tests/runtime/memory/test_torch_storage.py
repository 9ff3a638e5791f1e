"""The private names of torch that shared memory is built on: what each has to do, and what breaks when it does not."""

from __future__ import annotations

import gc
import os
import weakref

import torch

from pytest_aorta.runtime.tensors import descriptor_of, map_storage, share, storage_id


def test_new_shared_fd_cpu_maps_a_file_that_can_then_be_closed() -> None:
    """``UntypedStorage._new_shared_fd_cpu``: without it, no slot sees the tensors of its tasks, and ``alloc`` fails."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, 16)
    made: torch.UntypedStorage = torch.UntypedStorage._new_shared_fd_cpu(fd, 16)  # type: ignore[attr-defined]
    again = map_storage(fd, 16)
    os.close(fd)

    torch.empty(0, dtype=torch.uint8).set_(made)[3] = 7

    assert torch.empty(0, dtype=torch.uint8).set_(again).tolist() == [0, 0, 0, 7] + [0] * 12


def test_share_fd_cpu_gives_the_file_that_a_storage_keeps_open() -> None:
    """``UntypedStorage._share_fd_cpu_``: without it, no tensor can be sent to a slot."""
    tensor = share(torch.arange(4.0))
    fd, size = tensor.untyped_storage()._share_fd_cpu_()

    assert descriptor_of(tensor.untyped_storage()) == (fd, size)
    assert size == 16
    assert torch.empty(0).set_(map_storage(fd, size)).tolist() == [0.0, 1.0, 2.0, 3.0]
    os.fstat(fd)  # the storage keeps it open


def test_the_object_of_a_storage_lives_as_long_as_its_memory() -> None:
    """Else tasks on views of one tensor would not wait for each other, and mapped memory would be let go too early."""
    tensor, other = torch.zeros(4), torch.zeros(4)
    first = storage_id(tensor[:2].untyped_storage())
    gone: list[object] = []
    reference = weakref.ref(tensor.untyped_storage(), gone.append)
    share(tensor)
    view = tensor.view(2, 2)
    del tensor
    gc.collect()

    assert storage_id(view[1:].untyped_storage()) == first != storage_id(other.untyped_storage())
    assert gone == []
    del view
    assert gone == [reference]
