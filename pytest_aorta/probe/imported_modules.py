"""What this process has imported, by the installed distribution that it came from."""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts
    from pytest_aorta.probe.packages import Installed

# Of names that belong to no distribution, a workload has a few; a program that makes modules up may have thousands.
_MOST_OTHERS = 100


@dataclass(frozen=True)
class ModuleCount:
    """``sys.modules`` as it was counted before a fork.

    Attributes:
        facts: what ``imported_modules()`` gave.
        size: number of modules.
        last: the name that was imported last.
    """

    facts: Facts
    size: int
    last: str


def count_modules(installed: Installed) -> ModuleCount:
    """Count what is imported now, for the forks of this process."""
    return ModuleCount(imported_modules(installed), len(sys.modules), next(reversed(sys.modules)))


def imported_modules(installed: Installed, before: ModuleCount | None = None) -> Facts:
    """``count`` of all, ``stdlib`` of the standard library's, and the others by where they came from.

    ``by_distribution``: ``version`` and number of ``modules`` of each distribution that something has been imported
    from, by name. ``other``: number of ``modules`` and ``path`` of every top-level name that lies outside of the
    installed distributions; ``distributions`` names those that claim the name nevertheless: an editable installation,
    a file that hides one, or a namespace that several share.

    With a count from ``before``, only what has been imported since is looked at: in a fork, each module that is
    touched costs a copy of its page of memory.
    """
    names = None if before is None else imported_since(before)
    if before is None or names is None:
        names = list(sys.modules)
        facts: Facts = {"count": 0, "stdlib": 0, "by_distribution": {}, "other": {}}
    else:
        facts = before.facts
    if not names:
        return facts
    by_distribution, other = dict(facts["by_distribution"]), dict(facts["other"])
    stdlib = facts["stdlib"]
    for name, modules in Counter(name.partition(".")[0] for name in names).items():
        if name in sys.stdlib_module_names:
            stdlib += modules
            continue
        path = file_of(sys.modules.get(name))
        owners = installed.owners.get(name, ())
        if len(owners) == 1 and path is not None and path.startswith(owners[0].folder + os.sep):
            owner = owners[0].name
            entry = by_distribution.get(owner, {"version": installed.versions.get(owner), "modules": 0})
            by_distribution[owner] = {**entry, "modules": entry["modules"] + modules}
        elif name in other:
            other[name] = {**other[name], "modules": other[name]["modules"] + modules}
        elif len(other) < _MOST_OTHERS:
            other[name] = {"modules": modules, "path": path}
            if owners:
                other[name]["distributions"] = sorted({owner.name for owner in owners})
    return {
        "count": facts["count"] + len(names),
        "stdlib": stdlib,
        "by_distribution": dict(sorted(by_distribution.items())),
        "other": dict(sorted(other.items())),
    }


def imported_since(before: ModuleCount) -> list[str] | None:
    """Names that ``sys.modules``, which keeps their order, has got since; ``None`` where some have gone as well."""
    added = len(sys.modules) - before.size
    if added < 0:
        return None
    names = list(islice(reversed(sys.modules), added + 1))
    return names if names.pop() == before.last else None


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
