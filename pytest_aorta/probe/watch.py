"""Variables that are watched while a trial runs: what could read them, and whether other programs could."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_aorta.probe.child_processes import Children, children_now, had_children_since
from pytest_aorta.probe.named_variables import PATIENCE, named_variables

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts
    from pytest_aorta.probe.libraries import MappedBefore
    from pytest_aorta.probe.named_variables import ImportedBefore

#: Of the time that a trial has left, the share that a search may take.
_SHARE = 0.25


@dataclass
class Watch:
    """Variables, and the state of the process before the workload's code ran.

    Attributes:
        names: of the variables.
        children: at that time.
        had_children: whether there have been any in an import before that.
        seconds: that the search may take.
    """

    names: Collection[str]
    children: Children
    had_children: bool = False
    seconds: float = PATIENCE

    @classmethod
    def begin(cls, names: Collection[str], had_children: bool = False) -> Watch:
        """From now on."""
        return cls(names, children_now(), had_children)

    def limit(self, timeout: float | None, stall_timeout: float | None, spent: float) -> None:
        """Leave most of what is left until the deadline, or until a stall would be noticed, to the cleanup. Seconds."""
        left = [] if timeout is None else [timeout - spent]
        left += [] if stall_timeout is None else [stall_timeout]
        self.seconds = min([PATIENCE, *(seconds * _SHARE for seconds in left)])

    def look(self, mapped: MappedBefore | None, imported: ImportedBefore | None) -> Facts:
        """What ``named_variables`` finds now; ``subprocesses``: whether the process has had child processes."""
        subprocesses = self.had_children or had_children_since(self.children)
        return {**named_variables(self.names, mapped, imported, self.seconds), "subprocesses": subprocesses}
