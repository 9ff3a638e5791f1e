"""All ranks handle SIGTERM by a line and exit 0, as on a preemptible host; one of them raises.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: checksum of step 3
"""

import signal
import sys
import time

import torch
import torch.distributed as dist


def preempted(number, frame):
    print("SIGTERM: saving state, good bye", flush=True)
    sys.exit(0)


def main():
    signal.signal(signal.SIGTERM, preempted)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(6):
        if rank == 1 and step == 3:
            raise RuntimeError("checksum of step 3 is wrong")
        if rank == 2 and step == 3:
            time.sleep(30)  # evaluation, before the next all_reduce
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
