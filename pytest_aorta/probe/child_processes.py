"""Whether a process has started others."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass


@dataclass(frozen=True)
class Children:
    """The child processes of this one at a moment.

    Attributes:
        ended: page faults of all that have ended and were waited for: every process has some.
        running: ids of the others.
    """

    ended: int
    running: frozenset[int]


def children_now() -> Children:
    """Those of this process. Forks begin without any."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Children(usage.ru_minflt + usage.ru_majflt, frozenset(_running()))


def had_children_since(before: Children) -> bool:
    """Whether a child has ended, or been started, since."""
    now = children_now()
    return now.ended != before.ended or not now.running <= before.running


def _running() -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir("/proc/self/task")
    except FileNotFoundError:  # not Linux
        return found
    for thread in threads:
        try:
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except FileNotFoundError:  # a thread that has ended, or a kernel without this file
            continue
    return found
