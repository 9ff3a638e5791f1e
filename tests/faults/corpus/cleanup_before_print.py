"""The main takes down the group and flushes its logger before it prints what it caught.

ranks: 3
guilty: 1
status: workload_failed
kind: exception, exit_code, signal
says: tensor sizes do not match
"""

import sys
import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    code = 0
    try:
        for step in range(8):
            width = 5 if dist.get_rank() == 1 and step == 3 else 4
            if width != 4:
                raise RuntimeError(f"tensor sizes do not match: {width} and 4")
            dist.all_reduce(torch.ones(width))
    except Exception as e:
        dist.destroy_process_group()
        time.sleep(2)  # wandb.finish()
        print(f"training failed: {e}")
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    main()
