"""The C and C++ frames of a process that crashes or hangs, joined with its Python frames.

A gdb, whose script is this file as well, waits beside the process and attaches to it only then: no core file is needed.
A crash is held where it is meanwhile: ``faulthandler`` writes its dump into a pipe, where gdb waits, and the handler
that it calls next is the C library's ``sleep``, which needs no memory and takes the signal's number for its seconds. So
a process goes on by itself where no gdb comes, and ends by the same signal.

What is read goes to standard error in the words of Python 3.14's ``faulthandler``: whatever knows those knows these.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from typing import Any

#: The signals of a crash, as ``faulthandler`` calls them.
CRASHES = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}

_PR_SET_PTRACER, _ANY = 0x59616D61, 2**64 - 1

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37

_IN_MODIFY = 2

#: Seconds that a process has until its dump is complete; more than a dump of a thousand threads takes.
_DUMP = 3

#: Seconds without a write after which the Python frames of a hang are complete; the process has 0.2 s after them.
_QUIET = 0.05

#: Frames of a thread that are kept.
_DEEPEST = 64

#: The symbols of all of torch's libraries take half a minute: only those of libraries on a stack are read, with names
#: as they are in there. Nothing is fetched, and no start-up file of the user's is run.
_SETTINGS = (
    "debuginfod enabled off",
    "auto-load off",
    "auto-solib-add off",
    "demangle-style none",
    "pagination off",
    "confirm off",
)

#: Neither the start-up files of the trial's Python nor its preloaded libraries are for gdb.
_SHELL = 'unset AORTA_COLLECT PYTHONPATH PYTHONHOME LD_PRELOAD LD_LIBRARY_PATH; "$@" &'

#: Where C calls Python: what is outside of it, the Python frames tell.
_INTERPRETER = ("_PyEval_EvalFrameDefault", "_PyEval_EvalFrame")


class GdbStarter:
    def __init__(self, options: dict[str, object], folder: str, rank: int | None) -> None:
        stem = f"process_{os.getpid()}" if rank is None else f"rank_{rank}"
        self.path = os.path.join(folder, stem + ".json")

    def start(self) -> None:
        gdb = shutil.which("gdb")
        if gdb is None:
            raise RuntimeError("gdb is not installed here: a crash or a hang shows its Python frames only")
        self.libc = ctypes.CDLL(None)
        self.libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(_ANY), 0, 0, 0)  # gdb is no ancestor
        read, write = os.pipe()
        error = os.dup(2)
        asked = [os.getpid(), read, error, self.path, _file_of_stacks()]
        settings = [part for each in _SETTINGS for part in ("-iex", "set " + each)]
        script = ["-ex", f"python ASKED = {asked!r}", "-x", os.path.abspath(__file__)]
        # By a shell that ends at once: a program that waits for all its children must not wait for it, nor adopt it.
        adopts = ctypes.c_int(0)
        self.libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
        self.libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        subprocess.run(
            ["/bin/sh", "-c", _SHELL, "sh", gdb, "-nx", "-batch", *settings, *script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(read, error),
            check=True,
        )
        self.libc.prctl(_PR_SET_CHILD_SUBREAPER, adopts.value, 0, 0, 0)
        os.close(read)
        os.close(error)
        self._arm(ctypes.cast(self.libc.sleep, ctypes.c_void_p), write)
        os.register_at_fork(after_in_child=lambda: self._arm(None, 2))  # gdb watches the parent only

    def _arm(self, handler: ctypes.c_void_p | None, file: int) -> None:
        faulthandler.disable()
        for number in CRASHES.values():
            self.libc.sysv_signal(number, handler)
        faulthandler.enable(file=file)

    def step(self, number: int) -> None:
        pass

    def stop(self) -> None:
        """Nothing: libraries crash at the end of a process, too."""


def _file_of_stacks() -> str:
    """Where this process writes its Python frames when it hangs."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink("/proc/self/fd/" + number)
            if path.endswith("stacks.log"):
                return path
    return ""


# In gdb.


