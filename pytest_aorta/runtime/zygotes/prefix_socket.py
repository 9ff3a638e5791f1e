"""The parent's side of the way to a zygote behind a launcher prefix, which may close the descriptors it inherits.

The zygote takes the inherited descriptor of its control channel if the prefix has left it open. Otherwise it connects
to a socket on the file system, in a folder that only this user can enter, and is handed the same descriptor there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct

from pytest_aorta.runtime.resources.used_folders import UsedFolder, make_own
from pytest_aorta.runtime.zygotes.channel import Channel

#: In the words of a command: replaced by the tag of the zygote.
TAG_WORD = "@AORTA_TAG@"

_NAME = "zygote.sock"

#: Seconds that a process which has connected may take to say which zygote it is.
_INTRODUCTION = 5.0

_CREDENTIALS = struct.Struct("3i")


class PrefixSocket:
    """Open until the zygote has reported.

    Args:
        far: the zygote's end of its control channel.
        tag: of the zygote; what connects has to know it.

    Raises:
        OSError: there is no place for it in the temporary directory.
    """

    def __init__(self, far: Channel, tag: str) -> None:
        self._far = far
        self._tag = tag
        #: The process that has connected, as a descriptor; ``None`` before, and where this host does not show it.
        self._process: int | None = None
        self._folder = UsedFolder(make_own)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            folder = os.open(self._folder.path, os.O_PATH | os.O_DIRECTORY)
            try:  # an address has 107 bytes at most, which the path of a temporary directory may exceed
                self._listener.bind(f"/proc/self/fd/{folder}/{_NAME}")
            finally:
                os.close(folder)
            self._listener.listen()
            self._listener.settimeout(_INTRODUCTION)
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        return self._listener.fileno()

    def arguments(self) -> list[str]:
        """What ``prefix_entry`` needs: the descriptor, by which it can be recognised, the socket, the tag."""
        fd = self._far.fileno()
        return [str(fd), str(os.fstat(fd).st_ino), str(self._folder.path / _NAME), self._tag]

    def admit(self) -> None:
        """Hand the descriptor to what has connected, if that is the zygote."""
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(_INTRODUCTION)
                size = _CREDENTIALS.size
                pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
                # Root can be anyone here; in a user namespace, its root is this user.
                if uid in (os.getuid(), 0) and connection.recv(256).decode(errors="replace") == self._tag:
                    socket.send_fds(connection, [b"f"], [self._far.fileno()])
                    self._watch(pid)

    def _watch(self, pid: int) -> None:
        self._forget_process()
        with contextlib.suppress(OSError):  # pid 0: of a namespace that cannot be seen from here
            self._process = os.pidfd_open(pid)

    def kill(self) -> None:
        """SIGKILL for the process that has connected. The end of a prefix need not be that of what it has started."""
        if self._process is not None:
            with contextlib.suppress(OSError):  # gone, or of another user
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def hang_up(self) -> None:
        """Let nothing connect any more, and let the end of the zygote be the end of the channel."""
        self._listener.close()
        self._far.close()
        self._folder.close()

    def close(self) -> None:
        """Free everything; twice is harmless."""
        self.hang_up()
        self._forget_process()

    def _forget_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            os.close(process)
