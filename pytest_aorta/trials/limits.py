"""Limits of a trial: time, memory, size of its logs."""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds between SIGTERM and SIGKILL for a trial whose deadline has passed.
GRACE = 5.0

#: Bytes that are kept of each of a trial's logs.
LOG_LIMIT = 2**26


@dataclass(frozen=True)
class Limits:
    """Limits of a trial.

    Attributes:
        timeout: deadline in seconds, for the import and again from the constructor on; ``None`` for the workload's own.
        stall_timeout: seconds without progress in ``setup()`` or ``run()`` after which the trial is ended.
        grace: seconds between SIGTERM and SIGKILL when it is ended.
        memory: bytes that each of its processes may allocate.
        log_limit: bytes that are kept of each of its logs.
    """

    timeout: float | None = None
    stall_timeout: float | None = None
    grace: float = GRACE
    memory: int | None = None
    log_limit: int = LOG_LIMIT
