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
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from pytest_aorta.probe.variables import has_secret, is_secret_name

#: Characters of an expression and of a value, elements of an array, and values that are shown.
_EXPRESSION, _VALUE, _ELEMENTS, _VALUES = 200, 120, 10, 10

_UNKNOWN = object()


def explained(error: AssertionError, described: Mapping[str, str]) -> dict[str, str]:
    """The description of an exception, with what its assertion was about.

    The expression is the message where there is none; it is the same in every trial that fails there. The values are at
    the end of the traceback.
    """
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    try:
        assert traceback is not None
        frame, line = traceback.tb_frame, traceback.tb_lineno
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
        asserts = (node for node in ast.walk(tree) if isinstance(node, ast.Assert))
        spans = [node for node in asserts if node.lineno <= line <= (node.end_lineno or node.lineno)]
        test = min(spans, key=lambda node: (node.end_lineno or 0) - node.lineno).test
        expression = _cut(f"assert {' '.join(ast.unparse(test).split())}", _EXPRESSION)
        values = {ast.unparse(node): _shown(value) for node, value in _known(test, frame)}
    except Exception:  # no assert statement, or no source: an explanation is not worth another failure
        return dict(described)
    lines = [
        f"    {text} = {'<redacted>' if any(map(is_secret_name, text.split('.'))) else value}\n"
        for text, value in values.items()
        if value and len(text) <= _EXPRESSION
    ]
    message, trace = (
        described["message"] or expression,
        f"{described['traceback'].rstrip()}\n{''.join(lines[:_VALUES])}",
    )
    return {**described, "message": message, "traceback": trace}


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


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
    if not isinstance(node, ast.Attribute) or (owner := _value(node.value, frame)) is _UNKNOWN:
        return _UNKNOWN
    attribute = inspect.getattr_static(owner, node.attr, _UNKNOWN)
    is_computed = inspect.getattr_static(type(attribute), "__get__", None) is not None
    return _UNKNOWN if is_computed else attribute


_PLAIN = (int, float, complex, bool, type(None), str, bytes)


def _shown(value: Any) -> str:
    kind = type(value)
    if kind in (list, tuple, dict, set, frozenset):
        parts = [*value, *value.values()] if kind is dict else value
        if len(value) > _ELEMENTS or any(type(part) not in _PLAIN for part in parts):
            return f"{kind.__name__} of {len(value)}"
    elif kind not in _PLAIN:
        if kind.__module__ not in ("torch", "torch.nn.parameter", "numpy") or not hasattr(value, "tolist"):
            return ""
        shape, dtype, device = tuple(value.shape), value.dtype, getattr(value, "device", "cpu")
        name = kind.__name__ if shape else "scalar"
        # The elements of a GPU's tensor would have to be waited for.
        few = math.prod(shape) <= _ELEMENTS and "sparse" not in str(getattr(value, "layout", ""))
        if few and str(device) == "cpu":
            return f"{name}({value.tolist()!r}, {dtype})"
        return f"{name} of shape {list(shape)}, {dtype}, on {device}"
    text = repr(value)
    return "<redacted>" if has_secret(text) else _cut(text, _VALUE)
