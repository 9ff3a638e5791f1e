"""The zygote process: prepare once, then serve tasks.

Runs as ``python -c BOOTSTRAP <fd>``, or behind a launcher prefix by ``prefix_entry.py``. It starts no threads, so its
forks are safe; it is a child subreaper, so whatever escapes from a task becomes its child.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
from typing import cast

from pytest_aorta._version import __version__
from pytest_aorta.common.exception_text import describe_exception
from pytest_aorta.common.import_target import import_target
from pytest_aorta.runtime.zygotes import process_tree
from pytest_aorta.runtime.zygotes.channel import Channel
from pytest_aorta.runtime.zygotes.concurrent_server import ConcurrentServer
from pytest_aorta.runtime.zygotes.fork_safety import reasons_against_forking
from pytest_aorta.runtime.zygotes.preparation import prepare
from pytest_aorta.runtime.zygotes.task_messages import PrepareOrder, StartReport
from pytest_aorta.runtime.zygotes.task_server import TaskServer


def main(fd: int, parent: int) -> None:
    """Serve until the other end of ``fd`` closes; never returns."""
    # Until the loop below watches the channel, only the kernel knows that the parent has gone.
    beside = os.getppid() == parent  # no launcher stays in between
    if beside:
        process_tree.die_with_parent(parent)
    process_tree.become_subreaper()
    control = Channel.from_fd(fd)
    received = control.receive()
    if received is None:
        os._exit(1)
    order = cast(PrepareOrder, received)
    owner = control.receive_fd() if order["owner"] else None
    if not beside:
        control.kill_when_closed(True)
    sys.path.extend(path for path in order["sys_path"] if path not in sys.path)
    faulthandler.enable()  # the stack of a crash while importing goes where the zygote's output goes
    stacks = os.dup(2)
    faulthandler.register(process_tree.STACK_SIGNAL, file=stacks, all_threads=True)  # ... and that of a hang, too
    _report(control, {"type": "preparing"})
    try:
        if not order["fresh"]:
            info = prepare(order, control.send)
            against = reasons_against_forking()
        else:
            info, against = {}, []
    except BaseException as error:
        _report(control, {"type": "failed", "error": describe_exception(error)})
        os._exit(0)
    faulthandler.unregister(process_tree.STACK_SIGNAL)  # tasks have files of their own, or give no stacks
    os.close(stacks)
    gc.collect()
    gc.freeze()  # the collector would otherwise touch, and so copy, every page of a forked child
    # Before this process reports that it is ready: the thread that has started it may end then, which the kernel would
    # take for the parent's end.
    process_tree.die_with_parent(None)
    if not beside:
        control.kill_when_closed(False)
    _report(control, {"type": "ready", "info": info, "against_forking": against, "version": __version__})
    if against:
        os._exit(0)
    run = import_target(order["run"]) if not order["fresh"] else None
    server = ConcurrentServer if order["concurrent"] else TaskServer
    server(control, order, run, parent=parent if beside else None, owner=owner).serve()


def _report(control: Channel, report: StartReport) -> None:
    control.send(report)
