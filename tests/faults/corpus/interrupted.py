"""One rank is interrupted, as by Ctrl-C in a terminal of its own.

ranks: 3
guilty: 2
status: workload_failed
kind: exception, signal, exit_code
says: KeyboardInterrupt | SIGINT | exit code 130
"""

import os
import signal
import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    for step in range(6):
        if dist.get_rank() == 2 and step == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
