"""What the sender of tensors shows another process, takes away again, and keeps in order when something fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.processes import no_more_files
from tensor_stage import Pipe, new_memory

from pytest_aorta.runtime import Tag, TaskArgs
from pytest_aorta.runtime.memory import sender as module
from pytest_aorta.runtime.memory.torch_storage import descriptor_of
from pytest_aorta.runtime.memory.transfer import TensorUnavailable


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def written(*tensors: torch.Tensor) -> TaskArgs:
    args = TaskArgs()
    for tensor in tensors:
        args.add(tensor, Tag.INOUT)
    return args


def test_memory_is_sent_once_and_seen_by_both_sides(pipe: Pipe) -> None:
    memory = new_memory(64, shared=True)

    for number in range(3):
        got = pipe.pass_on(written(memory[number:], torch.zeros(0))).tensors[0]
        got[0] = 99

    assert memory[:3].tolist() == [99] * 3
    assert pipe.mapped == 1


def test_memory_that_is_gone_is_unmapped_with_the_next_task(pipe: Pipe) -> None:
    """It is not kept alive here, either."""
    for _ in range(300):
        pipe.pass_on(written(new_memory(64, shared=True)))
        assert pipe.mapped == 1

    pipe.pass_on(written())

    assert pipe.mapped == pipe.sender.mapped_bytes == 0


def test_much_memory_that_is_gone_is_said_at_once(pipe: Pipe) -> None:
    kept = [new_memory(2**23, shared=True) for _ in range(3)]
    pipe.pass_on(written(*kept))
    kept.pop()
    assert not pipe.many_dead
    kept.clear()
    assert pipe.many_dead

    pipe.sender.release_dead()
    pipe.read()
    assert pipe.mapped == 0


def test_what_is_mapped_is_bounded_in_bytes(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small storages may be many, large ones few; what the last tasks have used stays."""
    monkeypatch.setattr(module, "MAX_MAPPED", 2**23)
    small = [new_memory(64, shared=True) for _ in range(100)]
    for tensor in small:
        pipe.pass_on(written(tensor))
    assert pipe.mapped == 100

    size = 2**20
    for tensor in [new_memory(size, shared=True) for _ in range(3 * module.RECENT)]:
        pipe.pass_on(written(tensor))
        assert pipe.sender.mapped_bytes <= (module.RECENT + 2) * (size + 2**16)
    assert pipe.mapped <= module.RECENT + 1

    assert pipe.pass_on(written(small[0])).tensors[0].tolist() == small[0].tolist()


def test_all_is_let_go_between_runs(pipe: Pipe) -> None:
    memory = new_memory(64, shared=True)
    pipe.pass_on(written(memory).add(torch.zeros(3)))
    assert pipe.mapped == 2

    pipe.sender.forget()
    pipe.read()

    assert pipe.mapped == 0
    pipe.pass_on(written(memory)).tensors[0][0] = 7
    assert memory[0] == 7


def refuse_to_pickle() -> Any:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise OSError("not today")

    return Stubborn()


def test_what_cannot_be_sent_concerns_no_other_task(pipe: Pipe) -> None:
    """No error is taken for the end of the other process, and what follows is read as it was sent."""
    memory = new_memory(64, shared=True)
    broken = new_memory(64, shared=True)
    fd, _ = descriptor_of(broken.untyped_storage())
    kept = os.dup(fd)
    os.close(fd)
    with pytest.raises(RuntimeError, match="64 bytes cannot be handed over: its file is closed"):
        pipe.sender.encode(written(memory, broken), None)
    os.dup2(kept, fd)  # torch closes it once more
    os.close(kept)
    with pytest.raises(TypeError, match="config cannot be sent to another process: OSError: not today"):
        pipe.sender.encode(written(memory), refuse_to_pickle())
    with no_more_files(), pytest.raises(RuntimeError):
        pipe.sender.encode(TaskArgs().add(torch.zeros(3)), None)

    pipe.pass_on(written(memory).add(torch.ones(3))).tensors[0][0] = 7
    assert memory[0] == 7


def test_a_descriptor_that_cannot_be_sent_leaves_the_channel_in_order(pipe: Pipe) -> None:
    pipe.ours.send({"op": "first"})
    with pytest.raises(OSError, match="Bad file descriptor"):
        pipe.ours.send_fd(2**20)
    pipe.ours.send({"op": "second"})

    assert pipe.theirs.receive() == {"op": "first"}
    assert pipe.theirs.receive_fd() is None
    assert pipe.theirs.receive() == {"op": "second"}


def test_memory_that_cannot_be_mapped_is_an_error_of_the_task_that_needs_it(pipe: Pipe) -> None:
    memory, other = new_memory(64, shared=True), new_memory(64, shared=True)
    pipe.pass_on(written(other))
    with no_more_files(), pytest.raises(TensorUnavailable, match=r"tensor 1 could not be mapped.*too many open files"):
        pipe.pass_on(written(other, memory))

    assert pipe.pass_on(written(other)).tensors[0].tolist() == other.tolist()
    pipe.sender.forget()  # as the endpoint does after such an error
    assert pipe.pass_on(written(memory)).tensors[0].tolist() == memory.tolist()
