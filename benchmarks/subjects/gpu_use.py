"""The least use of a GPU: ``gpu_use.py once|server NUMBER|devices``, the latter two print JSON; a workload ``Uses``."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch


def use() -> float:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    matrix = torch.ones(512, 512, device=device)
    return float((matrix @ matrix)[0, 0])


class Uses:
    def __init__(self, config: Any) -> None:
        pass

    def setup(self) -> None:
        pass

    def run(self) -> dict[str, bool]:
        return {"passed": use() == 512}


def server(number: int) -> list[float]:
    times = []
    for _ in range(number):
        start = time.perf_counter()
        if (pid := os.fork()) == 0:
            os._exit(use() != 512)
        assert os.waitpid(pid, 0)[1] == 0
        times.append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    what, *more = sys.argv[1:]
    if what == "server":
        print(json.dumps(server(int(more[0]))))
    elif what == "devices":
        print(json.dumps([torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]))
    else:
        use()
