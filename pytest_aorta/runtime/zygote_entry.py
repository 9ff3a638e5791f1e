"""The start of a zygote behind a launcher prefix.

A prefix may close descriptors (sudo, ssh, srun), drop variables (sudo, ssh, containers), or change directory, user and
namespaces. This script gets the zygote's channel and the variables that are missing, and begins again with them.

    python zygote_entry.py PARENT SOCKET TAG [PACKAGES]     behind the prefix
    python zygote_entry.py PARENT FD                        with all variables set

A file, and words without spaces as long as the paths have none: ssh has a shell split them again. ``PACKAGES`` is a
folder with this package, for a container that has it nowhere else.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import NoReturn


def begin(parent: str, where: str, *rest: str) -> None:
    """Become the zygote, in this interpreter or in one that starts anew; never returns."""
    # The folder of this file is no place to import from.
    here = {os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.realpath(__file__))}
    sys.path[:] = [path for path in sys.path if path and path not in here]
    if rest:
        _be_first_process()
        tag, *packages = rest
        sys.path[:0] = packages
        fd = _connect(where, tag)
        _complete_environment(parent, fd, tag, packages)
    else:
        fd = int(where)
    # As with ``python -c``: what multiprocessing spawns would execute this file.
    vars(sys.modules["__main__"]).pop("__file__", None)
    from pytest_aorta.runtime.zygote_main import main

    main(fd, int(parent))


def _be_first_process() -> None:
    """As the first process of a PID namespace, where signals have no default effect: fork, reap, and end with the fork.

    The end of the first process is the end of all in the namespace.
    """
    if os.getpid() != 1:
        return
    child = os.fork()
    if child == 0:
        return
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _connect(address: str, tag: str) -> int:
    folder, name = os.path.split(address)
    try:
        handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(f"/proc/self/fd/{handle}/{name}")  # an address has 107 bytes at most
            os.close(handle)
            connection.send(tag.encode())
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    except OSError as error:
        _give_up(f"{error}: {address}; what runs behind a prefix has to run on the same host, and to see that folder")
    if not descriptors:
        _give_up(f"refused at {address}; what runs behind a prefix has to run as the same user, or as root")
    return descriptors[0]


def _give_up(why: str) -> NoReturn:
    print(f"cannot reach the process that started this one: {why}", file=sys.stderr, flush=True)
    os._exit(1)


def _complete_environment(parent: str, fd: int, tag: str, packages: list[str]) -> None:
    script = os.path.abspath(__file__)  # before the directory changes
    from pytest_aorta.runtime.channel import Channel
    from pytest_aorta.runtime.process_tree import VARIABLE

    given = Channel(os.dup(fd)).receive()
    if given is None:
        os._exit(1)  # not wanted any more
    if os.getcwd() != given["cwd"]:
        os.chdir(given["cwd"])
    # A prefix that has passed the tag on passes variables on: what differs, it has changed on purpose.
    if os.environ.get(VARIABLE) == tag and not packages:
        return
    environ = {**os.environ, **given["environ"]}
    if packages:
        environ["PYTHONPATH"] = os.pathsep.join([*packages, *filter(None, [environ.get("PYTHONPATH")])])
    os.set_inheritable(fd, True)
    os.execve(sys.executable, [sys.executable, script, parent, str(fd)], environ)


if __name__ == "__main__":
    begin(*sys.argv[1:])
