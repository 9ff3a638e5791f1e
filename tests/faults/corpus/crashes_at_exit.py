"""After all is done, one rank crashes while its interpreter ends.

ranks: 3
guilty: 1
status: workload_failed, infrastructure_failed
kind: signal
says: SIGSEGV
elsewhere: auto
"""

import atexit
import ctypes

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        atexit.register(ctypes.string_at, 0)  # a library that frees twice
    for _ in range(5):
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    print("done", flush=True)


if __name__ == "__main__":
    main()
