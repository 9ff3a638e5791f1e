"""Starts the collectors of a trial in one of its processes, tells them of steps, and stops them.

Loaded by its path, perhaps in another interpreter than pytest's: no imports from this package. What goes wrong in a
collector is kept for the record, and never reaches the program.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

#: Seconds that a collector has for its start, for a step, and for its end.
LIMIT = 60.0

#: Problems of one collector that are kept.
_PROBLEMS = 5

#: Sources of step numbers, best first: reports of the workload, steps of an optimizer, forward passes.
_FORWARDS, _OPTIMIZER, _REPORTS = 1, 2, 3


class TooLong(BaseException):
    """A collector did not come back in time."""


def _too_long(number: int, frame: Any) -> None:
    raise TooLong(f"it was given up after {LIMIT:.0f} s")


class Collecting:
    """The collectors of this process.

    ``rank``: ``None`` where no launcher has said it; ``attempt``: how often the ranks were started again.
    """

    def __init__(self, text: str, rank: int | None, attempt: int = 0) -> None:
        order = json.loads(text)
        self.folder, self.rank = order["folder"], rank
        self.stem = f"process_{os.getpid()}" if rank is None else f"rank_{rank}"
        self.below = f"attempt_{attempt}" if attempt else ""
        self._asked = order["collectors"]
        self._running: dict[str, Any] = {}
        self._problems: dict[str, int] = {}
        self._optimizer: weakref.ref[Any] | None = None
        self._source = self._steps = self._last = self._before = self._depth = 0
        self._forward_hooks: list[Any] = []
        self._note("found")

    def _note(self, what: str, **more: object) -> None:
        entry = {"what": what, "pid": os.getpid(), "rank": self.rank, "stem": self.stem, **more}
        try:
            with open(os.path.join(self.folder, "processes.jsonl"), "a") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError:
            pass

    def start(self, torch: Any) -> None:
        self._note("started", torch=str(getattr(torch, "__version__", "")))
        for asked in self._asked:
            if asked["needs_torch"]:
                self._try(asked["name"], self._load, asked)
        if not self._running:
            return
        os.register_at_fork(after_in_child=self._leave_fork)
        try:
            self._count_steps(torch)
        except Exception:
            self._problem("steps")

    def start_without_torch(self) -> None:
        for asked in self._asked:
            if not asked["needs_torch"]:
                self._try(asked["name"], self._load, asked)

    def _load(self, asked: dict[str, Any]) -> None:
        name, file = asked["name"], os.path.join(os.path.dirname(os.path.abspath(__file__)), asked["file"])
        folder = os.path.join(self.folder, name, self.below) if self.below else os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        in_process = load_file(file, f"aorta_collector_{name}").InProcess(asked["options"], folder, self.rank)
        in_process.active = True
        in_process.start()
        self._running[name] = in_process

    def _leave_fork(self) -> None:
        """A fork of the rank, such as a worker of a data loader, has nothing to tell."""
        for in_process in self._running.values():
            in_process.active = False
        self._running = {}

    # Calls of collectors

    def _try(self, name: str, call: Callable[..., object], *arguments: Any) -> bool:
        may_limit = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
            and signal.getitimer(signal.ITIMER_REAL)[0] == 0
        )
        try:
            if may_limit:
                signal.signal(signal.SIGALRM, _too_long)
                signal.setitimer(signal.ITIMER_REAL, LIMIT)
            try:
                call(*arguments)
            finally:
                if may_limit:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
            return True
        except KeyboardInterrupt:
            raise
        except BaseException:
            self._problem(name)
            return False

    def _problem(self, name: str) -> None:
        number = self._problems[name] = self._problems.get(name, 0) + 1
        if number > _PROBLEMS:
            return
        error = sys.exc_info()[1]
        entry = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc(), "step": self._steps}
        try:
            folder = os.path.join(self.folder, name, self.below) if self.below else os.path.join(self.folder, name)
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, f"{self.stem}.problem"), "a") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError:
            pass

    # Steps

    def _count_steps(self, torch: Any) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._optimizer_stepped)
        modules = torch.nn.modules.module
        self._forward_hooks = [
            modules.register_module_forward_pre_hook(self._enter),
            modules.register_module_forward_hook(self._leave, always_call=True),
        ]

    def _enter(self, module: Any, inputs: Any) -> None:
        self._depth += 1

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self._source <= _FORWARDS:
            self._source = _FORWARDS
            if not sys.modules["torch"].is_grad_enabled():  # else an optimizer will follow
                self._advance(self._steps + 1)

    def _optimizer_stepped(self, optimizer: Any, arguments: Any, given: Any) -> None:
        first = None if self._optimizer is None else self._optimizer()
        if first is None:
            self._optimizer = weakref.ref(optimizer)
        elif first is not optimizer:  # of several, one says when a step is over
            return
        if self._source <= _OPTIMIZER:
            self._take(_OPTIMIZER)
            self._advance(self._steps + 1)

    def _take(self, source: int) -> None:
        self._source = source
        for hook in self._forward_hooks:
            hook.remove()
        self._forward_hooks = []

    def report(self, step: int) -> None:
        if self._source != _REPORTS:
            self._take(_REPORTS)
        elif step < self._last:  # it counts anew
            self._before = self._steps
        self._last = step
        self._advance(self._before + step)

    def _advance(self, number: int) -> None:
        if number <= self._steps:
            return
        self._steps = number
        for name, in_process in list(self._running.items()):
            if not self._try(name, in_process.step, number) and self._problems[name] >= _PROBLEMS:
                self._stop(name, in_process)

    def _stop(self, name: str, in_process: Any) -> None:
        self._running.pop(name, None)
        self._try(name, in_process.stop)
        in_process.active = False

    def stop(self) -> None:
        if self._running:
            self._note("ended", steps=self._steps)
        for name, in_process in list(self._running.items()):
            self._stop(name, in_process)


def load_file(path: str, name: str) -> Any:
    """A module from a file, which is in no package, and not in ``sys.modules``: it defines no dataclass."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: Of this process.
current: Collecting | None = None


def begin(
    text: str, after_import: Callable[[str, Callable[[Any], object]], object], rank: int | None, attempt: int
) -> None:
    """Start them as soon as torch is imported; ``after_import`` calls a function with a module then."""
    global current
    current = collecting = Collecting(text, rank, attempt)

    def start(torch: Any) -> None:
        try:
            collecting.start(torch)
        except Exception:
            collecting._problem("start")

    atexit.register(collecting.stop)
    collecting.start_without_torch()
    after_import("torch", start)


def report(step: int) -> None:
    if current is not None:
        current.report(step)


def stop() -> None:
    if current is not None:
        current.stop()
