"""Preparing a branch further than its zygote, and finding out whether it may still be forked then."""

from __future__ import annotations

import contextlib
import gc
import os
from typing import Any

from pytest_aorta.common.exception_text import describe_exception
from pytest_aorta.common.import_target import import_target
from pytest_aorta.runtime.zygotes import process_tree
from pytest_aorta.runtime.zygotes.channel import Channel
from pytest_aorta.runtime.zygotes.fork_safety import reasons_against_forking
from pytest_aorta.runtime.zygotes.task_messages import ExtensionReport


def extend(control: Channel, function: str | None, extension: Any) -> None:
    """Call ``function`` with ``extension`` and report; ends this process where it must not be forked any more.

    To be called before this process serves: it has no children of its own then, and no handlers of signals.
    """
    report: ExtensionReport
    try:
        assert function is not None
        refused = import_target(function)(extension)
        report = {"type": "extended", "refused": refused, "against_forking": reasons_against_branching()}
    except BaseException as error:
        report = {"type": "failed", "error": describe_exception(error)}
    gc.collect()
    gc.freeze()  # as in a zygote
    with contextlib.suppress(OSError):
        control.send(report)
    if report["type"] == "failed" or report["refused"] or report["against_forking"]:
        os._exit(1)  # a failure, so that the zygote ends what this process has started


def reasons_against_branching() -> list[str]:
    """Why this branch must not be forked, as short phrases: threads, a GPU, processes, handlers that fail in a fork."""
    reasons = reasons_against_forking()
    if children := process_tree.children_of_self():
        reasons.append(f"started {', '.join(process_tree.describe(pid) for pid in children)}")
    elif not reasons and (code := _forked_exit()) != 0:
        reasons.append(f"has left a handler at whose hands a forked process ends with status {code}")
    return reasons


def _forked_exit() -> int:
    """How a forked process ends that does nothing: handlers of ``os.register_at_fork`` run in it."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
