"""Two workers add their gradients to shared weights. Between reading and writing, the other one may have written."""

import argparse
import os
import random
import sys
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
steps = parser.parse_args().steps
weights, done = [0.0], [0]


def work(workers: int) -> None:
    for _ in range(steps // workers):
        time.sleep(random.random() / 50)  # loading a batch
        before = weights[0]
        time.sleep(0.0005)  # computing a gradient
        weights[0] = before + 1.0
        done[0] += 1
        sys.stdout.write(f"step {done[0]} loss {steps - weights[0]}\n")


workers = int(os.environ.get("OMP_NUM_THREADS", "2"))
threads = [threading.Thread(target=work, args=(workers,)) for _ in range(workers)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(f"{steps - weights[0]:.0f} updates are lost" if weights[0] != steps else 0)
