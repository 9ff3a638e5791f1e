"""pytest plugin: the time from the start of every item to the start of the next, in seconds, as JSON."""

from __future__ import annotations

import json
import os
import time
from itertools import pairwise
from pathlib import Path

_starts: list[float] = []


def pytest_runtest_logstart() -> None:
    _starts.append(time.perf_counter())


def pytest_sessionfinish() -> None:
    times = [end - start for start, end in pairwise(_starts)]
    Path(os.environ["BENCHMARK_OUTPUT"]).write_text(json.dumps(times))
