"""Services that tests run on hosts; imported there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

from pytest_aorta.runtime.hosts import HostChannel


def echo(argument: Any, parent: HostChannel) -> None:
    """Tell the argument and the process, then return every message; the last words are ``bye``."""
    main = threading.current_thread() is threading.main_thread()
    parent.send({"argument": argument, "pid": os.getpid(), "main_thread": main, "cwd": os.getcwd()})
    while (message := parent.receive()) is not None:
        parent.send(message)
    parent.send({"bye": parent.receive() is None})


def burst(sizes: list[int], parent: HostChannel) -> None:
    """Send from several threads at once: ``sizes[i]`` numbered messages from thread i, each with a big body."""

    def talk(thread: int, count: int) -> None:
        for number in range(count):
            parent.send({"thread": thread, "number": number, "body": bytes([thread]) * 600_000})

    threads = [threading.Thread(target=talk, args=pair) for pair in enumerate(sizes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    parent.send({"done": True})
    parent.receive()


def prints(argument: Any, parent: HostChannel) -> None:
    """Write to descriptor 1 in every way there is, then echo."""
    print("from print", flush=True)
    os.write(1, b"from os.write\n" * 100)
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    print("from sys.__stdout__", file=sys.__stdout__)
    echo(argument, parent)


def raises(argument: Any, parent: HostChannel) -> None:
    """Raise once the parent has said something."""
    parent.receive()
    raise LookupError(f"no {argument} here")


def returns(argument: Any, parent: HostChannel) -> None:
    """Send, and return unasked."""
    for number in range(argument):
        parent.send({"number": number})


def exits(code: int, parent: HostChannel) -> None:
    """End the process when the parent has said something, with a word to standard error."""
    parent.receive()
    print("what I had to say", file=sys.stderr, flush=True)
    os._exit(code)


def stuck(argument: Any, parent: HostChannel) -> None:
    """Never look at the channel again."""
    parent.send({"pid": os.getpid()})
    while True:
        pass


def waits(argument: Any, parent: HostChannel) -> None:
    """In a receive loop; leave a file when it ended in order."""
    parent.send({"pid": os.getpid()})
    while parent.receive() is not None:
        pass
    with open(argument, "w") as file:
        file.write("ended in order")


def with_heir(argument: Any, parent: HostChannel) -> None:
    """Fork a process that inherits the connection and outlives this one."""
    heir = os.fork()
    if heir == 0:
        time.sleep(1000)
    parent.send({"pid": os.getpid(), "heir": heir})
    parent.receive()
