"""Watches what a trial imports from installed distributions, and whether its zygote could have imported it before."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from pytest_aorta.launch.child.visible_state import State, difference, functions, lasting_state, visible_state
from pytest_aorta.probe.packages import Installed
from pytest_aorta.trials.events import Send
from pytest_aorta.trials.seeding import GENERATORS, ProcessSeeds


class LazyImports(importlib.abc.MetaPathFinder):
    """Reports each import from an installed distribution that is not part of another one, in order.

    It ends with the first one that could not have come before the trial with the same effect, or with the trial's
    ``run()``. Imports of the standard library and of the workload's own files are left to the trial; those from
    installed distributions that they make are reported.
    """

    def __init__(self, installed: Installed, seeds: ProcessSeeds, send: Send) -> None:
        self._owners = installed.owners
        self._seeds = seeds
        self._send = send
        self._place = os.getpid(), threading.get_ident()
        self._over = False
        self._importing = False
        #: Modules of the workload itself, as far as they were imported since.
        self._own: set[str] = set()
        self._remember()

    def start(self) -> None:
        """Watch from now on."""
        sys.meta_path.insert(0, self)
        self._expected["sys.meta_path"] = list(sys.meta_path)

    def end(self, note: str | None = None) -> None:
        """Watch no longer, and say why if there is a reason."""
        if not self._over:
            self._over = True
            self._tell({"type": "imports_over", "note": note})

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the other finders; with a loader that reports, where it leads into a distribution."""
        if self._over or fullname.partition(".")[0] in sys.stdlib_module_names or os.getpid() != self._place[0]:
            return None
        here = threading.get_ident() == self._place[1]
        if here and self._importing:
            return None
        spec = self._of_others(fullname, path, target)
        if spec is None:
            return None
        if not self._is_installed(spec):
            self._own.add(fullname)
        elif not here:
            self.end(f"{fullname}: a thread imported it")
        elif hasattr(spec.loader, "exec_module") and spec.origin is not None:
            self._watch(spec, spec.loader)
        else:  # a namespace, which runs no code
            self._own.add(fullname)
        return spec

    def _of_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(fullname, path, target)
            if spec is not None:
                found: importlib.machinery.ModuleSpec = spec
                return found
        return None

    def _is_installed(self, spec: importlib.machinery.ModuleSpec) -> bool:
        file = spec.origin if spec.origin is not None else next(iter(spec.submodule_search_locations or ()), "")
        owners = self._owners.get(spec.name.partition(".")[0], ())
        return any(file.startswith(owner.folder + os.sep) for owner in owners)

    def _watch(self, spec: importlib.machinery.ModuleSpec, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = execute
            if self._over or self._importing:
                execute(module)
            else:
                self._execute(spec.name, execute, module)

        loader.exec_module = exec_module

    def _execute(self, name: str, execute: Callable[[ModuleType], object], module: ModuleType) -> None:
        before = self._before(name)
        if before is None:
            execute(module)
            return
        self._importing = True
        try:
            execute(module)
        except BaseException as error:
            self.end(f"{name}: its import raised {type(error).__name__}")
            raise
        finally:
            self._importing = False
        self._after(name, *before)

    def _before(self, name: str) -> tuple[State, set[str]] | None:
        """What the import must leave as it is, and the generators that are not there; ``None`` where it is over."""
        try:
            changed = self._changed(name)
            if changed is None:
                missing = {it for it in GENERATORS if it not in sys.modules or it == name}
                return lasting_state(self._expected, name), missing
            self.end(f"{name}: {changed} had been changed before it was imported")
        except Exception as error:  # whatever the workload has put there must not disturb its import
            self.end(f"{name}: {type(error).__name__} when its surroundings were looked at")
        return None

    def _after(self, name: str, before: State, missing: set[str]) -> None:
        try:
            self._remember()
            left = difference(before, lasting_state(self._expected)) or self._drawn(missing)
            if left is not None:
                self.end(f"{name}: its import changes {left}")
            else:
                self._tell({"type": "imported", "module": name})
        except Exception as error:
            self.end(f"{name}: {type(error).__name__} when its surroundings were looked at")

    def _drawn(self, generators: set[str]) -> str | None:
        """Which of the generators that an import has brought along it has also used."""
        drawn = (it for it in sorted(generators & sys.modules.keys()) if not self._seeds.is_fresh(it))
        return next((f"random numbers of {it}" for it in drawn), None)

    def _remember(self) -> None:
        self._expected: State = visible_state()
        self._functions = functions()
        self._modules = dict(sys.modules)

    def _changed(self, importing: str) -> str | None:
        """What an import could see that is not as it was after the last one, or when the trial began."""
        changed = difference(self._expected, visible_state(importing)) or difference(
            self._functions, functions(importing)
        )
        if changed is not None:
            return changed
        present = sys.modules
        for name, module in self._modules.items():
            if present.get(name, self) is not module:
                return f"sys.modules[{name!r}]"
        for name in present.keys() - self._modules.keys() - self._own - {importing}:
            if name.partition(".")[0] not in sys.stdlib_module_names:
                return f"sys.modules[{name!r}]"
        return None

    def _tell(self, event: Any) -> None:
        with contextlib.suppress(OSError):  # the workload has closed the channel
            self._send(event)
