"""One rank raises, and a thread that is no daemon keeps its process from ending.

ranks: 3
guilty: 1
status: workload_failed, timeout
kind: exception, timeout
says: learning rate is negative
deadline: 30
"""

import threading
import time

import torch
import torch.distributed as dist


def heartbeat():
    while True:
        time.sleep(1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    threading.Thread(target=heartbeat).start()
    rate = 0.3
    for step in range(6):
        rate -= 0.1 * (rank == 1)
        if rate < -0.05:
            raise ValueError(f"learning rate is negative: {rate:.2f}")
        dist.all_reduce(torch.ones(2))
    time.sleep(3600)


if __name__ == "__main__":
    main()
