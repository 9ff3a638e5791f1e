"""The least that a trial can cost: ``loops.py fork|server|command NUMBER [WORDS...]`` prints seconds as JSON.

``fork``: fork, exit, wait. ``server``: with a trial's duties, which are log files, a deadline, and a record that is
written and synced. ``command``: ``subprocess.run`` of the words.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path


def fork(number: int) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def server(number: int) -> None:
    folder = Path(f"server_{number}")
    folder.mkdir(exist_ok=True)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
        os._exit(0)
    ended = os.pidfd_open(pid)
    if not select.select([ended], [], [], 60.0)[0]:
        os.killpg(pid, signal.SIGKILL)
    os.close(ended)
    _, status = os.waitpid(pid, 0)
    record = {"trial_index": number, "exit_status": "workload_failed" if status else "ok"}
    with open(folder / "record.tmp", "w") as file:
        json.dump(record, file)
        os.fsync(file.fileno())
    os.replace(folder / "record.tmp", f"server_{number}.json")


def command(number: int) -> None:
    subprocess.run(sys.argv[3:], stdin=subprocess.DEVNULL, capture_output=True, check=True)


one = {"fork": fork, "server": server, "command": command}[sys.argv[1]]
if one is not command:
    import torch  # noqa: F401  (what makes a fork expensive)

times = []
for number in range(int(sys.argv[2])):
    start = time.perf_counter()
    one(number)
    times.append(time.perf_counter() - start)
print(json.dumps(times))
