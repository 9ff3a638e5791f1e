"""What a failed ``assert`` was about: its expression, and the values of the variables in it.

The process of a trial runs the workload as any interpreter would, without pytest and its rewriting of assertions, which
would compile other code. So this looks at the frame of the assertion that has failed. It calls nothing of the workload,
neither a function nor a ``__repr__``: values are shown of plain types, arrays and tensors only.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pytest_aorta.probe.variables import has_secret, is_secret_name

#: Characters of an expression and of a value, elements of an array, and values that are shown.
_EXPRESSION, _VALUE, _ELEMENTS, _VALUES = 200, 120, 10, 10

#: What ``len`` can be asked of without running code of the workload.
_SIZED = (str, bytes, list, tuple, dict, set, frozenset)

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
        text, value = " ".join(ast.unparse(node).split()), _shown(value)
        if value and len(text) <= _EXPRESSION:
            shown[text] = "<redacted>" if any(map(is_secret_name, _names(node))) else value
    yield from (f"{text} = {value}" for text, value in list(shown.items())[:_VALUES])


def _known(node: ast.AST, frame: FrameType) -> Iterator[tuple[ast.expr, Any]]:
    value = _UNKNOWN
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
        value = _value(node, frame)
        if value is not _UNKNOWN:
            yield node, value
    if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return
    if value is _UNKNOWN or isinstance(node, ast.Call):  # besides a length, also of what
        for child in ast.iter_child_nodes(node):
            yield from _known(child, frame)


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _value(node: ast.expr, frame: FrameType) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, frame)
        return -value if type(value) in (int, float) else _UNKNOWN
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id, _UNKNOWN))
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        found = _UNKNOWN if owner is _UNKNOWN else inspect.getattr_static(owner, node.attr, _UNKNOWN)
        is_computed = inspect.getattr_static(type(found), "__get__", None) is not None
        return _UNKNOWN if is_computed else found
    if isinstance(node, ast.Subscript):
        return _element(_value(node.value, frame), _value(node.slice, frame))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
        shadowed = "len" in frame.f_locals or "len" in frame.f_globals
        value = _value(node.args[0], frame)
        return len(value) if type(value) in _SIZED and not shadowed else _UNKNOWN
    return _UNKNOWN


def _element(owner: Any, key: Any) -> Any:
    if type(owner) in (list, tuple, str) and type(key) is int:
        return owner[key] if -len(owner) <= key < len(owner) else _UNKNOWN
    if type(owner) is dict and type(key) in (str, int, bool):
        return owner.get(key, _UNKNOWN)
    return _UNKNOWN


def _shown(value: Any) -> str:
    text = _Shown().repr(value)
    text = "<redacted>" if has_secret(text) else "" if text == _type_name(value) else text
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}..."


def _type_name(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


class _Shown(reprlib.Repr):
    def repr1(self, x: Any, level: int) -> str:
        kind = type(x)
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
    device = getattr(value, "device", "cpu")
    size = 1
    for length in shape:
        size *= length
    name = kind.__name__ if shape else "scalar"
    # The elements of a GPU's tensor would have to be waited for.
    if str(device) == "cpu" and size <= _ELEMENTS and "sparse" not in str(getattr(value, "layout", "")):
        return f"{name}({value.tolist()!r}, {dtype})"
    return f"{name} of shape {list(shape)}, {dtype}, on {device}"
