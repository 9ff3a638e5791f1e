"""What a failed ``assert`` was about: its expression, and the values of the variables in it.

The process of a trial runs the workload as any interpreter would, without pytest and its rewriting of assertions, which
would compile other code. So this looks at the frame of the assertion that has failed. It calls nothing of the workload,
neither a function nor a ``__repr__``: values are shown of plain types, arrays and tensors only.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import math
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pytest_aorta.probe.variables import has_secret, is_secret_name

#: Characters of an expression and of a value, elements of an array, and values that are shown.
_EXPRESSION, _VALUE, _ELEMENTS, _VALUES = 200, 120, 10, 10

_UNKNOWN = object()


@dataclass(frozen=True)
class Explanation:
    expression: str
    values: tuple[str, ...]


def explain(error: AssertionError) -> Explanation | None:
    """Of the statement that has raised the error; ``None`` where that is no ``assert``, or its source is not known."""
    try:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        if traceback is None:
            return None
        frame = traceback.tb_frame
        test = _assertion_at(traceback.tb_lineno, frame)
        return None if test is None else Explanation(_text(test), tuple(_values(test, frame)))
    except Exception:  # an explanation is not worth another failure
        return None


def explained(error: AssertionError, described: Mapping[str, str]) -> dict[str, str]:
    """The description of an exception, with what its assertion was about.

    The expression is the message where there is none; it is the same in every trial that fails there. The values are at
    the end of the traceback.
    """
    found = explain(error)
    if found is None:
        return dict(described)
    values = "".join(f"    {line}\n" for line in found.values)
    return {
        **described,
        "message": described["message"] or found.expression,
        "traceback": f"{described['traceback'].rstrip()}\n{values}",
    }


def _assertion_at(line: int, frame: FrameType) -> ast.expr | None:
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    spans = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return min(spans, key=lambda node: (node.end_lineno or 0) - node.lineno).test if spans else None


def _text(test: ast.expr) -> str:
    text = " ".join(ast.unparse(test).split())
    return f"assert {text}" if len(text) <= _EXPRESSION else f"assert {text[:_EXPRESSION]}..."


def _values(test: ast.expr, frame: FrameType) -> Iterator[str]:
    shown: dict[str, str] = {}
    for node, value in _known(test, frame):
        text = ast.unparse(node)
        if len(text) <= _EXPRESSION and (value := _shown(value)):
            shown[text] = "<redacted>" if any(map(is_secret_name, text.split("."))) else value
    yield from (f"{text} = {value}" for text, value in list(shown.items())[:_VALUES])


def _known(node: ast.AST, frame: FrameType) -> Iterator[tuple[ast.expr, Any]]:
    """The variables, and attributes of them, outside of functions and comprehensions."""
    if isinstance(node, ast.Name | ast.Attribute) and (value := _value(node, frame)) is not _UNKNOWN:
        yield node, value
    elif not isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        for child in ast.iter_child_nodes(node):
            yield from _known(child, frame)


def _value(node: ast.expr, frame: FrameType) -> Any:
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id, _UNKNOWN))
    owner = _value(node.value, frame) if isinstance(node, ast.Attribute) else _UNKNOWN
    if owner is _UNKNOWN or not isinstance(node, ast.Attribute):
        return _UNKNOWN
    found = inspect.getattr_static(owner, node.attr, _UNKNOWN)
    is_computed = inspect.getattr_static(type(found), "__get__", None) is not None
    return _UNKNOWN if is_computed else found


def _shown(value: Any) -> str:
    text = _Shown().repr(value)
    text = "<redacted>" if has_secret(text) else "" if text == _type_name(value) else text
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}..."


def _type_name(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


class _Shown(reprlib.Repr):
    def repr1(self, x: Any, level: int) -> str:
        kind = type(x)
        # Before long texts are cut: what shows that there is a secret may be in the middle.
        if kind in (str, bytes) and has_secret(x if kind is str else x.decode(errors="replace")):
            return "<redacted>"
        if kind in (int, float, complex, bool, type(None), str, bytes):
            return super().repr1(x, level)
        if kind in (list, tuple, dict, set, frozenset):
            # reprlib sorts keys and elements, which may be of the workload's types, in a ``try`` of its own.
            return super().repr1(x, level) if _is_plain(x) else f"{kind.__name__} of {len(x)}"
        return _array(x) or _type_name(x)


def _is_plain(value: Any) -> bool:
    parts = value.keys() if isinstance(value, Mapping) else value
    if type(value) in (list, tuple):
        return True
    return all(type(part) in (int, float, complex, bool, type(None), str, bytes) for part in parts)


def _array(value: Any) -> str:
    kind = type(value)
    if kind.__module__ not in ("torch", "torch.nn.parameter", "numpy") or not hasattr(value, "tolist"):
        return ""
    shape, dtype = tuple(getattr(value, "shape", ())), getattr(value, "dtype", "")
    device, size = getattr(value, "device", "cpu"), math.prod(shape)
    name = kind.__name__ if shape else "scalar"
    # The elements of a GPU's tensor would have to be waited for.
    if str(device) == "cpu" and size <= _ELEMENTS and "sparse" not in str(getattr(value, "layout", "")):
        return f"{name}({value.tolist()!r}, {dtype})"
    return f"{name} of shape {list(shape)}, {dtype}, on {device}"
