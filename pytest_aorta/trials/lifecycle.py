"""The phases of a trial in its process (constructor and ``setup()``, ``run()``, ``cleanup()``), reported as events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from pytest_aorta.common.exception_text import describe_exception
from pytest_aorta.trials.conversion import to_plain
from pytest_aorta.trials.events import EndEvent, FailureData, Phase, ResultData, Send
from pytest_aorta.trials.outcome import exit_failure
from pytest_aorta.trials.result_size import bounded
from pytest_aorta.trials.workload import WorkloadResult

#: Least time between two progress events, in seconds; steps in between are not sent.
_PROGRESS_INTERVAL = 0.1

_FIELDS = tuple(WorkloadResult.__dataclass_fields__)


class NotAResult(TypeError):
    """What ``run()`` returned has no ``passed``."""


class Lifecycle:
    """The three phases of one trial, to be called in order; each sends a ``begin`` and an ``end`` event.

    ``before_setup`` is called before the constructor, as a part of the setup.
    """

    def __init__(
        self, cls: type[Any], config: Any, send: Send, before_setup: Callable[[], object] = lambda: None
    ) -> None:
        self.cls = cls
        self.config = config
        self.send = send
        self.before_setup = before_setup
        self.workload: Any = None
        #: What the last phase that failed has raised.
        self.error: BaseException | None = None

    def run_all(
        self,
        on_error: Callable[[BaseException], object] = lambda error: None,
        after_run: Callable[[], object] = lambda: None,
    ) -> bool:
        """All phases; ``cleanup()`` runs whenever the workload was constructed. Whether setup and run succeeded.

        ``on_error`` receives the exception of one of these two, before the cleanup, which may affect other processes;
        ``after_run`` is called before the cleanup as well, whatever ``run()`` has done.
        """
        fine = self.setup()
        if fine:
            fine = self.run()
            after_run()
        if self.error is not None:
            on_error(self.error)
            self.error = None  # its frames may hold what the cleanup needs
        if self.workload is not None:
            self.cleanup()
        return fine

    def setup(self, *, reraise: bool = False) -> bool:
        """Construct the workload and set it up."""

        def body() -> None:
            self.before_setup()
            self.workload = self.cls(self.config)
            report_progress_to(self.workload, self.send)
            self.workload.setup()

        return self._phase("setup", body, reraise)

    def run(self, *, reraise: bool = False) -> bool:
        """Run it; the ``end`` event carries the result as plain data."""
        return self._phase("run", lambda: result_to_plain(self.workload.run()), reraise)

    def cleanup(self) -> bool:
        """Clean up, where the workload can."""

        def body() -> None:
            cleanup = getattr(self.workload, "cleanup", None)
            if cleanup is not None:
                cleanup()

        return self._phase("cleanup", body)

    def _phase(self, phase: Phase, body: Callable[[], ResultData | None], reraise: bool = False) -> bool:
        self.send({"type": "begin", "phase": phase})
        end: EndEvent = {"type": "end", "phase": phase, "sec": 0.0}
        start = time.perf_counter()
        try:
            result = body()
            if result is not None:
                end["result"] = result
            return True
        except BaseException as error:
            self.error = error
            end["failure"] = failure_of(error, phase)
            if reraise and not isinstance(error, NotAResult):
                raise
            return False
        finally:
            end["sec"] = time.perf_counter() - start
            self.send(end)


def report_progress_to(workload: Any, send: Send) -> None:
    """Replace ``progress`` on the instance by a method that sends events."""
    last = 0.0

    def progress(step: int, total: int | None = None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PROGRESS_INTERVAL:
            last = now
            send({"type": "progress", "step": int(step), "total": None if total is None else int(total)})

    try:
        workload.progress = progress
    except AttributeError:
        pass  # a class with __slots__ does without


def result_to_plain(result: object) -> ResultData:
    """The result's known fields as plain data; notes on what could not be kept go into ``failure_details``.

    Accepts any object, or mapping, with ``passed``.

    Raises:
        NotAResult: it has none.
    """
    fields = result if isinstance(result, dict) else {n: getattr(result, n) for n in _FIELDS if hasattr(result, n)}
    if "passed" not in fields:
        raise NotAResult(f"run() returned {type(result).__name__}, which has no 'passed'; return a WorkloadResult")
    notes: list[str] = []
    times = _numbers(fields.get("step_times_ms"), notes)
    plain = {
        name: to_plain(fields[name], notes, name)
        for name in _FIELDS
        if fields.get(name) is not None and name != "step_times_ms"
    }
    for name, convert in _CONVERTED.items():
        if name in plain:
            try:
                plain[name] = convert(plain[name])
            except (ValueError, TypeError, OverflowError):
                notes.append(f"{name}: {plain.pop(name)!r} is not of its type; left out")
    details = plain.get("failure_details") or []
    details = details if isinstance(details, list) else [details]
    details = [detail if isinstance(detail, dict) else {"detail": detail} for detail in details]
    if not isinstance(plain.get("metrics", {}), dict):
        plain["metrics"] = {"value": plain["metrics"]}
    plain |= {
        "passed": bool(fields["passed"]),
        "step_times_ms": times,
        "failure_details": details + [{"note": note} for note in notes],
    }
    return bounded(cast(ResultData, plain))


def _whole(value: Any) -> int:
    if isinstance(value, str) or int(value) != value:
        raise ValueError
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, str):
        raise ValueError
    return float(value)


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


#: Fields whose values the record does not take as they come.
_CONVERTED: dict[str, Callable[[Any], Any]] = {
    "failure_count": _whole,
    "first_failure_iteration": _whole,
    "total_iterations": _whole,
    "executed_iterations": _whole,
    "configured_iterations": _whole,
    "elapsed_sec": _float,
    "main_work_started": _bool,
}


def _numbers(value: Any, notes: list[str]) -> list[float]:
    """Step times as floats, from a sequence or an array of any length."""
    if value is None:
        return []
    plain = to_plain(value.tolist() if callable(getattr(value, "tolist", None)) else value, notes, "step_times_ms")
    given = plain if isinstance(plain, list) else [plain]
    numbers = [float(number) for number in given if isinstance(number, int | float)]
    if len(numbers) < len(given):
        notes.append(f"step_times_ms: {len(given) - len(numbers)} of {len(given)} are no numbers; left out")
    return numbers


def failure_of(error: BaseException, phase: Phase) -> FailureData:
    """The failure of a phase that has raised."""
    failure = exit_failure(phase, None, describe_exception(error))
    failure["at"] = time.time()
    if isinstance(error, NotAResult):
        failure["kind"] = "result"
    if isinstance(error, SystemExit):
        # Python itself exits with 255 then, and refuses to write a number of some thousand digits.
        code = 255 if isinstance(error.code, int) and error.code.bit_length() > 63 else error.code
        failure["exit_code"] = code if isinstance(code, int) else 0 if code is None else 1
        shown = code if code is None or isinstance(code, int) else repr(failure["message"])
        failure["message"] = f"sys.exit({shown})"
    return failure
