"""xdist's schedulers of whole groups, for trials: an item that has killed its worker is not run again.

xdist 3.8 gives the rest of a dead worker's group to another one, and with it the item that the worker has died of: the
next worker dies as well, until none may be started any more. ``--dist load`` and ``worksteal`` do not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

#: Names in ``xdist.scheduler``.
_OF_MODE = {"loadscope": "LoadScopeScheduling", "loadfile": "LoadFileScheduling", "loadgroup": "LoadGroupScheduling"}


class _OnlyOnce:
    """Before the class of a scheduler, which calls what was given to a worker ``assigned_work``."""

    assigned_work: dict[Any, dict[str, dict[str, bool]]]

    def remove_node(self, node: Any) -> str | None:
        """Forget a worker; returns the item that it has died of, ``None`` where it had done all of its items."""
        pending = (
            (group, nodeid)
            for group in self.assigned_work[node].values()
            for nodeid, is_done in group.items()
            if not is_done
        )
        group, lost = next(pending, ({}, None))
        if lost is not None:
            group[lost] = True
        super().remove_node(node)  # type: ignore[misc]
        return lost


def group_scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler for ``--dist``; ``None`` for a mode without groups."""
    name = _OF_MODE.get(config.getoption("dist"))
    if name is None:
        return None
    of_xdist: type[Any] = getattr(importlib.import_module("xdist.scheduler"), name)
    return type(name, (_OnlyOnce, of_xdist), {})(config, log)
