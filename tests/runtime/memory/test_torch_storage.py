"""The private names of torch that shared memory is built on: what each has to do, and what breaks when it does not."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any

import torch
from torch.multiprocessing import reductions

from pytest_aorta.runtime.tensors import StorageIds, descriptor_of, map_storage, share, storage_id


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


def test_cdata_is_the_same_for_all_views_of_one_memory() -> None:
    """``UntypedStorage._cdata``: without it, tasks on views of one tensor would not wait for each other."""
    tensor = torch.zeros(4)
    other = torch.zeros(4)

    assert tensor[:2].untyped_storage()._cdata == tensor[2:].untyped_storage()._cdata
    assert tensor.untyped_storage()._cdata != other.untyped_storage()._cdata
    assert storage_id(tensor[:2]) == storage_id(tensor[2:]) != storage_id(other)


def test_a_weak_reference_keeps_an_address_and_says_when_its_storage_is_gone() -> None:
    """``StorageWeakRef``: without it, a new tensor at the address of an old one would be taken for that one."""
    make_reference: Any = reductions.StorageWeakRef
    tensor = torch.zeros(4)
    address = tensor.untyped_storage()._cdata
    reference = make_reference(tensor.untyped_storage())
    assert not reference.expired()

    del tensor
    gc.collect()

    assert reference.expired()
    others = [torch.zeros(4) for _ in range(1000)]
    assert address not in {other.untyped_storage()._cdata for other in others}


def test_ids_of_dead_storages_are_dropped() -> None:
    ids = StorageIds()
    kept = torch.zeros(1)
    first = ids.id_of(kept.untyped_storage())
    found = {ids.id_of(torch.zeros(1).untyped_storage()) for _ in range(1000)}

    assert len(found) == 1000
    assert first not in found
    assert len(ids) <= 256
    assert ids.id_of(kept.untyped_storage()) == first


def test_references_end_before_the_modules_of_torch() -> None:
    """Later, when the interpreter has taken those to pieces, each would print an exception."""
    code = """
import atexit
atexit.register(lambda: print("kept:", len(torch_storage._ids)))
import torch
from pytest_aorta.runtime import tensors as torch_storage
tensor = torch.zeros(1)
torch_storage.storage_id(tensor)
print("known:", len(torch_storage._ids))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.split("\n")[:2], done.stderr) == (["known: 1", "kept: 0"], "")
