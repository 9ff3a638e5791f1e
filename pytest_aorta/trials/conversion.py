"""What a workload returns, as plain data for strict JSON; and names that are safe in node ids and paths."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pytest_aorta.trials.records import Failure, ResultRecord
from pytest_aorta.trials.workload import WorkloadResult

#: Longest text kept of a value that is neither a number nor a text nor a container of those.
_REPR_LIMIT = 1000

#: Largest array or tensor that is kept element by element.
_ARRAY_LIMIT = 4096

#: Deepest nesting that is kept; pydantic stops at 255, and readers in other languages earlier.
_DEPTH_LIMIT = 64

#: Longest integer in bits: what a float can hold; Python refuses decimal ones of some thousand digits altogether.
_INT_BITS = 1023


def to_plain(value: object, notes: list[str] | None = None, where: str = "") -> Any:
    """Reduce a value to ``None``, ``bool``, ``int``, ``float``, ``str``, ``list`` and ``dict`` with ``str`` keys.

    NumPy and torch scalars become numbers, small arrays lists. What has no such form becomes its ``repr``, and a line
    that names the place is added to ``notes``. Lets only ``KeyboardInterrupt`` of the value's methods through.
    """
    return _plain(value, [] if notes is None else notes, where, ())


def _plain(value: Any, notes: list[str], where: str, inside: tuple[int, ...]) -> Any:
    problem = "nested too deeply or contains itself"
    if id(value) not in inside and len(inside) <= _DEPTH_LIMIT:
        try:
            return _reduce(value, notes, where, (*inside, id(value)))
        except KeyboardInterrupt:  # the user's, not the value's
            raise
        except _NoForm as error:
            problem = str(error)
        except BaseException as error:
            problem = f"{type(error).__name__} while reading it"
    notes.append(f"{where or 'value'}: {problem}; kept as text")
    return _text(value)


class _NoForm(Exception): ...


def _reduce(value: Any, notes: list[str], where: str, inside: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return _plain(value.value, notes, where, inside)
    if isinstance(value, int):
        if int(value).bit_length() > _INT_BITS:
            notes.append(f"{where or 'value'}: an integer of {value.bit_length()} bits; kept as text")
            return hex(value)[:_REPR_LIMIT]
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str | os.PathLike):
        return str(value)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, datetime.date):  # a datetime is one
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return _mapping(value, notes, where, inside)
    if isinstance(value, Set):
        value = sorted(value, key=repr)
    if isinstance(value, Sequence):
        return [_plain(element, notes, f"{where}[{index}]", inside) for index, element in enumerate(value)]
    if callable(getattr(value, "model_dump", None)):
        return _plain(value.model_dump(), notes, where, inside)
    if hasattr(value, "dtype") and callable(getattr(value, "tolist", None)):
        # numpy and torch alike; detached and on the host first, where the value has such a method.
        if callable(getattr(value, "detach", None)):
            value = value.detach().cpu()
        size = math.prod(value.shape)
        if size > _ARRAY_LIMIT:
            notes.append(f"{where or 'value'}: {size} elements; kept as text")
            return f"<{type(value).__qualname__} of shape {tuple(value.shape)}, {value.dtype}>"
        listed = value.tolist()
        # numpy.longdouble has no Python counterpart, and returns itself
        return float(listed) if type(listed) is type(value) else _plain(listed, notes, where, inside)
    raise _NoForm(f"{type(value).__qualname__} has no JSON form")


def _mapping(value: Mapping[Any, Any], notes: list[str], where: str, inside: tuple[int, ...]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, element in value.items():
        name = str(_plain(key, notes, where, inside))
        name = name.encode(errors="backslashreplace").decode()  # pydantic cannot write a key with lone surrogates
        while name in plain:  # 1 and "1" are different keys in Python, and one in JSON
            notes.append(f"{where or 'value'}: two keys read {name!r}; the second got an underscore")
            name += "_"
        plain[name] = _plain(element, notes, f"{where}.{name}" if where else name, inside)
    return plain


def _text(value: object) -> str:
    try:
        return repr(value)[:_REPR_LIMIT]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"<{type(value).__qualname__}, whose repr raised {type(error).__name__}>"


#: Bytes of JSON that each of the open-ended fields of a result may have.
FIELD_LIMIT = 2**23

#: Elements that are kept of a longer field.
_KEPT = 1000


def bounded(result: ResultRecord, limit: int = FIELD_LIMIT) -> ResultRecord:
    """A result whose open-ended fields fit: of one that is too large the first elements, where these are small.

    A note in ``failure_details`` says how many are left out.
    """
    kept: dict[str, Any] = {}
    notes: list[dict[str, Any]] = []
    for name in ("metrics", "step_times_ms", "failure_details"):
        value = getattr(result, name)
        if len(json.dumps(value)) > limit:
            items = value.items() if isinstance(value, dict) else value
            small = [item for item in islice(items, _KEPT) if len(json.dumps(item)) <= limit // _KEPT]
            kept[name] = type(value)(small)
            notes.append({"note": f"{name}: {len(value) - len(small)} of {len(value)} left out"})
    details = [*kept.pop("failure_details", result.failure_details), *notes]
    return replace(result, **kept, failure_details=details)


_FIELDS = tuple(WorkloadResult.__dataclass_fields__)

#: What NumPy, torch and their like call the type.
_BOOLS = ("bool", "torch.bool")

#: Characters that are shown of a value which cannot be ``passed``.
_SHOWN = 100


class NotAResult(TypeError):
    """What ``run()`` returned has no ``passed``, or one that is neither true nor false."""


@dataclass
class CommandResult(WorkloadResult):
    """The result of a command, what it has failed of, and what else its output says (``OutputFindings.report()``)."""

    failure: Failure | None = None
    output: dict[str, Any] = dataclasses.field(default_factory=dict)


def read_result(result: object) -> ResultRecord:
    """The result's known fields as plain data; notes on what could not be kept go into ``failure_details``.

    Accepts any object, or mapping, whose ``passed`` is a bool, or a scalar of NumPy, torch and the like that is one.

    Raises:
        NotAResult: it has no such ``passed``.
    """
    fields = result if isinstance(result, dict) else {n: getattr(result, n) for n in _FIELDS if hasattr(result, n)}
    if "passed" not in fields:
        raise NotAResult(f"run() returned {type(result).__name__}, which has no 'passed'; return a WorkloadResult")
    passed = _verdict(fields["passed"])
    notes: list[str] = []
    times = _step_times(fields.get("step_times_ms"), notes)
    plain = {
        name: to_plain(fields[name], notes, name)
        for name in _FIELDS
        if fields.get(name) is not None and name not in ("passed", "step_times_ms")
    }
    for name, (convert, expected) in _CONVERTED.items():
        if name in plain:
            try:
                plain[name] = convert(plain[name])
            except (ValueError, TypeError, OverflowError):
                notes.append(f"{name}: {plain.pop(name)!r} is not {expected}; left out")
    if plain.get("elapsed_sec") == 0:  # the default of WorkloadResult, and no time that anything takes
        del plain["elapsed_sec"]
    details = plain.get("failure_details") or []
    details = details if isinstance(details, list) else [details]
    details = [detail if isinstance(detail, dict) else {"detail": detail} for detail in details]
    if not isinstance(plain.get("metrics", {}), dict):
        plain["metrics"] = {"value": plain["metrics"]}
    plain |= {
        "passed": passed,
        "step_times_ms": times,
        "failure_details": details + [{"note": note} for note in notes],
    }
    if isinstance(result, CommandResult):
        plain["output"] = result.output
    return bounded(ResultRecord(**plain))


def _verdict(passed: Any) -> bool:
    if isinstance(passed, bool):
        return passed
    if str(getattr(passed, "dtype", "")) in _BOOLS and getattr(passed, "shape", None) == ():
        return bool(passed)
    shown = repr(to_plain(passed))[:_SHOWN]
    raise NotAResult(f"run() returned passed={shown} ({type(passed).__name__}); it has to be True or False")


def _whole(value: Any) -> int:
    if isinstance(value, str | bool) or int(value) != value:
        raise ValueError
    return int(value)


def _duration(value: Any) -> float:
    if isinstance(value, str | bool) or not 0 <= value < math.inf:
        raise ValueError
    return float(value)


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


#: Fields whose values the record does not take as they come, and what they have to be.
_CONVERTED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "failure_count": (_whole, "a whole number"),
    "first_failure_iteration": (_whole, "a whole number"),
    "total_iterations": (_whole, "a whole number"),
    "executed_iterations": (_whole, "a whole number"),
    "configured_iterations": (_whole, "a whole number"),
    "elapsed_sec": (_duration, "a finite number of at least 0"),
    "main_work_started": (_bool, "a bool"),
}


def _step_times(value: Any, notes: list[str]) -> list[float]:
    if value is None:
        return []
    plain = to_plain(value.tolist() if callable(getattr(value, "tolist", None)) else value, notes, "step_times_ms")
    given = plain if isinstance(plain, list) else [plain]
    times = [float(time) for time in given if isinstance(time, int | float) and 0 <= time < math.inf]
    if len(times) < len(given):
        left_out = len(given) - len(times)
        notes.append(f"step_times_ms: {left_out} of {len(given)} are not finite numbers of at least 0; left out")
    return times
