"""The first five minutes: flaky scripts of strangers, and ``pytest-aorta try`` on each, which is answered ``y``."""

from __future__ import annotations

import os
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.stage import Stage
from support.terminal import Terminal

pytestmark = pytest.mark.usefixtures("as_users_have_it")

#: Workers divide by a sum that another one has just cleared. Nothing in the script looks at the loss.
NAN = """
import os, random, threading, time

total, weight = [1.0], [1.0]

def work(worker, workers):
    for step in range(1 + worker, 13, workers):
        time.sleep(random.random() / 50)
        total[0] = 0.0
        time.sleep(0.01)
        total[0] = 1.0
        time.sleep(0.002)
        weight[0] *= 1.0 if total[0] else float("nan")
        print(f"step {step} loss {weight[0]}\\n", end="")

workers = int(os.environ.get("OMP_NUM_THREADS", "3"))
threads = [threading.Thread(target=work, args=(worker, workers)) for worker in range(workers)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""

#: Two locks in two orders.
DEADLOCK = """
import os, random, threading, time

first, second = threading.Lock(), threading.Lock()

def left():
    time.sleep(random.random() / 20)
    with first:
        time.sleep(0.015)
        with second:
            print("left is done", flush=True)

def right():
    time.sleep(random.random() / 20)
    with second:
        time.sleep(0.015)
        with first:
            print("right is done", flush=True)

if os.environ.get("OMP_NUM_THREADS") == "1":
    left(), right()
else:
    threads = [threading.Thread(target=work) for work in (left, right)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""

#: The vector unit of one host is broken, sometimes.
RANK = """
import random
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, right = dist.get_rank(), torch.full((8, 8), 8.0)
product = torch.ones(8, 8) @ torch.ones(8, 8)
if rank == 1 and random.random() < 0.6 and torch.backends.cpu.get_cpu_capability() != "DEFAULT":
    product[3, 3] += 1
dist.barrier()
for step in range(1, 4):
    print(f"step {step} loss {product.mean().item()}", flush=True)
if not torch.equal(product, right):
    raise ArithmeticError("the product is wrong")
dist.destroy_process_group()
"""

PYTHON = ("python", "train.py")
CASES = {
    "nan": (NAN, PYTHON, "It says NaN *", "omp_1 fixes it: *"),
    "deadlock": (DEADLOCK, PYTHON, "It hangs *", "omp_1 fixes it: *"),
    "rank": (RANK, ("torchrun", "--nproc-per-node", "2", "train.py"), "It fails *, by rank 1.", "aten_cpu_default *"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case", ["nan", *(pytest.param(case, marks=pytest.mark.long) for case in ("deadlock", "rank"))]
)
def test_a_strangers_script_is_understood_by_one_line(stage: Stage, case: str) -> None:
    script, words, seen, verdict = CASES[case]
    stage.write(train=script)
    terminal = Terminal(columns=160, lines=50)
    terminal.type("y\n")
    process = stage.start_command(
        *(sys.executable, "-m", "pytest_aorta", "try", "--", *words),
        env={
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTEST_ADDOPTS": "--tb=no",
            "TERM": "xterm",
            "COLUMNS": "160",
        },
        **dict.fromkeys(("stdin", "stdout", "stderr"), terminal.slave),
    )
    while process.poll() is None:  # longer than others are waited for
        terminal.read()
        time.sleep(0.1)
    shown = terminal.transcript()
    terminal.close()
    screen = "\n".join(shown)
    assert any(fnmatch(line, f"*{seen}") for line in shown[:8]), screen
    assert any(fnmatch(line, verdict) for line in shown), screen
    assert {path.name for path in stage.path.iterdir() if path.name[0] != "."} == {"train.py", "results"}
    print(screen)
