"""Mixture of experts: one rank sends other split sizes than the others expect of it.

ranks: 3
guilty: 1, unknowable
status: workload_failed, timeout
kind: exception, signal, timeout
says: rank | all_to_all
deadline: 40
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(5):
        send = [4] * size
        if rank == 1 and step == 3:
            send = [8, 4, 0]  # a router of an older version
        receive = [4] * size
        tokens, output = torch.randn(sum(send), 16), torch.empty(sum(receive), 16)
        dist.all_to_all_single(output, tokens, receive, send)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
