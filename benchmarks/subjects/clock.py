"""pytest plugin: CPU seconds of the start of a session, its collection and its run, and wall time from item to item.

With ``BENCHMARK_COUNT``, the calls of functions instead of CPU seconds, of Python and of C: the same in every run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

_calls = 0
_seen: list[float] = []
_items: list[float] = []


def _count(frame: object, event: str, argument: object) -> None:
    global _calls
    if event in ("call", "c_call"):
        _calls += 1


def _now() -> float:
    return _calls if "BENCHMARK_COUNT" in os.environ else time.process_time()


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    _seen.append(_now())


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    _seen.append(_now())


def pytest_runtest_logstart() -> None:
    _items.append(time.perf_counter())


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    _seen.append(_now())
    start, collected, ended = _seen
    sys.setprofile(None)
    found = {"start": start, "collect": collected - start, "run": ended - collected}
    items = [end - start for start, end in pairwise(_items)]
    Path(os.environ["BENCHMARK_OUTPUT"]).write_text(json.dumps({**found, "items": items}))


if "BENCHMARK_COUNT" in os.environ:
    sys.setprofile(_count)
