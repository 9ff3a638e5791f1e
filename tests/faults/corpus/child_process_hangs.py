"""A program that one rank has started never ends.

ranks: 2
guilty: 0
status: timeout
kind: timeout
says: rank 0
deadline: 25
"""

import subprocess

import torch
import torch.distributed as dist


def unpack(archive):
    subprocess.run(["sh", "-c", f"echo unpacking {archive}; exec tail -f /dev/null"], check=True)


def main():
    dist.init_process_group("gloo")
    for step in range(3):
        if dist.get_rank() == 0 and step == 1:
            unpack("shard-1.tar")
        dist.barrier()
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
