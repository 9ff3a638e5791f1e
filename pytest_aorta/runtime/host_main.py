"""The other host's side of a connection: say which code is here, run the service, end when the parent has gone.

Both sides send items over one channel of execnet: pickled messages as ``bytes``, signs of life as ``int``, and ``dict``
for how the service has ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.import_target import import_target
from pytest_aorta.common.texts import describe_exception

if TYPE_CHECKING:
    import execnet

#: Executed there by execnet, in an interpreter of which nothing is known yet.
BOOTSTRAP = """
import os, socket, sys
# The working directory must not shadow what is imported, as ``-c`` would let it.
sys.path[:] = [entry for entry in sys.path if entry]
facts = {
    "host": socket.gethostname(),
    "pid": os.getpid(),
    "python": "%d.%d" % sys.version_info[:2],
    "executable": sys.executable,
    "version": None,
    "problem": None,
}
try:
    import pytest_aorta
    facts["version"] = pytest_aorta.__version__
    from pytest_aorta.runtime.host_main import serve
except Exception as error:
    facts["problem"] = "%s: %s" % (type(error).__name__, error)
channel.send(facts)
if not facts["problem"]:
    serve(channel)
"""

#: Seconds between two signs of life.
BEAT = 1.0

#: Seconds that a service has to end in order once the parent has gone.
_PARTING = 1.0


def code_identity(files: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 of every file, by its name (of :func:`package_files`, or an absolute path); absent ones are left out."""
    digests = {}
    for name, path in files.items():
        with contextlib.suppress(OSError):
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def package_files(package: str) -> dict[str, Path]:
    """All ``.py`` files of an installed top-level package, by names such as ``pytest_aorta/plan.py``.

    Raises:
        ModuleNotFoundError: it is not installed, or it is a single module.
    """
    folder = _folder(package)
    if folder is None:
        raise ModuleNotFoundError(f"No package named {package!r}", name=package)
    return {f"{package}/{path.relative_to(folder).as_posix()}": path for path in sorted(folder.rglob("*.py"))}


def _locate(names: Iterable[str]) -> dict[str, Path]:
    found = {}
    for name in names:
        package, _, rest = name.partition("/")
        folder = _folder(package) if package else Path("/")
        if folder is not None:
            found[name] = folder / rest
    return found


def _folder(package: str) -> Path | None:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


class HostChannel:
    """A service's channel to its parent. All methods may be called from any thread."""

    def __init__(self, channel: execnet.Channel) -> None:
        self._channel = channel
        self._writing = threading.Lock()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.gone = threading.Event()

    def send(self, message: Any) -> None:
        """Send any object that can be pickled; raises ``OSError`` when the parent has gone."""
        self.write(pickle.dumps(message, 5))

    def write(self, item: object) -> None:
        with self._writing:
            self._channel.send(item)

    def receive(self) -> Any:
        """The next message; ``None``, from then on, when the service should end or the parent has gone."""
        message = self._inbox.get()
        if message is None:
            self._inbox.put(None)  # for the next call
        return message

    def arrived(self, item: bytes | str | None) -> None:
        """Called with everything from the parent; a ``str`` asks to end, ``None``: nothing can come any more."""
        if item is None:
            self.gone.set()
        self._inbox.put(pickle.loads(item) if isinstance(item, bytes) else None)


def serve(channel: execnet.Channel) -> None:
    """Serve a :class:`~pytest_aorta.runtime.hosts.HostConnection`; returns when the service has."""
    names: Any = channel.receive()
    # execnet speaks over duplicates of 0 and 1, and has put /dev/null there. What is printed belongs to the log.
    os.dup2(2, 1)
    with contextlib.suppress(OSError, ValueError):
        faulthandler.enable()
    channel.send(code_identity(_locate(names)))
    order: Any = channel.receive()  # never comes when the parent does not like the answer
    host_channel = HostChannel(channel)
    finished = threading.Event()
    threading.Thread(target=_beat, args=(host_channel, finished), daemon=True).start()
    channel.setcallback(host_channel.arrived, endmarker=None)
    last: dict[str, str] | None = None
    try:
        function = import_target(order["service"])
        argument = pickle.loads(order["argument"])
        host_channel.write({"error": None})
        function(argument, host_channel)
    except BaseException as error:
        last = describe_exception(error)
    finished.set()
    with contextlib.suppress(OSError):
        host_channel.write({"error": last})
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # The parent answers by hanging up, which ends the process; before that, its buffers must not be thrown away.
    host_channel.gone.wait()


def _beat(host_channel: HostChannel, finished: threading.Event) -> None:
    parent = os.getppid()
    while not host_channel.gone.wait(BEAT):
        if os.getppid() != parent:
            # On the same host: the parent has died, although a fork of it keeps the connection open.
            host_channel.arrived(None)
        try:
            host_channel.write(0)
        except OSError:
            host_channel.arrived(None)
    time.sleep(_PARTING)
    os._exit(0 if finished.is_set() else 1)  # whatever the main thread is stuck in
