"""Options as plain data: those of pytest, and those that a workload declares."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from pytest_aorta.registry import Registry

#: ``name``, ``source`` package, what it ``takes``, its ``default`` (``None`` for none) and a ``help`` text.
Entry = dict[str, Any]


def options_of_pytest() -> list[Entry]:
    """In the order of ``pytest --help``, each in its three spellings."""
    from pytest_aorta.registry.types import BUILTIN_SOURCE
    from pytest_aorta.settings import SETTINGS

    return [
        {
            "name": option.flag,
            "source": BUILTIN_SOURCE,
            "metavar": option.metavar,
            "takes": "nothing" if option.is_switch else option.takes,
            "default": option.default or None,
            "repeat": option.repeat,
            "ini": option.ini,
            "variable": option.variable,
            "help": option.help,
        }
        for option in SETTINGS
        if option.scope != "internal"
    ]


def options_of_workload(registry: Registry, name: str) -> list[Entry]:
    """What ``--aorta-config`` takes, of a registered name or of ``FILE.py:CLASS``, which is imported.

    Raises:
        RequestError: there is no such workload, or it cannot be imported.
    """
    from pytest_aorta.registry import WorkloadEntry
    from pytest_aorta.registry.errors import one_line_of
    from pytest_aorta.trials.declared_options import declared_options
    from pytest_aorta.trials.loading import load_class

    if name.endswith(".py"):
        raise RequestError(f"--workload {name}: expected a registered name, or a file and a class, as in {name}:CLASS")
    file, _, cls = name.rpartition(":")
    if file.endswith(".py"):
        entry = WorkloadEntry(cls, f"{Path(file).absolute()}:{cls}", f"file:{Path(file).name}")
    else:
        entry = registry.workload(name)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            declared = declared_options(load_class(entry.target))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may call sys.exit()
        raise RequestError(f"the workload {name} cannot be imported: {one_line_of(error)}") from error
    return [{"source": entry.source_package, **vars(option)} for option in declared]
