"""Workloads of one process that need nothing but Python; copied to where pytest runs."""

from __future__ import annotations

import ctypes
import os
import signal
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
    """Each trial plays its part of ``config["script"]``, whose parts are separated by dots."""

    def setup(self) -> None:
        self.part = str(self.config["script"]).split(".")[int(os.environ["AORTA_TRIAL_INDEX"])]
        if self.part == "setup_raises":
            raise RuntimeError("as the script says")

    def run(self) -> Any:
        if self.part == "raises":
            raise RuntimeError("as the script says")
        if self.part == "segfaults":
            ctypes.string_at(0)
        if self.part == "hangs":
            time.sleep(FOREVER)
        return {"passed": self.part != "returns_false"}


class Held(_Base):
    """The first trial to come writes its pid to the file ``held`` and stays, deaf to SIGTERM; all others pass."""

    def run(self) -> Any:
        try:
            fd = os.open("held", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return {"passed": True}
        subprocess.Popen(["sleep", str(FOREVER)])
        subprocess.Popen(["sleep", str(FOREVER)], start_new_session=True)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(fd, f"{os.getpid()}\n".encode())
        time.sleep(FOREVER)
        return {"passed": True}


class Breaks(_Base):
    def run(self) -> Any:
        print("on the way")
        print("to trouble", file=sys.stderr)
        raise ValueError("as ever")


class Solo(_Base):
    """Runs in one process only, and leaves a trace when it is set up."""

    def setup(self) -> None:
        Path(f"setup_{os.getpid()}").touch()


class Pair(Solo):
    launch_mode = "distributed"
    min_world_size = 2
