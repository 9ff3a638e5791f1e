"""The least that a fresh process with torch can cost: fork, exit, wait. Durations in seconds, as JSON on stdout."""

from __future__ import annotations

import json
import os
import sys
import time

import torch  # noqa: F401  (what makes a fork expensive)

times = []
for _ in range(int(sys.argv[1])):
    start = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    times.append(time.perf_counter() - start)
print(json.dumps(times))
