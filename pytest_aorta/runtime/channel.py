"""Messages between processes: JSON mappings, and descriptors, over a connected pair of Unix sockets."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from multiprocessing import connection
from typing import Any

Message = dict[str, Any]

#: First byte of a packet that others follow, and of the last one; none of a message in one packet, which is JSON.
MORE, LAST = b"+", b"."

#: Bytes of one packet. The kernel keeps packets apart, so that one call receives a whole message if it is no larger.
_PACKET = 2**16

#: Bytes of one message; a task that sends more has broken its channel.
MAX_MESSAGE = 2**30

_decode = json.JSONDecoder().raw_decode


class Channel:
    """One end of a connection that carries JSON mappings, and file descriptors where both ends are on one host.

    Several threads may send; one at a time may receive. ``end``: a socket, or the descriptor of one.
    """

    def __init__(self, end: socket.socket | int) -> None:
        # Reentrant, because a task may send from a signal handler.
        self._sending = threading.RLock()
        if isinstance(end, int):
            end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, end)
        self._end = end
        end.setblocking(True)  # user code may have set another default
        #: Received packets of an incomplete message.
        self._begun = bytearray()
        _channels.add(self)

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(left), cls(right)

    def fileno(self) -> int:
        """The descriptor, for ``multiprocessing.connection.wait``; raises ``OSError`` when closed."""
        fd = self._end.fileno()
        if fd < 0:
            raise OSError("the channel is closed")
        return fd

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one mapping and, right behind it, descriptors; raises ``OSError`` when the other end is gone."""
        data = json.dumps(message, default=asdict).encode()
        with self._sending:
            if len(data) <= _PACKET:
                self._end.send(data)
            else:
                last = len(data) - 1
                for start in range(0, len(data), _PACKET - 1):
                    stop = start + _PACKET - 1
                    self._end.send((LAST if stop > last else MORE) + data[start:stop])
            for fd in descriptors:
                self.send_fd(fd)

    def receive(self) -> Message | None:
        """The next mapping, or ``None`` when the other end is gone or has sent something else."""
        try:
            while (message := self.receive_part()) is None:
                pass
        except EOFError:
            return None
        return message

    def receive_part(self, flags: int = 0) -> Message | None:
        """The next mapping, or ``None`` if it is incomplete after the next packet."""
        try:
            data = self._end.recv(_PACKET, flags)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # It has gone without reading all that it was sent. The kernel says so once, before what it had sent itself.
            return self.receive_part(flags)
        except OSError:
            raise EOFError from None
        if not data:
            raise EOFError
        try:
            if data[:1] in (MORE, LAST):
                self._begun += data[1:]
                if len(self._begun) > MAX_MESSAGE:
                    raise ValueError(f"a message of more than {MAX_MESSAGE} bytes")
                if data[:1] == MORE:
                    return None
                data, self._begun = bytes(self._begun), bytearray()
            message = _decode(data.decode())[0]
        except (ValueError, RecursionError) as error:
            raise EOFError(f"{type(error).__name__}: {error}") from None
        # Something else: the task has written to the channel by other means, and nothing after that can be trusted.
        if type(message) is not dict:
            raise EOFError(f"no JSON mapping, but {type(message).__name__}")
        return message

    def poll(self, timeout: float = 0.0) -> bool:
        """Whether ``receive`` would return soon (a message, or the end)."""
        try:
            return bool(connection.wait([self], timeout))  # type: ignore[list-item]
        except (OSError, ValueError):
            return True

    def send_fd(self, fd: int) -> None:
        """Hand a descriptor over; when that fails, the other end receives none, and what follows is in order."""
        with self._sending:
            try:
                socket.send_fds(self._end, [b"f"], [fd])
            except OSError:
                self._end.send(b"f")
                raise

    def receive_fd(self) -> int | None:
        """Take a descriptor that the other end handed over; ``None`` when it is gone before it has."""
        # Not ``socket.recv_fds``: it drops its flags, and another thread may execute a program at any time.
        size = array.array("i").itemsize
        try:
            _, rights, _, _ = self._end.recvmsg(1, socket.CMSG_SPACE(size), socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return self.receive_fd()  # as in receive_part
        except OSError:
            return None
        for level, kind, data in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS) and len(data) >= size:
                return array.array("i", data[:size])[0]
        return None

    def kill_when_closed(self, wanted: bool) -> None:
        """Let the kernel SIGKILL this process once the other end closes or sends; ``False`` revokes that."""
        fd = self._end.fileno()
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        if not wanted:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_ASYNC)
            return
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_ASYNC)
        if self.poll():  # since before that
            os._exit(1)

    def hang_up(self) -> None:
        """End the conversation for both sides, and for a thread that waits for this channel right now.

        Closing would not wake that thread, and its descriptor's number might be another file's by the time it looks.
        """
        with self._sending:
            try:
                self._end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed already

    def close(self) -> None:
        """Close this end; twice is harmless."""
        with self._sending:
            self._end.close()

    __del__ = close  # without a warning: what was lent when its pool was closed ends like this


#: All of this process, because the lock of one must not stay taken in a fork by a thread that the fork does not have.
_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _renew_locks() -> None:
    for channel in _channels:
        channel._sending = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)


#: Waits for channels and descriptors that can be read, or have ended; returns those, none after ``timeout`` seconds.
wait: Callable[[Sequence[Channel | int], float | None], list[Any]] = connection.wait  # type: ignore[assignment]
