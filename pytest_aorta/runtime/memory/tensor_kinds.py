"""Which tensors can be passed to a task: those that are described by memory, shape, strides and type, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_aorta.runtime.memory.tensor_bytes import span
from pytest_aorta.runtime.memory.torch_storage import shared_descriptor

if TYPE_CHECKING:
    import torch


def check_kind(tensor: object) -> torch.Tensor:
    """The tensor; the task will see the same values, as a plain tensor without autograd.

    Raises:
        TypeError: not a tensor, or one that is more, or less, than a dense view of CPU memory.
        ValueError: its memory has been let go, or it reaches beyond it.
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, not {tensor!r}")
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        raise TypeError(
            f"a tensor of class {type(tensor).__module__}.{type(tensor).__qualname__} cannot be passed: what the class"
            " adds would be lost; pass the plain tensors that it is made of"
        )
    if tensor.layout != torch.strided:
        raise TypeError(f"a tensor of layout {tensor.layout} cannot be passed: slots share dense memory only")
    if tensor.is_nested:
        raise TypeError("a nested tensor cannot be passed: slots share dense memory only; pass its parts (.unbind())")
    if tensor.device.type != "cpu":
        raise TypeError(f"a tensor on {tensor.device} cannot be passed: slots share CPU memory only")
    if tensor.is_quantized:
        raise TypeError(
            "a quantized tensor cannot be passed: its scale is not in its memory; pass .int_repr(), or .dequantize()"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError(
            "a tensor that is conjugated or negated lazily cannot be passed; call .resolve_conj() or .resolve_neg()"
        )
    try:
        held = tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError) as error:
        raise TypeError(
            "a tensor without memory of its own cannot be passed, such as those within torch.func transforms"
        ) from error
    if tensor.numel():
        needed = tensor.storage_offset() * tensor.element_size() + span(tensor)
        if needed > held:
            raise ValueError(f"the tensor needs {needed} bytes of its storage, which has {held}: was it resized?")
    return tensor


def check_writable(tensor: torch.Tensor, what: str) -> None:
    """Raise ``ValueError`` for a tensor that a task could not write for others to see; ``what`` names the tag."""
    if not tensor.numel():
        return
    if not tensor.untyped_storage().is_shared():
        raise ValueError(
            f"a tensor that is not in shared memory cannot be {what}, since what a task writes to it is lost;"
            " call .share_memory_() on it, or use orch.alloc"
        )
    if shared_descriptor(tensor.untyped_storage()) is None:
        raise ValueError(
            f"a tensor that maps a file (torch.from_file) cannot be {what}: the mapping cannot be handed to another"
            " process; copy it, and call .share_memory_() on the copy, or use orch.alloc"
        )
    if _may_overlap_itself(tensor):
        raise ValueError(
            f"a tensor of which several items are the same memory (shape {tuple(tensor.shape)}, strides"
            f" {tensor.stride()}, as of .expand()) cannot be {what}: nothing says which of them wins; pass the tensor"
            " that it is a view of"
        )


def _may_overlap_itself(tensor: torch.Tensor) -> bool:
    """Whether two items are, or may be, at one place. Sure for all that slicing, transposing and reshaping make."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False
