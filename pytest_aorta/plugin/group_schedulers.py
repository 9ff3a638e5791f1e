"""xdist's schedulers of whole groups, for trials: an item that has killed its worker is not run again.

xdist 3.8 gives the rest of a dead worker's group to another one, and with it the item that the worker has died of: the
next worker dies as well, until none may be started any more. It also gives away groups that were done, and single items
to a worker that waits for a second one: then the run hangs. ``--dist load`` and ``worksteal`` do none of this.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

#: Names in ``xdist.scheduler``.
_OF_MODE = {"loadscope": "LoadScopeScheduling", "loadfile": "LoadFileScheduling", "loadgroup": "LoadGroupScheduling"}


#: Items that a worker has to know of to run the first of them, as long as more may come.
_PAIR = 2


class _OnlyOnce:
    """Before the class of a scheduler, which calls what was given to a worker ``assigned_work``."""

    assigned_work: dict[Any, dict[str, dict[str, bool]]]
    workqueue: dict[str, dict[str, bool]]

    def schedule(self) -> None:
        """Begin, or give work to a worker that has come in the place of another one."""
        super().schedule()  # type: ignore[misc]
        self._complete_pairs()

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
        groups = self.assigned_work[node]
        for name in [name for name, group in groups.items() if all(group.values())]:
            del groups[name]  # what is left of the groups is given to others
        super().remove_node(node)  # type: ignore[misc]
        self._complete_pairs()
        return lost

    def _complete_pairs(self) -> None:
        """A worker begins an item when it knows the next one: where it has one only, that may be the last event."""
        for node, groups in self.assigned_work.items():
            while self.workqueue and not node.shutting_down and self._pending_of(groups) < _PAIR:  # type: ignore[attr-defined]
                self._assign_work_unit(node)  # type: ignore[attr-defined]


def group_scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler for ``--dist``; ``None`` for a mode without groups."""
    name = _OF_MODE.get(config.getoption("dist"))
    if name is None:
        return None
    of_xdist: type[Any] = getattr(importlib.import_module("xdist.scheduler"), name)
    return type(name, (_OnlyOnce, of_xdist), {})(config, log)
