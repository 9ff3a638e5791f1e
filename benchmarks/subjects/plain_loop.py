"""The least that running a command can cost: ``subprocess.run`` in a loop. Durations in seconds, as JSON on stdout."""

from __future__ import annotations

import json
import subprocess
import sys
import time

times = []
for _ in range(int(sys.argv[1])):
    start = time.perf_counter()
    subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    times.append(time.perf_counter() - start)
print(json.dumps(times))
