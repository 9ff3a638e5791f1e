"""Messages of libraries whose process failed because of another rank."""

from __future__ import annotations

import re

#: The peer is gone: gloo, TCPStore, NCCL and RCCL.
_PEER_LOST = re.compile(
    r"Connection (closed|reset|refused|was likely closed)|Broken pipe|Read error|Socket closed|remote process exited"
    r"|got 0 bytes|ncclRemoteError|NCCL communicator was aborted|remote process has (exited|failed)",
    re.IGNORECASE,
)

#: The peer does not come: gloo, TCPStore, and the watchdog of ProcessGroupNCCL.
_GAVE_UP = re.compile(
    r"Timed out waiting|Application timeout caused pair closure|wait timeout after \d+ms|timed out in monitoredBarrier"
    r"|failed to pass monitoredBarrier|Watchdog caught collective operation timeout"
    r"|ran for \d+ milliseconds before timing out|has timed out after \d+\w* while trying to connect"
    r"|Timed out after \d+ seconds waiting for clients",
    re.IGNORECASE,
)


def has_lost_a_peer(text: str) -> bool:
    """Whether it says that the connection to another rank is lost."""
    return _PEER_LOST.search(text) is not None


def gave_up_waiting(text: str) -> bool:
    """Whether it says that another rank did not come in time."""
    return _GAVE_UP.search(text) is not None


def complaint_in(log: str) -> str | None:
    """The last line of a log that says the one or the other."""
    lines = [line.strip() for line in log.splitlines() if has_lost_a_peer(line) or gave_up_waiting(line)]
    return lines[-1][:1000] if lines else None
