"""Every way in which a workload can misbehave, as a function, and workloads of which each trial does so.

``config["script"]`` says what each trial does: ``FAULT-PHASE``, separated by dots. Those that hang are ended by the
test that runs them. Copied to where pytest runs; needs nothing but Python.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import math
import os
import re
import signal
import sys
import threading
import time
from typing import Any, NoReturn

#: Seconds; more than anybody waits.
FOREVER = 1000

_libc = ctypes.CDLL(None)
_libc_with_gil = ctypes.PyDLL(None)


# crashes and exits


def segfault() -> None:
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def killed() -> None:
    """As by the kernel, when a machine is short of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def exit_0() -> NoReturn:
    os._exit(0)


def exit_3() -> NoReturn:
    os._exit(3)


def sys_exit() -> NoReturn:
    sys.exit("enough")


def stack_overflow_in_c() -> None:
    """glibc's parser of regular expressions calls itself for every parenthesis."""
    depth = 2_000_000
    _libc.regcomp(ctypes.create_string_buffer(1024), b"(" * depth + b")" * depth, 1)


# exceptions


class _Unpicklable(Exception):
    pass


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class _NotAnException(BaseException):
    pass


def raises() -> NoReturn:
    raise ValueError("loss is nan")


def raises_unpicklable() -> NoReturn:
    raise _Unpicklable(threading.Lock(), lambda: None)


def raises_unspeakable() -> NoReturn:
    raise _Unspeakable


def raises_base_exception() -> NoReturn:
    raise _NotAnException("neither Exception nor exit")


def raises_with_100_mb() -> NoReturn:
    raise ValueError("x" * 100_000_000)


def recursion() -> None:
    recursion()


def out_of_memory() -> None:
    """Twelve gigabytes, none of which is ever touched."""
    hoard = [bytes(2**26) for _ in range(192)]
    raise AssertionError(f"there was memory for {len(hoard)} blocks")


# hangs


def sleeps() -> None:
    time.sleep(FOREVER)


def spins_with_the_gil() -> None:
    collections.deque(itertools.repeat(0), maxlen=0)


def blocked_in_c() -> None:
    read, _ = os.pipe()
    os.read(read, 1)


def blocked_in_c_with_the_gil() -> None:
    _libc_with_gil.sleep(FOREVER)


def deadlock_that_ignores_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


# what is left behind


def thread_that_never_ends() -> None:
    threading.Thread(target=time.sleep, args=(FOREVER,)).start()


def child_in_its_own_session() -> None:
    """A daemon: its parent ends at once, and it is another program by the time we go on."""
    until_exec, by_daemon = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", str(FOREVER)])
        os._exit(0)
    os.close(by_daemon)
    os.waitpid(parent, 0)
    os.read(until_exec, 1)


def fork_bomb() -> None:
    """200 children, of which every other one forks once more and ignores SIGTERM."""
    for number in range(200):
        if os.fork() == 0:
            if number % 2:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if os.fork() == 0:
                    os.setsid()
            while True:
                time.sleep(FOREVER)


# hostile output


def floods_stdout() -> None:
    """``FLOOD`` bytes."""
    line = b"%07d " * 16 % tuple(range(16)) + b"\n"
    block = line * (2**20 // len(line))
    for _ in range(int(os.environ.get("FLOOD", 2**26)) // len(block)):
        os.write(1, block)


def prints_garbage_and_raises() -> NoReturn:
    os.write(1, b"\xff\xfe\x00 \x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J\n" * 3)
    sys.stdout.write("lone \udcff surrogate, bell \a, \x1b[2J\n")
    raise ValueError("\x1b[2J\x1b]0;pwned\x07 \udcff \x00 \N{PILE OF POO}")


def closes_stdout() -> None:
    print("the last words", end="")
    os.close(1)
    os.close(2)


# results; only ``run()`` has one


def returns_50_mb() -> dict[str, Any]:
    return {"passed": True, "metrics": {"blob": "x" * 50_000_000, "small": 1}}


def returns_what_json_cannot_hold() -> dict[str, Any]:
    import array
    import fractions

    metrics: dict[Any, Any] = {
        "nan": math.nan,
        "infinity": math.inf,
        "object": object(),
        "fraction": fractions.Fraction(1, 3),
        "array": array.array("d", [1.0, 2.0]),
        "line\nbreak": 1,
        "\"quotes'": 2,
        "../../escape": 3,
        "\N{PILE OF POO}": 4,
        (1, 2): 5,
        None: 6,
    }
    metrics["itself"] = metrics
    return {"passed": True, "metrics": metrics}


def returns_nothing() -> None:
    return None


# workloads


def trial_index() -> int:
    """Of the trial that this process belongs to, by the place of its log: there is nothing else that tells."""
    found = re.search(r"/trial_(\d+)[/.]", os.readlink("/proc/self/fd/1"))
    assert found is not None
    return int(found[1])


class Faulty:
    """One process."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.fault, self.phase = str(config["script"]).split(".")[trial_index()].split("-")

    def misbehave(self, phase: str) -> Any:
        """Do what this trial is here for, if this is its phase."""
        return globals()[self.fault]() if phase == self.phase else None

    def setup(self) -> None:
        self.misbehave("setup")

    def run(self) -> Any:
        result = self.misbehave("run")
        if self.phase == "run" and self.fault.startswith("returns"):
            return result
        return {"passed": True, "metrics": {"value": 1.5}}

    def cleanup(self) -> None:
        self.misbehave("cleanup")


class FaultyRanks(Faulty):
    """Two ranks that meet in every phase; rank 1 misbehaves, where the name of the fault does not say otherwise."""

    launch_mode = "distributed"
    min_world_size = 2

    def setup(self) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        self.is_faulty = dist.get_rank() == 1
        dist.barrier()
        self.misbehave("setup")
        dist.barrier()

    def misbehave(self, phase: str) -> Any:
        return super().misbehave(phase) if self.is_faulty else None

    def run(self) -> Any:
        import torch
        import torch.distributed as dist

        total = torch.ones(4)
        for step in range(4):
            if step == 2:
                result = self.misbehave("run")
            dist.all_reduce(total)
        if self.is_faulty and self.phase == "run" and self.fault.startswith("returns"):
            return result
        return {"passed": True, "metrics": {"total": float(total[0])}}

    def cleanup(self) -> None:
        import torch.distributed as dist

        self.misbehave("cleanup")
        dist.destroy_process_group()
