"""The interface of a workload, and what it returns as plain data for strict JSON."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar, Literal

from pytest_aorta.trials.execution import FINITE
from pytest_aorta.trials.records import CONTRADICTED, Failure, ResultRecord

LaunchMode = Literal["single_process", "distributed"]
ResultScope = Literal["global", "rank_local"]


@dataclass
class WorkloadResult:
    """What one run of a workload found.

    Any object with these attributes is accepted as well; only ``passed`` is required.

    Attributes:
        passed: whether the run met the workload's own criterion, a bool; decides whether the trial is ok.
        failure_count: number of failures, as the workload defines them.
        first_failure_iteration: index of the first failing iteration, ``None`` without one.
        failure_details: one mapping per failure; free keys.
        total_iterations: iterations that the workload counts as done.
        step_times_ms: duration of every step, in milliseconds; without it, those between calls of ``progress``.
        elapsed_sec: duration of the main work, in seconds; 0 when not measured.
        metrics: any further values; numbers are best.
        main_work_started: ``False`` when the run ended before its main work; ``None`` when not tracked.
        executed_iterations: iterations executed; ``None`` when not tracked.
        configured_iterations: iterations asked for; ``None`` when not tracked.
    """

    passed: bool
    failure_count: int = 0
    first_failure_iteration: int | None = None
    failure_details: list[dict[str, Any]] = field(default_factory=list)
    total_iterations: int = 0
    step_times_ms: list[float] = field(default_factory=list)
    elapsed_sec: float = 0.0
    metrics: dict[str, Any] = field(default_factory=dict)
    main_work_started: bool | None = None
    executed_iterations: int | None = None
    configured_iterations: int | None = None


class Workload(ABC):
    """Base class of workloads.

    Constructed once per trial as ``cls(config)``; then come ``setup()``, ``run()`` and ``cleanup()``. Inheriting is
    optional: a class of any package with ``setup`` and ``run`` that takes a config mapping runs unchanged.

    A nested ``class Config(pydantic.BaseModel)`` types the options: they are validated before the first trial, an
    unknown key is an error that lists the valid ones, and ``self.config`` is then an instance of it. Without one,
    ``self.config`` is a plain ``dict``.

    Class attributes:
        launch_mode: ``"single_process"``, or ``"distributed"`` for one process per rank, which finds the usual
            variables (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ...) and calls ``init_process_group()`` itself.
        min_world_size: smallest number of ranks of a distributed workload, and the default.
        result_scope: what ``run()`` returns in a rank: ``"global"``, when the result of rank 0 is that of the trial, or
            ``"rank_local"``, when each rank returns a result of its part; then the trial passes when all ranks pass,
            failures are counted together and listed in the order of the ranks, and the metrics are those of rank 0.
        timeout_sec: default deadline of a trial in seconds, from the hand-over to the trial's process until that
            process has ended; ``None`` for no deadline.
        raises: what an exception in ``run()`` is: ``"failure"`` of the workload, which is the default, or
            ``"infrastructure"``, which says nothing about it: the default of classes of AORTA's own package.
        data_files: paths of files and folders that decide what it does, or a class method that takes the options and
            returns them; when one changes, ``--aorta-resume`` keeps no earlier result. A relative path is one in the
            working directory, or else one beside the workload's file.
    """

    launch_mode: ClassVar[LaunchMode] = "single_process"
    min_world_size: ClassVar[int] = 1
    timeout_sec: ClassVar[float | None] = None
    data_files: ClassVar[Any] = ()
    result_scope: ClassVar[ResultScope] = "global"
    raises: ClassVar[Literal["failure", "infrastructure"]] = "failure"

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def setup(self) -> None:
        """Prepare: allocate, initialise process groups, build the model. A failure is ``infrastructure_failed``."""

    @abstractmethod
    def run(self) -> WorkloadResult:
        """Do the main work; ``passed`` is whether it met the workload's criterion."""

    def cleanup(self) -> None:  # noqa: B027  (optional on purpose)
        """Release what ``setup()`` took."""

    def progress(self, step: int, total: int | None = None) -> None:  # noqa: B027  (replaced by the runner)
        """Report that ``step`` (of ``total``) steps are done. Cheap; call it once per step.

        Replaced on the instance when a trial runs; outside of a trial it does nothing.
        """


# What a workload returns

#: Longest text kept of a value that is neither a number nor a text nor a container of those.
_REPR_LIMIT = 1000

#: Largest array or tensor that is kept element by element.
_ARRAY_LIMIT = 4096

#: Deepest nesting that is kept; pydantic stops at 255, and readers in other languages earlier.
_DEPTH_LIMIT = 64

#: Longest integer in bits: what a float can hold; Python refuses decimal ones of some thousand digits altogether.
_INT_BITS = 1023


class _NoForm(Exception): ...


def to_plain(value: object, notes: list[str] | None = None, where: str = "", inside: tuple[int, ...] = ()) -> Any:
    """Reduce a value to ``None``, ``bool``, ``int``, ``float``, ``str``, ``list`` and ``dict`` with ``str`` keys.

    NumPy and torch scalars become numbers, small arrays lists. What has no such form becomes its ``repr``, and a line
    that names the place is added to ``notes``. Lets only ``KeyboardInterrupt`` of the value's methods through.
    """
    notes = [] if notes is None else notes
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
    try:
        return repr(value)[:_REPR_LIMIT]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"<{type(value).__qualname__}, whose repr raised {type(error).__name__}>"


