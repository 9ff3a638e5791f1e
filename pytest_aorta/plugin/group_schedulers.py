"""xdist's schedulers of whole groups, for trials: an item that has killed its worker is not run again.

xdist 3.8 gives the rest of a dead worker's group to another one, and with it the item that the worker has died of: the
next worker dies as well, until none may be started any more. ``--dist load`` and ``worksteal`` do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadFileScheduling, LoadGroupScheduling, LoadScopeScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.workermanage import WorkerController


class _OnlyOnce:
    """Before the class of a scheduler, which calls what was given to a worker ``assigned_work``."""

    assigned_work: dict[Any, dict[str, dict[str, bool]]]

    def remove_node(self, node: WorkerController) -> str | None:
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


class _Scopes(_OnlyOnce, LoadScopeScheduling):
    pass


class _Files(_OnlyOnce, LoadFileScheduling):
    pass


class _Groups(_OnlyOnce, LoadGroupScheduling):
    pass


_OF_MODE = {"loadscope": _Scopes, "loadfile": _Files, "loadgroup": _Groups}


def group_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """The scheduler for ``--dist``; ``None`` for a mode without groups."""
    kind = _OF_MODE.get(config.getoption("dist"))
    return None if kind is None else kind(config, log)
