"""Preparing a process for tasks: in a zygote, or in the child of one that prepares nothing itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pytest_aorta.common.import_target import import_target
from pytest_aorta.runtime.zygotes.task_messages import PrepareOrder


def prepare(order: PrepareOrder, report: Callable[[Mapping[str, Any]], object]) -> Any:
    """Load, then prepare; what ``ZygoteSpec.prepare`` returns. ``report`` receives when the loading begins and ends.

    Our own imports are not part of it: the parent limits its time.
    """
    prepare_it = import_target(order["prepare"])
    if order["load"] is not None:
        load = import_target(order["load"])
        report({"type": "loading"})
        start = time.monotonic()
        load(order["argument"])
        report({"type": "loaded", "sec": time.monotonic() - start})
    return prepare_it(order["argument"])
