"""The other host's side of a connection: say which code is here, run the service, end when the parent has gone."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from pytest_aorta.common.import_target import import_target
from pytest_aorta.common.texts import describe_exception
from pytest_aorta.runtime.channel import Joiner, Message, cut
from pytest_aorta.runtime.hosts.code_digest import code_identity, locate
from pytest_aorta.runtime.hosts.framing import PIECE, decode, encode
from pytest_aorta.runtime.hosts.service_messages import CodeQuestion, ServiceOrder, ServiceReport

if TYPE_CHECKING:
    import execnet

#: Executed there by execnet, in an interpreter of which nothing is known yet.
BOOTSTRAP = """
import os, socket, sys, threading
# The working directory must not shadow what is imported, as ``-c`` would let it.
sys.path[:] = [entry for entry in sys.path if entry]
facts = {
    "host": socket.gethostname(),
    "pid": os.getpid(),
    "python": "%d.%d" % sys.version_info[:2],
    "executable": sys.executable,
    "main_thread": threading.current_thread() is threading.main_thread(),
    "version": None,
    "problem": None,
}
try:
    import pytest_aorta
    facts["version"] = pytest_aorta.__version__
    from pytest_aorta.runtime.hosts.host_main import serve
except Exception as error:
    facts["problem"] = "%s: %s" % (type(error).__name__, error)
channel.send(facts)
if facts["main_thread"] and not facts["problem"]:
    serve(channel)
"""

#: Seconds between two signs of life.
BEAT = 1.0

#: Seconds that a service has to end in order once the parent has gone.
_PARTING = 1.0


class HostChannel:
    """A service's channel to its parent. All methods may be called from any thread."""

    def __init__(self, channel: execnet.Channel) -> None:
        self._channel = channel
        self._sending = threading.Lock()  # of one message
        self._writing = threading.Lock()  # of one piece: execnet's write to a socket can be torn apart by another
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._joiner = Joiner()
        self.gone = threading.Event()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send plain data.

        Raises:
            OSError: the parent has gone.
            ValueError: the message holds something that cannot be sent.
        """
        data = encode(message)
        with self._sending:
            for piece in cut(data, PIECE):
                self.write(self._channel, piece)

    def write(self, channel: execnet.Channel, item: object) -> None:
        """Send as it is, between two pieces of whatever is being sent."""
        with self._writing:
            channel.send(item)

    def receive(self) -> Message | None:
        """The next message; ``None``, from then on, when the service should end or the parent has gone."""
        message = self._inbox.get()
        if message is None:
            self._inbox.put(None)  # for the next call
        return message

    def arrived(self, item: Any) -> None:
        """Called with everything that comes from the parent, and with ``None`` when nothing can come any more."""
        if isinstance(item, bytes):
            whole = self._joiner.add(item)
            if whole is not None:
                self._inbox.put(decode(whole))
            return
        if item is None:
            self.gone.set()
        self._inbox.put(None)


def serve(channel: execnet.Channel) -> None:
    """Serve a :class:`~pytest_aorta.runtime.hosts.connection.HostConnection`; returns when the service has."""
    question = cast(CodeQuestion, channel.receive())
    if question["redirect"]:
        # execnet speaks over duplicates of 0 and 1, and has put /dev/null there. What is printed belongs to the log.
        os.dup2(2, 1)
        with contextlib.suppress(OSError, ValueError):
            faulthandler.enable()
    channel.send(code_identity(locate(question["names"])))
    order = cast(ServiceOrder, channel.receive())  # never comes when the parent does not like the answer
    host_channel = HostChannel(channel)
    finished = threading.Event()
    threading.Thread(target=_beat, args=(question["health"], host_channel, finished), daemon=True).start()
    channel.setcallback(host_channel.arrived, endmarker=None)
    last = _run(order, host_channel, lambda: host_channel.write(channel, {"state": "ready"}))
    finished.set()
    with contextlib.suppress(OSError):
        host_channel.write(channel, last)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # The parent answers by hanging up, which ends the process; before that, its buffers must not be thrown away.
    host_channel.gone.wait()


def _run(order: ServiceOrder, host_channel: HostChannel, ready: Callable[[], None]) -> ServiceReport:
    """Run the service; how it ended."""
    try:
        function = import_target(order["service"])
        argument = decode(order["argument"])
        ready()
        function(argument, host_channel)
    except BaseException as error:
        return {"state": "failed", "error": describe_exception(error)}
    return {"state": "returned"}


def _beat(health: execnet.Channel, host_channel: HostChannel, finished: threading.Event) -> None:
    """Show that this process lives; once the parent has gone, end it a moment later."""
    count, parent = 0, os.getppid()
    while not host_channel.gone.wait(BEAT):
        count += 1
        if os.getppid() != parent:
            # On the same host: the parent has died, although a fork of it keeps the connection open.
            host_channel.arrived(None)
        try:
            host_channel.write(health, count)
        except OSError:
            host_channel.arrived(None)
    time.sleep(_PARTING)
    os._exit(0 if finished.is_set() else 1)  # whatever the main thread is stuck in
