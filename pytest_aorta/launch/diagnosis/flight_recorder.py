"""torch's flight recorder: which collectives a rank has entered, asked for from outside while it hangs.

torch can serve it from a thread of its own (``_WorkerServer``), which answers also while Python does nothing: in a
collective, in C code, with the GIL held. Where torch has no such server, or a backend no recorder, nothing is told. How
many collectives are remembered is ``TORCH_FR_BUFFER_SIZE``'s business.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Seconds that a rank has for its answer.
_PATIENCE = 1.0


@dataclass(frozen=True)
class LastCollective:
    """The last collective that a rank has entered.

    Attributes:
        name: as the backend calls it, ``gloo:all_reduce``.
        number: of the collectives of its process group, from 1.
        group: description of the process group.
    """

    name: str
    number: int
    group: str

    @property
    def text(self) -> str:
        """For messages."""
        return f"{self.name} number {self.number}" + ("" if self.group == "default_pg" else f" of {self.group}")


def serve_flight_recorder() -> None:
    """In a rank, before it makes a process group: let others ask. Does nothing where torch cannot."""
    try:
        from torch._C._distributed_c10d import _WorkerServer
    except ImportError:
        return
    with contextlib.suppress(RuntimeError, OSError), _quiet_stderr():
        forget(os.getpid())  # what another process of that number has left
        server = _WorkerServer(str(_socket_of(os.getpid())))
        # Its end would wait for its thread, and be told in the rank's log.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def ask(pid: int) -> dict[str, Any] | None:
    """What the flight recorder of a rank of this host holds; ``None`` when it has no answer in time."""
    connection = _Connection(_socket_of(pid))
    try:
        connection.request("POST", "/handler/fr_trace_json")
        answer = json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else None


def forget(pid: int) -> None:
    """The rank has ended; it has left its socket behind."""
    _socket_of(pid).unlink(missing_ok=True)


def last_collective(recorded: dict[str, Any]) -> LastCollective | None:
    """The last one that was entered, of what ``ask`` gave."""
    entries = [entry for entry in recorded.get("entries") or () if not entry.get("is_p2p")]
    if not entries:
        return None
    last = max(entries, key=lambda entry: int(entry.get("record_id", 0)))
    group = (last.get("process_group") or ("", ""))[1]
    return LastCollective(str(last.get("profiling_name")), int(last.get("collective_seq_id", 0)), str(group))


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_PATIENCE)
        self.sock.connect(str(self._path))


def _socket_of(pid: int) -> Path:
    """Not below the results, whose paths may be longer than a socket's may be."""
    return Path(tempfile.gettempdir()) / f"pytest-aorta-{os.getuid()}-rank-{pid}.sock"


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """The server tells that it listens; that is nothing for the log of a workload."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
