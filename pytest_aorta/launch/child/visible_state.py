"""What the import of a module could see of its process, and what else it could change there."""

from __future__ import annotations

import locale
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

from pytest_aorta.runtime.process_tree import open_gpu_devices
from pytest_aorta.trials.seeding import GENERATORS, generator_state

State = dict[str, Any]

#: Modules whose functions and classes workloads replace.
_PATCHED = ("builtins", "os", "sys", "platform", "subprocess", "socket", "torch", "torch.cuda", "numpy")


def visible_state(importing: str | None = None) -> State:
    """What an import could see: by a name for messages, values that can be compared with those of another moment.

    The module that is ``importing`` right now does not count as loaded.
    """

    def ask(name: str, question: Callable[[Any], Any]) -> Any:
        module = sys.modules.get(name)
        return None if module is None or name == importing else question(module)

    return {
        "os.environ": dict(os.environ),
        "sys.path": list(sys.path),
        "sys.argv": list(sys.argv),
        "sys.meta_path": list(sys.meta_path),
        "sys.stdout": sys.stdout,
        "sys.stderr": sys.stderr,
        "sys.excepthook": sys.excepthook,
        "the working directory": _working_directory(),
        "the cores": os.sched_getaffinity(0),
        "the limit of recursion": sys.getrecursionlimit(),
        "the handlers of signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "the locale": locale.setlocale(locale.LC_ALL),
        "the filters of warnings": [*warnings.filters, warnings.showwarning],
        "the start method of multiprocessing": ask("multiprocessing", lambda it: it.get_start_method(True)),
        "numpy.seterr": ask("numpy", lambda it: it.geterr()),
        "settings of torch": ask("torch", _torch_settings),
    }


def functions(importing: str | None = None) -> State:
    """Functions and classes, by identity, of modules in which workloads replace some, and by their full names."""
    loaded = {name: sys.modules[name] for name in _PATCHED if name in sys.modules and name != importing}
    return {
        f"{name}.{attribute}": id(value)
        for name, module in loaded.items()
        for attribute, value in vars(module).items()
        if callable(value)
    }


#: Variables in which a library keeps what it has computed from others, and computes again where they are missing: torch
#: keeps there a folder below TMPDIR, which is another one in every trial.
MEMOS = ("TORCHINDUCTOR_CACHE_DIR",)

#: What of it an import may change: code before an import that comes earlier is not meant to depend on it.
_HARMLESS = ("the filters of warnings", "sys.meta_path", "sys.excepthook")


def lasting_state(visible: State, importing: str | None = None) -> State:
    """What an import must leave as it is: code that came before it would notice, if the import came earlier."""
    generators = [name for name in GENERATORS if name in sys.modules and name != importing]
    return {
        **{name: value for name, value in visible.items() if name not in _HARMLESS and value is not None},
        "os.environ": {name: value for name, value in visible["os.environ"].items() if name not in MEMOS},
        "the handlers of logging": [logging.root.level, logging.root.manager.disable, *logging.root.handlers],
        "the open devices": open_gpu_devices(),
        "the output": [_size(number) for number in (1, 2)],
        **{f"random numbers of {name}": generator_state(name) for name in generators},
    }


def difference(before: State, after: State) -> str | None:
    """The first name whose value is another one; names that only one of them has do not count."""
    return next((name for name, value in before.items() if after.get(name, value) != value), None)


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # removed
        return None


def _torch_settings(torch: Any) -> list[Any]:
    return [
        torch.get_default_dtype(),
        getattr(sys.modules.get("torch.utils._device"), "CURRENT_DEVICE", None),
        torch.is_grad_enabled(),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
    ]


def _size(descriptor: int) -> int | None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # replaced or closed by the workload
            pass
    try:
        return os.fstat(descriptor).st_size
    except OSError:
        return None
