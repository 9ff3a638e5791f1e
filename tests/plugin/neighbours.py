"""Workloads that care what runs beside them; copied to where pytest runs. Needs nothing but Python.

What trials tell each other lies in files of the folder ``NEIGHBOURS`` names; no wait is longer than a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["NEIGHBOURS"])

#: Seconds; more than any test waits.
FOREVER = 1000

_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def note(kind: str) -> None:
    (FOLDER / f"{kind}_{os.getpid()}_{time.monotonic_ns()}").touch()


def count(kind: str) -> int:
    return len(list(FOLDER.glob(f"{kind}_*")))


def wait_for(kind: str, number: int = 1) -> bool:
    """Wait until ``number`` notes of a kind are there; whether they came."""
    give_up = time.monotonic() + 60
    while count(kind) < number:
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


class _Base:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def setup(self) -> None:
        note(f"started-{type(self).__name__}")

    def run(self) -> Any:
        return {"passed": True, "metrics": self.seen()}

    def seen(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "cwd": os.getcwd(),
            "path": [path for path in sys.path if "patched" in path],
            "cores": sorted(os.sched_getaffinity(0)),
            **{name: os.environ.get(name) for name in (*_DEVICES, *_THREADS, "SEEN")},
        }


class Tells(_Base):
    """What its process sees."""


class Meets(_Base):
    """Passes when another trial runs at the same time."""

    def run(self) -> Any:
        note("meets")
        return {"passed": wait_for("meets", 2), "metrics": self.seen()}


class Stays(_Base):
    """Until it is killed, with a child in another session; unless ``calm`` is there."""

    def run(self) -> Any:
        if not count("calm"):
            subprocess.Popen(["sleep", str(FOREVER)], start_new_session=True)
            note("stays")
            time.sleep(FOREVER)
        return {"passed": True}


class Fails(_Base):
    """As soon as another one stays; unless ``calm`` is there."""

    def run(self) -> Any:
        return {"passed": bool(count("calm")) or not wait_for("stays")}


class Waits(_Base):
    """For ``go``."""

    def run(self) -> Any:
        note("waits")
        return {"passed": wait_for("go"), "metrics": self.seen()}


class Holds(_Base):
    """Passes when no other trial holds one of its devices."""

    def setup(self) -> None:
        super().setup()
        self.files = [FOLDER / f"device-{device}" for device in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
        self.alone = all(_take(file) for file in self.files)

    def run(self) -> Any:
        time.sleep(0.03)
        return {"passed": self.alone, "metrics": self.seen()}

    def cleanup(self) -> None:
        if self.alone:
            for file in self.files:
                file.unlink()


class Keeps(Holds):
    """Its devices, until it is killed."""

    def run(self) -> Any:
        note("keeps")
        time.sleep(FOREVER)


class Pair(_Base):
    """Two ranks."""

    launch_mode = "distributed"
    min_world_size = 2


def _take(file: Path) -> bool:
    """Write our pid into a file, unless it has that of a process that still runs."""
    try:
        with file.open("x") as mine:
            mine.write(f"{os.getpid()}")
    except FileExistsError:
        if Path("/proc", file.read_text()).exists():
            return False
        file.write_text(f"{os.getpid()}")
    return True
