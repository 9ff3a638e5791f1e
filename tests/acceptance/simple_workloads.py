"""Workloads of one process that need nothing but Python; copied to where pytest runs."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: Seconds; more than any test waits.
FOREVER = 1000


class _Base:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def setup(self) -> None:
        """Nothing to do."""

    def run(self) -> Any:
        return {"passed": True}


class Tells(_Base):
    """What its process sees; ``config["show"]`` names variables, separated by commas."""

    def run(self) -> Any:
        names = str(self.config.get("show", "")).split(",")
        metrics = {
            "pid": os.getpid(),
            "config": self.config,
            "variables": {name: os.environ.get(name) for name in names if name},
            "prefix": sys.prefix,
            "executable": sys.executable,
            "niceness": os.nice(0),
            "hash": hash("aorta"),
        }
        return {"passed": True, "metrics": metrics}


class Plays(_Base):
    """Trial after trial plays one part of ``config["script"]``, whose parts are separated by dots."""

    def setup(self) -> None:
        self.part = str(self.config["script"]).split(".")[ordinal()]
        self.play("setup_")

    def run(self) -> Any:
        self.play("")
        return {"passed": self.part != "returns_false", "metrics": {"part": self.part}}

    def play(self, prefix: str) -> None:
        act = getattr(self, self.part, None) if self.part.startswith(prefix) else None
        if act is not None and (prefix or not self.part.startswith("setup_")):
            act()

    def raises(self) -> None:
        raise RuntimeError("as the script says")

    setup_raises = raises

    def segfaults(self) -> None:
        ctypes.string_at(0)

    def hangs(self) -> None:
        time.sleep(FOREVER)


class Held(_Base):
    """The first trial to come writes its pid to the file ``held`` and stays; all others pass."""

    def run(self) -> Any:
        try:
            fd = os.open("held", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return {"passed": True}
        subprocess.Popen(["sleep", str(FOREVER)])
        subprocess.Popen(["sleep", str(FOREVER)], start_new_session=True)
        os.write(fd, f"{os.getpid()}\n".encode())
        time.sleep(FOREVER)
        return {"passed": True}


class Breaks(_Base):
    def run(self) -> Any:
        print("on the way")
        print("to trouble", file=sys.stderr)
        raise ValueError("as ever")


def ordinal() -> int:
    """How many processes have asked before, in this folder."""
    with Path("asked").open("a+") as file:
        file.write("x")
        file.flush()
        return file.tell() - 1


class Solo(_Base):
    """Runs in one process only, and leaves a trace when it is set up."""

    def setup(self) -> None:
        Path(f"setup_{os.getpid()}").touch()


class Pair(Solo):
    launch_mode = "distributed"
    min_world_size = 2


class Quartet(Solo):
    launch_mode = "distributed"
    min_world_size = 4
