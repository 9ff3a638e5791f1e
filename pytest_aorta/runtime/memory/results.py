"""What a task returns, encoded for its record: JSON, with bytes and small tensors beside it."""

from __future__ import annotations

import base64
import json
import math
import sys
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Bytes that a task's return value may have, as JSON and without the coding of its bytes and tensors.
MAX_RESULT = 2**20

_FITS = (
    f"JSON values, bytes, NumPy scalars and CPU tensors fit into a record, {MAX_RESULT} bytes in all; write other"
    " results to a tensor in shared memory (Tag.OUTPUT), or to a file, and return its name"
)

#: Kind, description and base64 of what is no JSON, by number; the first entry is what marks the numbers in the JSON.
Parts = list[Any]


def encode_result(value: Any) -> tuple[str, Parts]:
    """A return value as JSON, and what of it is no JSON; of that, ``decode_result`` is the reverse.

    NumPy scalars become plain numbers; as always with JSON, tuples become lists and keys texts. A ``TaskRef`` stands
    for what its task has returned.

    Raises:
        TypeError: it does not fit into a record, because of what it is.
        ValueError: because it is too large.
    """
    if value is None:
        return "null", []
    parts: Parts = []
    size = 0

    def convert(found: Any) -> Any:
        nonlocal size
        known, plain = _as_plain(found)
        if known:
            return plain
        kind, description, content = _as_bytes(found)
        size += len(content)
        if size > MAX_RESULT:
            raise _too_large(size)
        if not parts:
            parts.append(uuid.uuid4().hex)  # unlike any key of the value
        parts.append([kind, description, base64.b64encode(content).decode()])
        return {parts[0]: len(parts) - 1}

    try:
        text = json.dumps(value, default=convert)
    except _DoesNotFit as error:
        raise error.reason from None
    except Exception as error:  # its own methods may raise anything
        raise TypeError(f"the return value cannot be read: {_text_of(error)}; {_FITS}") from error
    if len(text) + size > MAX_RESULT:
        raise _too_large(len(text) + size).reason
    return text, parts


def decode_result(plain: Any, parts: Parts) -> Any:
    """The reverse of ``encode_result``, once its JSON was read."""
    if isinstance(plain, list):
        return [decode_result(entry, parts) for entry in plain]
    if isinstance(plain, dict):
        if len(plain) == 1 and parts[0] in plain:
            kind, description, content = parts[plain[parts[0]]]
            return _from_bytes(kind, description, base64.b64decode(content))
        return {key: decode_result(entry, parts) for key, entry in plain.items()}
    return plain


class _DoesNotFit(Exception):
    def __init__(self, reason: Exception) -> None:
        self.reason = reason


def _too_large(size: int) -> _DoesNotFit:
    return _DoesNotFit(ValueError(f"the return value has {size} bytes or more: {_FITS}"))


def _as_plain(value: Any) -> tuple[bool, Any]:
    """Whether a value has a JSON value that stands for it, and that one."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.number | numpy.bool_) and not isinstance(value, numpy.timedelta64):
        plain = value.item()
        if isinstance(plain, int | float):
            return True, plain
    handles = sys.modules.get("pytest_aorta.runtime.handles")
    if handles is not None and isinstance(value, handles.TaskRef) and value.record is not None:
        return True, value.record.payload
    return False, None


def _as_bytes(value: Any) -> tuple[str, Any, bytes]:
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes", None, bytes(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.layout != torch.strided or value.is_quantized or value.is_nested:
            raise _DoesNotFit(
                TypeError(
                    f"the return value has a tensor on {value.device} of layout {value.layout} and type {value.dtype},"
                    f" but only a dense one on the CPU can be sent; call .cpu(), .to_dense() or .dequantize(). {_FITS}"
                )
            )
        if value.numel() * value.element_size() > MAX_RESULT:  # before it is copied
            raise _too_large(value.numel() * value.element_size())
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return "tensor", [list(value.shape), str(value.dtype).removeprefix("torch.")], bytes(flat.numpy())
    kind = type(value)
    raise _DoesNotFit(TypeError(f"the return value has a {kind.__module__}.{kind.__qualname__} in it; {_FITS}"))


def _from_bytes(kind: str, description: Any, content: bytes) -> bytes | torch.Tensor:
    if kind == "bytes":
        return content
    import torch

    shape, name = description
    dtype: torch.dtype = getattr(torch, name)
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)


def _text_of(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
