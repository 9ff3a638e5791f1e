"""Whether the dynamic loader has loaded or unloaded anything since."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

Loads = tuple[int, int]


def library_loads() -> Loads | None:
    """How many shared objects the loader has added and removed so far, as ``dl_iterate_phdr(3)`` counts them.

    ``None`` where ctypes is not imported (this does not import it; torch does), and where libc has no such counters.
    Takes microseconds, where reading ``/proc/self/maps`` takes close to a millisecond in a fork.
    """
    return None if "ctypes" not in sys.modules else _counter()()


@functools.cache
def _counter() -> Callable[[], Loads | None]:
    import ctypes

    class Info(ctypes.Structure):
        _fields_ = (
            ("address", ctypes.c_void_p),
            ("name", ctypes.c_void_p),
            ("headers", ctypes.c_void_p),
            ("count", ctypes.c_uint16),
            ("adds", ctypes.c_ulonglong),
            ("subs", ctypes.c_ulonglong),
        )

    found: list[Loads] = []

    def see_first(info: Any, size: int, data: object) -> int:
        if size >= ctypes.sizeof(Info):
            found[:] = [(info.contents.adds, info.contents.subs)]
        return 1  # no further object: the counters are the same for all

    iterate = getattr(ctypes.CDLL(None), "dl_iterate_phdr", None)
    if iterate is None:  # macOS
        return lambda: None

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)(see_first)

    def count() -> Loads | None:
        iterate(callback, None)
        return found[0] if found else None

    return count
