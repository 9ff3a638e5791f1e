"""What a trial imports from installed packages, and importing it once in the zygote for the trials that follow."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.runtime.process_tree import open_gpu_devices, reasons_against_forking
from pytest_aorta.trials.loading import INSTALLED
from pytest_aorta.trials.records import Send
from pytest_aorta.trials.seeding import GENERATORS, ProcessSeeds, generator_state

#: torch keeps a folder below TMPDIR in it, another one in every trial, and computes it again where it is missing.
_MEMO = "TORCHINDUCTOR_CACHE_DIR"


def import_in_advance(modules: Iterable[str], cores: Sequence[int] | None = None) -> None:
    """Import modules in order, on the ``cores`` that the trials will have: libraries count them when they are loaded.

    Raises:
        ImportError: it starts with the name of the module whose import failed, printed, or made forks unsafe.
    """
    before, had_memo = os.sched_getaffinity(0), _MEMO in os.environ
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        for name in modules:
            said = _output()
            try:
                importlib.import_module(name)
            except BaseException as error:
                described = describe_exception(error)
                raise _refused(name, f"raises {described['type']}: {described['message']}") from error
            if reasons := reasons_against_forking():
                raise _refused(name, ", ".join(reasons))
            if _output() != said:
                raise _refused(name, "prints")
    finally:
        os.sched_setaffinity(0, before)
        if not had_memo:
            os.environ.pop(_MEMO, None)


def _refused(module: str, why: str) -> ImportError:
    return ImportError(f"{module}: its import in advance {why}")


class LearnedImports(importlib.abc.MetaPathFinder):
    """Reports each import from site-packages that is not part of another one, in order.

    It ends with the first one that could not have come before the trial with the same effect, or with the trial's
    ``run()``. Imports of the standard library and of the workload's own files are left to the trial.
    """

    def __init__(self, seeds: ProcessSeeds, send: Send) -> None:
        self._seeds = seeds
        self._send = send
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._over = self._importing = False
        self._own: set[str] = set()
        sys.meta_path.insert(0, self)
        self._remember()

    def move_here(self) -> None:
        """Watch this process, a fork of the one that it was made in."""
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._remember()

    def end(self, note: str | None = None) -> None:
        """Watch no longer, and say why if there is a reason."""
        if not self._over:
            self._over = True
            self._expected.clear()
            self._modules.clear()
            self._tell({"type": "imports_over", "note": note})

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the other finders; with a loader that reports, where it leads into a distribution."""
        top, elsewhere = fullname.partition(".")[0], threading.get_ident() != self._thread
        if self._over or top in sys.stdlib_module_names or os.getpid() != self._process:
            return None
        if self._importing and not elsewhere:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        found = (finder.find_spec(fullname, path, target) for finder in finders)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None:
            return None
        file = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
        is_installed = any(folder in INSTALLED for folder in file.split(os.sep))
        if is_installed and elsewhere:
            self.end(f"{fullname}: a thread imported it")
        elif is_installed and spec.origin is not None and hasattr(spec.loader, "exec_module"):
            self._watch(spec.name, spec.loader)
        else:  # the workload's own, or a namespace, which runs no code
            self._own.add(fullname)
        return spec

    def _watch(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = execute
            if not (self._over or self._importing) and (changed := self._changed(name)) is not None:
                self.end(f"{name}: {changed} had been changed before it was imported")
            if self._over or self._importing:
                execute(module)
                return
            before = _state(name)
            missing = {it for it in GENERATORS if it not in sys.modules or it == name}
            self._importing = True
            try:
                execute(module)
            except BaseException as error:
                self.end(f"{name}: its import raised {type(error).__name__}")
                raise
            finally:
                self._importing = False
            self._remember()
            drawn = (it for it in sorted(missing & sys.modules.keys()) if not self._seeds.is_fresh(it))
            left = _difference(before, self._expected) or next((f"random numbers of {it}" for it in drawn), None)
            if left is not None:
                self.end(f"{name}: its import changes {left}")
            else:
                self._tell({"type": "imported", "module": name})

        loader.exec_module = exec_module

    def _remember(self) -> None:
        self._expected = _state()
        self._modules = dict(sys.modules)

    def _changed(self, importing: str) -> str | None:
        """What an import could see that is not as it was after the last one, or when the trial began."""
        own = {name: value for name, value in self._expected.items() if not name.startswith(("random", "the output"))}
        if (changed := _difference(own, _state(importing))) is not None:
            return changed
        replaced = [name for name, module in self._modules.items() if sys.modules.get(name, self) is not module]
        new = sys.modules.keys() - self._modules.keys() - self._own - {importing}
        others = [name for name in new if name.partition(".")[0] not in sys.stdlib_module_names]
        return next((f"sys.modules[{name!r}]" for name in [*replaced, *others]), None)

    def _tell(self, event: Any) -> None:
        with contextlib.suppress(OSError):  # the workload has closed the channel
            self._send(event)


def _state(importing: str | None = None) -> dict[str, Any]:
    """What an import could see and change, by names for messages; what is ``importing`` now does not count."""
    loaded = {name: module for name, module in sys.modules.items() if name != importing}
    state: dict[str, Any] = {
        "os.environ": {name: value for name, value in os.environ.items() if name != _MEMO},
        "sys.path": list(sys.path),
        "sys.argv": sys.argv[1:],  # ``python -m`` changes the first one when it has found the module
        "the working directory": _answer(os.getcwd),
        "the limit of recursion": sys.getrecursionlimit(),
        "the handlers of signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "the handlers of logging": [logging.root.level, logging.root.manager.disable, *logging.root.handlers],
        "the open devices": open_gpu_devices(),
        "the output": _output(),
        **{f"random numbers of {name}": generator_state(name) for name in GENERATORS if name in loaded},
    }
    if (torch := loaded.get("torch")) is not None:
        names = ("get_default_dtype", "is_grad_enabled", "are_deterministic_algorithms_enabled")
        state["settings of torch"] = _answer(lambda: [getattr(torch, name)() for name in names])
    return state


def _output() -> Any:
    """Bytes in the files that standard output and standard error are; nothing is known of pipes."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # replaced or closed by the workload
            stream.flush()
    return _answer(lambda: [os.fstat(number).st_size for number in (1, 2)])


def _answer(question: Callable[[], Any]) -> Any:
    """``None`` where there is none, whatever the workload has done to it."""
    try:
        return question()
    except Exception:
        return None


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """The first name whose value is another one; names that only one of them has do not count."""
    return next((name for name, value in before.items() if after.get(name, value) != value), None)
