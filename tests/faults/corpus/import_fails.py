"""A module is missing on the host of one rank.

ranks: 3
guilty: 2
status: workload_failed, infrastructure_failed
kind: exception
says: flash_attention_of_ours
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

if os.environ["RANK"] == "2":
    import flash_attention_of_ours  # noqa: F401


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
