"""A fork server of 30 lines with a trial's duties: fork, log files, deadline, a record that is written and synced."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path

import torch  # noqa: F401  (what makes a fork expensive)

times = []
for number in range(int(sys.argv[1])):
    start = time.perf_counter()
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
    times.append(time.perf_counter() - start)
print(json.dumps(times))
