"""The children of a process that serves tasks: which have ended, and which of them belong to the running task.

Orphans fall to the closest subreaper above them that still lives: those of a task to the process that serves it, and
those of a branch that was killed to the zygote, where they meet the orphans of the zygote's own task. The tag in
their environment tells them apart; only what was started with an environment of its own making counts as the zygote's.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from pytest_aorta.runtime.zygotes import process_tags, process_tree
from pytest_aorta.runtime.zygotes.channel import Channel
from pytest_aorta.runtime.zygotes.task_messages import BranchFate

if TYPE_CHECKING:
    from resource import struct_rusage


class ServerChildren:
    """At most one running task, at most one child standing by; any number of branches, in a zygote itself.

    Attributes:
        standby: the child that the next task will run in.
        running: the child that runs a task.
        branches: tags of the branches, and the channels that report their fate, by pid.
        ended: exit status and resources of children that have ended and are still of interest, by pid.
        stuck: processes that outlived SIGKILL; they are not waited for any more.
    """

    def __init__(self) -> None:
        self.standby: int | None = None
        self.running: int | None = None
        self.branches: dict[int, tuple[str, Channel]] = {}
        self.ended: dict[int, tuple[int, struct_rusage]] = {}
        self.stuck: set[int] = set()

    def reap(self) -> None:
        """Collect every child that has ended."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.ended[pid] = (os.waitstatus_to_exitcode(status), usage)
            self.stuck.discard(pid)

    def tend(self) -> None:
        """Collect every child that has ended; end what branches among them have left, and report their fate."""
        self.reap()
        for pid in self.branches.keys() & self.ended.keys():
            tag, fate = self.branches[pid]
            returncode, _ = self.ended.pop(pid)
            if returncode != 0:  # it has not done so itself
                process_tree.end_all(lambda tag=tag: process_tags.tagged_processes(tag), self.reap, grace=0)  # type: ignore[misc]
            del self.branches[pid]
            if self.running is None:  # then what has no tag can only be the branch's
                process_tree.end_all(self.task_members, self.reap, grace=0)
            report_fate(fate, {"returncode": returncode})

    def task_roots(self) -> list[int]:
        """The running task's process and every orphan that was adopted from it."""
        others = {self.standby, *self.branches, *self.stuck}
        roots = [pid for pid in process_tree.children_of_self() if pid not in others]
        if of_branches := [tag for tag, _ in self.branches.values()]:
            roots = [pid for pid in roots if pid == self.running or not process_tags.has_tag(pid, *of_branches)]
        return roots

    def task_members(self) -> list[int]:
        """The running task's processes, all of them."""
        return process_tree.tree(self.task_roots())

    def forget_task(self, alive: list[int]) -> None:
        """The running task is over; what is still ``alive`` will not be waited for."""
        self.stuck.update(alive)
        self.running = None
        kept = {self.standby, *self.branches}
        self.ended = {pid: end for pid, end in self.ended.items() if pid in kept}


def report_fate(fate: Channel, message: BranchFate) -> None:
    """Report what became of a branch to the parent's side of it."""
    with contextlib.suppress(OSError):
        fate.send(message)
    fate.close()
