"""The phases of a trial in its process (constructor and ``setup()``, ``run()``, ``cleanup()``), reported as events."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.trials.command_line import CommandNotFound
from pytest_aorta.trials.outcome import exit_failure
from pytest_aorta.trials.records import Event, Failure, Phase, Send
from pytest_aorta.trials.steps import StepClock, StepCounter
from pytest_aorta.trials.tracebacks import own_message
from pytest_aorta.trials.workload import CommandResult, NotAResult, read_result

#: Least time between two progress events, in seconds; steps in between are not sent.
_PROGRESS_INTERVAL = 0.1


class Lifecycle:
    """The three phases of one trial, to be called in order; each sends a ``begin`` and an ``end`` event.

    ``steps`` is the file for the last step that the workload has reported, where one is needed: an event may be lost
    with the process. ``before_setup`` is called before the constructor, as a part of the setup.
    """

    def __init__(
        self,
        cls: type[Any],
        config: Any,
        send: Send,
        steps: Path | None = None,
        *,
        before_setup: Callable[[], object] | None = None,
    ) -> None:
        self.cls = cls
        self.config = config
        self.send = send
        self.steps = steps
        self.before_setup = before_setup
        self.workload: Any = None
        self.clock = StepClock()
        #: Exception of the last phase that failed.
        self.error: BaseException | None = None

    def run_all(
        self,
        on_error: Callable[[BaseException], object] | None = None,
        after_run: Callable[[], object] | None = None,
    ) -> bool:
        """Run all phases; ``cleanup()`` runs if the workload was constructed. Returns whether setup and run succeeded.

        ``on_error`` receives the exception of one of these two, before the cleanup, which may affect other processes;
        ``after_run`` is called before the cleanup as well, whatever ``run()`` has done.
        """
        fine = self.do("setup")
        if fine:
            fine = self.do("run")
            if after_run is not None:
                after_run()
        if self.error is not None and on_error is not None:
            on_error(self.error)
        self.error = None  # its frames may hold what the cleanup needs
        if self.workload is not None:
            self.do("cleanup")
        return fine

    def do(self, phase: Phase, *, reraise: bool = False) -> bool:
        """Construct the workload and set it up; or run it, or clean up, where it can. Whether that succeeded.

        The ``end`` event of ``run`` carries the result as plain data.
        """
        self.send({"type": "begin", "phase": phase, "at": time.time()})
        end: Event = {"type": "end", "phase": phase, "sec": 0.0}
        start = time.perf_counter()
        try:
            if phase == "setup":
                if self.before_setup is not None:
                    self.before_setup()
                self.workload = self.cls(self.config)
                report_progress_to(self.workload, self.send, self.steps, self.clock)
                self.workload.setup()
            elif phase == "run":
                self.clock.is_running = True
                result = self.workload.run()
                read = read_result(result)
                end["result"] = read if read.step_times_ms else replace(read, step_times_ms=self.clock.times_ms())
                if isinstance(result, CommandResult) and result.failure is not None:
                    end["failure"] = result.failure
            elif (cleanup := getattr(self.workload, "cleanup", None)) is not None:
                cleanup()
            return True
        except BaseException as error:
            self.error = error
            failure = failure_of(error, phase)
            lost = phase == "run" and isinstance(error, Exception) and exceptions_say_nothing(self.cls)
            end["failure"] = replace(failure, infrastructure=True) if lost else failure
            if reraise and not isinstance(error, NotAResult):
                raise
            return False
        finally:
            end["sec"], end["at"] = time.perf_counter() - start, time.time()
            self.send(end)


def exceptions_say_nothing(cls: type[Any]) -> bool:
    """Whether an exception in ``run()`` is ``infrastructure_failed``: as the class says, else as AORTA's runner has it.

    Its classes report what they measure by ``passed``; others, which assert, mean a failure of the workload.
    """
    said = getattr(cls, "raises", None)
    of_aorta = any((base.__module__, base.__name__) == ("aorta.workloads._base", "Workload") for base in cls.__mro__)
    return said == "infrastructure" or (said is None and of_aorta)


def report_progress_to(workload: Any, send: Send, steps: Path | None = None, clock: StepClock | None = None) -> None:
    """Replace ``progress`` on the instance by a method that writes every step to ``steps`` and sends some as events.

    ``progress(None)``: something goes on, although no step is done.
    """
    last = alive = 0.0
    report = StepClock().report if clock is None else clock.report
    count: Callable[[Any, Any], None] = (lambda step, total: None) if steps is None else StepCounter(steps).set

    def progress(step: int | None, total: int | None = None) -> None:
        nonlocal last, alive
        # The number of a step that is on a GPU would have to be waited for.
        if type(step) is int or not (step is None or getattr(step, "is_cuda", False)):
            count(step, total)
        now = time.monotonic()
        if step is None:
            if now - alive >= _PROGRESS_INTERVAL:
                alive = now
                send({"type": "alive"})
            return
        report(step, now)
        if now - last >= _PROGRESS_INTERVAL:
            last = now
            step, total = int(step), None if total is None else int(total)
            count(step, total)
            send({"type": "progress", "step": step, "total": total})

    try:
        workload.progress = progress
    except AttributeError:
        pass  # a class with __slots__ does without


def failure_of(error: BaseException, phase: Phase) -> Failure:
    """The failure of a phase that raised ``error``."""
    handled = error.__context__
    if isinstance(error, SystemExit) and type(error.code) is int and error.code and isinstance(handled, Exception):
        # A program that catches what is raised, says it, and exits.
        return replace(failure_of(handled, phase), exit_code=error.code)
    described = describe_exception(error)
    described["message"] = own_message(described["message"])
    if isinstance(error, AssertionError):
        from pytest_aorta.trials.assertions import explained  # only here: most trials need no parser

        described = explained(error, described)
    failure = replace(exit_failure(phase, None, described), at=time.time())
    if isinstance(error, CommandNotFound):
        return replace(failure, traceback=None)
    if isinstance(error, NotAResult):
        return replace(failure, kind="result")
    if isinstance(error, SystemExit):
        # Python itself exits with 255 then, and refuses to write a number of some thousand digits.
        code = 255 if isinstance(error.code, int) and error.code.bit_length() > 63 else error.code
        shown = code if code is None or isinstance(code, int) else repr(failure.message)
        exit_code = code if isinstance(code, int) else 0 if code is None else 1
        return replace(failure, exit_code=exit_code, message=f"sys.exit({shown})")
    return failure