class GdbWatch:
    """Waits beside a process until that crashes, is asked for its Python frames, or ends."""

    def __init__(self, gdb: Any, pid: int, pipe: int, error: int, path: str, stacks: str) -> None:
        self.gdb, self.pid, self.pipe, self.error, self.path, self.stacks = gdb, pid, pipe, error, path, stacks
        self.known: set[str] = set()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # they are for the process
        libc = ctypes.CDLL(None)
        self.changes = libc.inotify_init()
        if stacks:
            libc.inotify_add_watch(self.changes, os.fsencode(stacks), _IN_MODIFY)

    def wait(self) -> None:
        ready, _, _ = select.select([self.pipe, self.changes], [], [])
        if self.pipe in ready:
            dump = os.read(self.pipe, 2**16)
            if dump:
                self.crash(dump)
        else:
            while select.select([self.changes], [], [], _QUIET)[0]:  # the Python frames are worth more: they come first
                os.read(self.changes, 2**16)
            threads = self.look()
            with open(self.stacks, "a") as file:
                file.write(_as_dump(threads, all_threads=True))
            self.write("hang", threads, _read(self.stacks))

    def crash(self, dump: bytes) -> None:
        threads = self.look()
        text = dump.decode(errors="replace")
        number = next((number for name, number in CRASHES.items() if name in text), signal.SIGSEGV)
        until = time.monotonic() + _DUMP
        while time.monotonic() < until:
            is_complete = not _catches(self.pid, number)  # the handler that comes after the dump is called once
            while select.select([self.pipe], [], [], 0)[0] and (more := os.read(self.pipe, 2**16)):
                dump += more
            if is_complete:
                break
            time.sleep(0.01)
        with contextlib.suppress(OSError):
            os.write(self.error, dump + _as_dump(threads).encode())
        self.write(number.name, threads, dump.decode(errors="replace"))
        os.kill(self.pid, number)

    def complain(self, what: object) -> None:
        with contextlib.suppress(OSError), open(self.path[: -len("json")] + "problem", "a") as file:
            file.write(json.dumps({"error": str(what)}) + "\n")

    def write(self, why: str, threads: list[dict[str, Any]], python: str) -> None:
        with open(self.path + ".new", "w") as file:
            json.dump({"why": why, "pid": self.pid, "threads": threads, "python": python}, file, indent=1)
        os.replace(self.path + ".new", self.path)

    def look(self) -> list[dict[str, Any]]:
        """The threads, each with its innermost frame first; the one that crashed, or the main thread, comes first."""
        gdb = self.gdb
        try:
            gdb.execute(f"attach {self.pid}", to_string=True)
        except gdb.error as error:
            self.complain(f"gdb may not look at the process: {error}")
            return []
        gdb.execute("sharedlibrary /libc\\.so", to_string=True)  # it has the ids of threads that Python knows
        threads: list[dict[str, Any]] = []
        for thread in sorted(gdb.selected_inferior().threads(), key=lambda each: each.num):
            thread.switch()
            frames = self.frames()
            handlers = [at for at, frame in enumerate(frames) if not frame["name"]]
            with contextlib.suppress(gdb.error):
                self.ident = hex(int.from_bytes(thread.handle(), "little"))
            told = {"id": self.ident, "name": thread.name or "", "crashed": bool(handlers)}
            threads.append({**told, "frames": frames[handlers[-1] + 1 :] if handlers else frames})
        gdb.execute("detach", to_string=True)
        gdb.execute("set demangle-style auto")
        for frame in (frame for thread in threads for frame in thread["frames"]):
            if frame["name"].startswith("_Z"):
                with contextlib.suppress(gdb.error):
                    frame["name"] = gdb.execute("demangle -l c++ -- " + frame["name"], to_string=True).strip()
        return sorted(threads, key=lambda thread: not thread["crashed"])

    def frames(self) -> list[dict[str, str]]:
        """Of the selected thread; a handler of a signal has no name. What reads a library looks at all anew."""
        gdb = self.gdb
        while True:
            frames: list[dict[str, str]] = []
            with contextlib.suppress(gdb.error):  # a stack that is destroyed ends somewhere
                frame = gdb.newest_frame()
                while frame is not None and len(frames) < _DEEPEST:
                    library = gdb.solib_name(frame.pc()) or ""
                    if library and library not in self.known:
                        self.known.add(library)
                        pattern = re.sub(r"[^\w/]", ".", library)
                        gdb.execute(f"sharedlibrary ^{pattern}$", to_string=True)
                        frames = []
                        frame = gdb.newest_frame()
                        continue
                    name = "" if frame.type() == gdb.SIGTRAMP_FRAME else frame.name() or "??"
                    frames.append({"name": name, "file": library, "address": hex(frame.pc())})
                    frame = frame.older()
            return frames


def _as_dump(threads: list[dict[str, Any]], *, all_threads: bool = False) -> str:
    """In the words of ``faulthandler``, without what calls the interpreter."""
    text = ""
    for thread in threads if all_threads else threads[:1]:
        heading = "Current thread's" if thread is threads[0] else f"Thread {thread['id']}'s"
        text += f"\n{heading} C stack trace (most recent call first):\n"
        for frame in thread["frames"]:
            if frame["name"] in _INTERPRETER:
                break
            text += f'  Binary file "{frame["file"]}", at {frame["name"]} [{frame["address"]}]\n'
    return text


def _catches(pid: int, number: int) -> bool:
    match = re.search(r"^SigCgt:\s*([0-9a-f]+)", _read(f"/proc/{pid}/status"), re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> (number - 1) & 1)


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(2**20)
    except OSError:
        return ""


#: The name that ``start.py`` looks for, see ``collectors.contract``.
InProcess = GdbStarter


if __name__ == "__main__":
    watch = GdbWatch(importlib.import_module("gdb"), *globals()["ASKED"])
    try:
        watch.wait()
    except Exception as error:  # also of gdb; the process goes on without it
        watch.complain(error)
