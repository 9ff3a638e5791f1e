"""Traces the functions of the package in every process that finds this folder on PYTHONPATH."""

import atexit
import inspect
import json
import mmap
import os
import sys
import threading
from types import FrameType

_PACKAGE = f"{os.sep}pytest_aorta{os.sep}"
_folder = os.environ["WAY_TRACES"]
with open(os.path.join(_folder, "part"), "r+b") as _file:
    #: Set by the plugin ``way_marks``, shared by all processes: 1 while pytest runs its items.
    part = mmap.mmap(_file.fileno(), 1)
_functions: set[tuple[str, str]] = set()
_chains: set[str] = set()
_files: dict[str, str | None] = {}


def _inside(path: str) -> str | None:
    if path not in _files:
        _files[path] = path.rpartition(_PACKAGE)[2] if _PACKAGE in path else None
    return _files[path]


def _call(frame: FrameType | None, event: str, _: object) -> None:
    assert frame is not None
    code = frame.f_code
    # Bodies of modules and classes are no functions: they are not optimized.
    if event != "call" or not part[0] or not code.co_flags & inspect.CO_OPTIMIZED:
        return
    if (file := _inside(code.co_filename)) is None:
        return
    name = getattr(code, "co_qualname", code.co_name)
    if (file, name) not in _functions:
        _functions.add((file, f"{name}:{code.co_firstlineno}"))
        rooms: list[str] = []
        while frame is not None:
            inside = _inside(frame.f_code.co_filename)
            room = inside.split(os.sep)[0] if inside else None
            if room is not None and (not rooms or rooms[-1] != room):
                rooms.append(room)
            frame = frame.f_back
        _chains.add(" > ".join(reversed(rooms)))


def _write() -> None:
    sys.setprofile(None)
    with open(os.path.join(_folder, f"{os.getpid()}.json"), "w") as file:
        json.dump({"functions": sorted(_functions), "chains": sorted(_chains)}, file)


def _forked() -> None:
    _functions.clear()
    _chains.clear()


_exit = os._exit


def _traced_exit(code: int) -> None:
    _write()
    _exit(code)


os._exit = _traced_exit  # type: ignore[assignment]
atexit.register(_write)
os.register_at_fork(after_in_child=_forked)
threading.setprofile(_call)
sys.setprofile(_call)
