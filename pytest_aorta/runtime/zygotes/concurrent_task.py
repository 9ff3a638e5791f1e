"""The parent's side of a task of a zygote that runs several at the same time."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, cast

from pytest_aorta.runtime.zygotes.channel import Channel
from pytest_aorta.runtime.zygotes.server import child_task
from pytest_aorta.runtime.zygotes.task import Task
from pytest_aorta.runtime.zygotes.task_messages import ForkReport, ServerOrder, TaskEnd
from pytest_aorta.runtime.zygotes.zygote import Zygote
from pytest_aorta.runtime.zygotes.zygote_error import ZygoteError

#: Seconds that a zygote may take to fork, which is all that it does.
FORK_TIMEOUT = 60.0


def start_task(
    zygote: Zygote, payload: Any, *, cores: Sequence[int] | None = None, descriptors: Sequence[int] = ()
) -> Task:
    """Fork a child of a zygote that is ``concurrent``, and hand it a task; from any thread. It gives no stacks.

    Args:
        zygote: it is ready.
        payload: JSON value for the task's function.
        cores: cores that the child may run on; ``None`` for those of the zygote.
        descriptors: open files that the child keeps as long as it lives, locked ones for instance.

    Raises:
        ZygoteError: the zygote is gone, or cannot fork.
        OSError: the task or its descriptors cannot be sent.
    """
    channel, theirs = Channel.pair()
    fate, its = Channel.pair()
    zygote.order({"op": "fork"}, [theirs.fileno(), its.fileno()])
    theirs.close()
    its.close()
    owner = _Owner(zygote, fate)
    try:
        pid = owner.forked()
        channel.send(child_task(payload, None, None, None, cores, descriptors), descriptors)
    except BaseException:
        channel.close()
        fate.close()  # which ends the child, if there is one
        raise
    return Task(owner, channel, pid)


class _Owner:
    """Orders a task's end, and learns its fate, both over one channel that is the task's alone."""

    def __init__(self, zygote: Zygote, control: Channel) -> None:
        self.zygote = zygote
        self.control = control

    def forked(self) -> int:
        """The pid of the child, once it was forked."""
        if not self.control.poll(FORK_TIMEOUT):
            raise ZygoteError(f"the zygote has not forked in {FORK_TIMEOUT:g} s\n{self.zygote.output()}".rstrip())
        report = cast("ForkReport | None", self.control.receive())
        if report is None:
            raise self.zygote.death()
        if "error" in report:
            raise ZygoteError(f"the zygote cannot fork: {report['error']}")
        return report["pid"]

    def next_report(self) -> TaskEnd:
        """The end of the task."""
        try:
            report = cast("TaskEnd | None", self.control.receive())
            if report is None:
                raise self.zygote.death()
            return report
        finally:
            self.control.close()

    def order(self, order: ServerOrder) -> None:
        """Send an order to end the task; that it has ended is noticed elsewhere."""
        with contextlib.suppress(OSError):
            self.control.send(order)
