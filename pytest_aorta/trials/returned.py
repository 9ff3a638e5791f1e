"""What ``run()`` returned, as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pytest_aorta.trials.conversion import to_plain
from pytest_aorta.trials.events import FailureData, ResultData
from pytest_aorta.trials.result_size import bounded
from pytest_aorta.trials.workload import WorkloadResult

_FIELDS = tuple(WorkloadResult.__dataclass_fields__)

#: What NumPy, torch and their like call the type.
_BOOLS = ("bool", "torch.bool")

#: Characters that are shown of a value which cannot be ``passed``.
_SHOWN = 100


class NotAResult(TypeError):
    """What ``run()`` returned has no ``passed``, or one that is neither true nor false."""


@dataclass
class CommandResult(WorkloadResult):
    """The result of a command, and what it has failed of."""

    failure: FailureData | None = None


def result_to_plain(result: object) -> ResultData:
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
    return bounded(cast(ResultData, plain))


def _verdict(passed: Any) -> bool:
    """``passed`` as a bool. Whether a NaN or a text is true says nothing about a run."""
    if isinstance(passed, bool):
        return passed
    if str(getattr(passed, "dtype", "")) in _BOOLS and getattr(passed, "shape", None) == ():
        return bool(passed)
    shown = repr(to_plain(passed))[:_SHOWN]
    raise NotAResult(f"run() returned passed={shown} ({type(passed).__name__}); it has to be True or False")


def _whole(value: Any) -> int:
    if isinstance(value, str) or int(value) != value:
        raise ValueError
    return int(value)


def _duration(value: Any) -> float:
    if isinstance(value, str) or not 0 <= value < math.inf:
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
    """Durations as floats, from a sequence or an array of any length."""
    if value is None:
        return []
    plain = to_plain(value.tolist() if callable(getattr(value, "tolist", None)) else value, notes, "step_times_ms")
    given = plain if isinstance(plain, list) else [plain]
    times = [float(time) for time in given if isinstance(time, int | float) and 0 <= time < math.inf]
    if len(times) < len(given):
        left_out = len(given) - len(times)
        notes.append(f"step_times_ms: {left_out} of {len(given)} are not finite numbers of at least 0; left out")
    return times
