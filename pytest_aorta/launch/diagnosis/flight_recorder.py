"""torch's flight recorder: which collectives a rank has entered, read from another process while it hangs.

torch serves it from a thread without the GIL, which answers also in a collective and in C code. Where torch has no such
server, or a backend no recorder, there is no answer. ``TORCH_FR_BUFFER_SIZE`` sets how many collectives are remembered.
"""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from pytest_aorta.launch.diagnosis.trial_evidence import LastCollective

#: Seconds that a rank has for its answer.
_PATIENCE = 1.0

#: Names of the recorder in torch's server: of all backends, and what a torch has that knows that of NCCL only.
_HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")


def request_trace(pid: int, sockets: Path) -> dict[str, Any] | None:
    """The trace of a rank of this host; ``None`` without an answer in time."""
    for handler in _HANDLERS:
        connection = _Connection(socket_path(pid, sockets))
        try:
            connection.request("POST", f"/handler/{handler}")
            response = connection.getresponse()
            content = response.read()
            if response.status == http.client.NOT_FOUND:
                continue
            answer = json.loads(content)
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return answer if isinstance(answer, dict) else None
    return None


def last_collective(trace: dict[str, Any]) -> LastCollective | None:
    """The last collective of a trace."""
    entries = [entry for entry in trace.get("entries") or () if not entry.get("is_p2p")]
    if not entries:
        return None
    last = max(entries, key=lambda entry: int(entry.get("record_id", 0)))
    group = (last.get("process_group") or ("", ""))[1]
    return {
        "name": str(last.get("profiling_name")),
        "number": int(last.get("collective_seq_id", 0)),
        "group": str(group),
    }


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_PATIENCE)
        self.sock.connect(str(self._path))


def socket_path(pid: int, sockets: Path) -> Path:
    """Where a rank serves its recorder: not below the results, whose paths may be longer than a socket's may be."""
    return sockets / f"{pid}"