def _reduce(value: Any, notes: list[str], where: str, inside: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return to_plain(value.value, notes, where, inside)
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
        plain: dict[str, Any] = {}
        for key, element in value.items():
            # pydantic cannot write a key with lone surrogates
            name = str(to_plain(key, notes, where, inside)).encode(errors="backslashreplace").decode()
            while name in plain:  # 1 and "1" are different keys in Python, and one in JSON
                notes.append(f"{where or 'value'}: two keys read {name!r}; the second got an underscore")
                name += "_"
            plain[name] = to_plain(element, notes, f"{where}.{name}" if where else name, inside)
        return plain
    if isinstance(value, Set):
        value = sorted(value, key=repr)
    if isinstance(value, Sequence):
        listed: list[Any] = []
        for index, element in enumerate(value):
            listed.append(to_plain(element, notes, f"{where}[{index}]", inside))
        return listed
    if callable(getattr(value, "model_dump", None)):
        return to_plain(value.model_dump(), notes, where, inside)
    if hasattr(value, "dtype") and callable(getattr(value, "tolist", None)):
        # numpy and torch alike; detached and on the host first, where the value has such a method.
        if callable(getattr(value, "detach", None)):
            value = value.detach().cpu()
        size = math.prod(value.shape)
        if size > _ARRAY_LIMIT:
            notes.append(f"{where or 'value'}: {size} elements; kept as text")
            return f"<{type(value).__qualname__} of shape {tuple(value.shape)}, {value.dtype}>"
        as_python = value.tolist()
        # numpy.longdouble has no Python counterpart, and returns itself
        return float(as_python) if type(as_python) is type(value) else to_plain(as_python, notes, where, inside)
    raise _NoForm(f"{type(value).__qualname__} has no JSON form")


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
    output: dict[str, Any] = field(default_factory=dict)


def read_result(result: object) -> ResultRecord:
    """The result's known fields as plain data; notes on what could not be kept go into ``failure_details``.

    Accepts any object, or mapping, whose ``passed`` is a bool, or a scalar of NumPy, torch and the like that is one.

    Raises:
        NotAResult: it has no such ``passed``.
    """
    fields: dict[str, Any] = {}
    for name in WorkloadResult.__dataclass_fields__:
        if name in result if isinstance(result, dict) else hasattr(result, name):
            fields[name] = result[name] if isinstance(result, dict) else getattr(result, name)
    if "passed" not in fields:
        raise NotAResult(f"run() returned {type(result).__name__}, which has no 'passed'; return a WorkloadResult")
    passed = fields["passed"]
    if not isinstance(passed, bool):
        if str(getattr(passed, "dtype", "")) not in _BOOLS or getattr(passed, "shape", None) != ():
            shown = repr(to_plain(passed))[:_SHOWN]
            raise NotAResult(f"run() returned passed={shown} ({type(passed).__name__}); it has to be True or False")
        passed = bool(passed)
    notes: list[str] = []
    plain: dict[str, Any] = {"passed": passed, "step_times_ms": []}
    if (times := fields.get("step_times_ms")) is not None:
        times = to_plain(times.tolist() if callable(getattr(times, "tolist", None)) else times, notes, "step_times_ms")
        given = times if isinstance(times, list) else [times]
        for each in given:
            if isinstance(each, int | float) and 0 <= each < math.inf:
                plain["step_times_ms"].append(float(each))
        if left_out := len(given) - len(plain["step_times_ms"]):
            many = f"{left_out} of {len(given)} are not finite numbers"
            notes.append(f"step_times_ms: {many} of at least 0; left out")
    for name, value in fields.items():
        if value is not None and name not in plain:
            plain[name] = to_plain(value, notes, name)
    for name, (kind, expected) in _EXPECTED.items():
        if name in plain:
            value = plain[name]
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if kind is bool:
                fits = isinstance(value, bool)
            else:
                fits = is_number and (value == int(value) if kind is int else value >= 0)
            if fits:
                plain[name] = kind(value)
            else:
                notes.append(f"{name}: {plain.pop(name)!r} is not {expected}; left out")
    if plain.get("elapsed_sec") == 0:  # the default of WorkloadResult, and no time that anything takes
        del plain["elapsed_sec"]
    details = plain.get("failure_details") or []
    plain["failure_details"] = []
    for detail in details if isinstance(details, list) else [details]:
        plain["failure_details"].append(detail if isinstance(detail, dict) else {"detail": detail})
    for note in notes:
        plain["failure_details"].append({"note": note})
    if not isinstance(plain.get("metrics", {}), dict):
        plain["metrics"] = {"value": plain["metrics"]}
    if isinstance(result, CommandResult):
        plain["output"] = result.output
    elif passed and (why := _not_passed(plain)):
        plain["passed"] = False
        plain["failure_details"].append({"note": f"{CONTRADICTED}{why}"})
    return bounded(ResultRecord(**plain))


def _not_passed(result: Mapping[str, Any]) -> str:
    """Why a result with ``passed=True`` has not passed; empty where it has."""
    if (result.get("failure_count") or 0) > 0:
        return f"failure_count={result['failure_count']}"
    if (allowed := os.environ.get(FINITE)) is not None:
        for name, value in not_finite(result.get("metrics", {})):
            if name not in allowed.split(","):
                return f"{name} is {value} (--aorta-fail-on-nonfinite)"
    return ""


def not_finite(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """The name and the first value of each metric that has one that is NaN or infinite."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from not_finite(each, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        yield from islice((path for each in value for path in not_finite(each, name)), 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield name, value


#: Fields whose values the record does not take as they come, and what they have to be.
_EXPECTED: dict[str, tuple[type, str]] = {
    "failure_count": (int, "a whole number"),
    "first_failure_iteration": (int, "a whole number"),
    "total_iterations": (int, "a whole number"),
    "executed_iterations": (int, "a whole number"),
    "configured_iterations": (int, "a whole number"),
    "elapsed_sec": (float, "a finite number of at least 0"),
    "main_work_started": (bool, "a bool"),
}
