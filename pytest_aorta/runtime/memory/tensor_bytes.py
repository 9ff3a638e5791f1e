"""Tensors as bytes, whatever they are made of: torch does not copy, or even print, every one of its types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def byte_view(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor as ``uint8``, with one more axis for the bytes of an item; free of autograd."""
    import torch

    size = tensor.element_size()
    strides = (*(stride * size for stride in tensor.stride()), 1)
    view = torch.empty(0, dtype=torch.uint8, device="cpu")
    return view.set_(tensor.untyped_storage(), tensor.storage_offset() * size, (*tensor.shape, size), strides)


def from_storage(
    storage: torch.UntypedStorage, offset: int, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """A view of a storage; offset and strides in items."""
    import torch

    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, tuple(shape), tuple(strides))


def span(tensor: torch.Tensor) -> int:
    """Bytes from the first one to the last one that a tensor, which is not empty, touches."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def _packed(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """All bytes of a tensor as ``uint8``, flat, and the strides that it has there: its own, where few are left out.

    So an expanded tensor stays as small as it is, and a column does not take the whole matrix along.
    """
    length = span(tensor)
    if length <= tensor.nbytes:
        flat = byte_view(tensor).as_strided((length,), (1,))
        return flat, tuple(tensor.stride())
    return byte_view(tensor).reshape(-1), contiguous_strides(tensor.shape)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor without gaps, in items."""
    return tuple(math.prod(max(1, size) for size in shape[axis + 1 :]) for axis in range(len(shape)))


def share(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in shared memory, without autograd; of an empty tensor, any copy."""
    if not tensor.numel():
        return tensor.detach().clone()
    flat, strides = _packed(tensor)
    copy: Any = flat.clone()
    return from_storage(copy.share_memory_().untyped_storage(), 0, tensor.shape, strides, tensor.dtype)


def to_bytes(tensor: torch.Tensor) -> list[Any]:
    """Shape, strides, type and content of a tensor."""
    if not tensor.numel():
        return [list(tensor.shape), list(tensor.stride()), dtype_name(tensor), b""]
    flat, strides = _packed(tensor)
    return [list(tensor.shape), list(strides), dtype_name(tensor), bytes(flat.contiguous().numpy())]


def from_bytes(shape: Sequence[int], strides: Sequence[int], dtype: str, content: bytes) -> torch.Tensor:
    """The reverse of ``to_bytes``: a tensor in shared memory."""
    import torch

    kind = getattr(torch, dtype)
    if not content:
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=kind, device="cpu")
    flat: Any = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return from_storage(flat.share_memory_().untyped_storage(), 0, shape, strides, kind)


def overwrite(tensor: torch.Tensor, content: torch.Tensor) -> None:
    """Give a tensor the content of another one of its shape and type, whatever autograd says of it."""
    if tensor.numel():
        byte_view(tensor).copy_(byte_view(content))


def dtype_name(tensor: torch.Tensor) -> str:
    """The name of a tensor's type in the module ``torch``."""
    return str(tensor.dtype).removeprefix("torch.")
