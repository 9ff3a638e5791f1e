"""What this process has imported, by the installed distribution that it came from."""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts
    from pytest_aorta.probe.packages import Installed

# Of names that belong to no distribution, a workload has a few; a program that makes modules up may have thousands.
_MOST_OTHERS = 100


def imported_modules(installed: Installed) -> Facts:
    """``count`` of all, ``stdlib`` of the standard library's, and the others by where they came from.

    ``by_distribution``: ``version`` and number of ``modules`` of each distribution that something has been imported
    from, by name. ``other``: number of ``modules`` and ``path`` of every top-level name that lies outside of the
    installed distributions; ``distributions`` names those that claim the name nevertheless: an editable installation,
    a file that hides one, or a namespace that several share.
    """
    counts = Counter(name.partition(".")[0] for name in list(sys.modules))
    by_distribution: Facts = {}
    other: Facts = {}
    stdlib = 0
    for name, modules in counts.items():
        if name in sys.stdlib_module_names:
            stdlib += modules
            continue
        path = file_of(sys.modules.get(name))
        owners = installed.owners.get(name, ())
        if len(owners) == 1 and path is not None and path.startswith(owners[0].folder + os.sep):
            owner = owners[0].name
            entry = by_distribution.setdefault(owner, {"version": installed.versions.get(owner), "modules": 0})
            entry["modules"] += modules
        elif len(other) < _MOST_OTHERS:
            other[name] = {"modules": modules, "path": path}
            if owners:
                other[name]["distributions"] = sorted({owner.name for owner in owners})
    return {
        "count": counts.total(),
        "stdlib": stdlib,
        "by_distribution": dict(sorted(by_distribution.items())),
        "other": dict(sorted(other.items())),
    }


def file_of(module: object) -> str | None:
    """The file of a module, the folder of a namespace; ``None`` without one, and for what is no module."""
    if not isinstance(module, ModuleType):
        return None
    # Past the module's own __getattr__: a lazy module would be loaded by the question.
    attributes = object.__getattribute__(module, "__dict__")
    file = attributes.get("__file__")
    if isinstance(file, str):
        return file
    with suppress(Exception):  # whatever a module has put there
        folder = next(iter(attributes["__path__"]))
        return folder if isinstance(folder, str) else None
    return None
