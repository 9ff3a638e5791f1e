"""An exchange of halos: the middle rank sends both of its halos to the same neighbour.

ranks: 3
guilty: 1
status: workload_failed, timeout
kind: exception, timeout
says: rank 1
deadline: 40
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def exchange(field, neighbours, targets):
    ops = [dist.P2POp(dist.irecv, torch.empty_like(field), peer) for peer in neighbours]
    ops += [dist.P2POp(dist.isend, field, peer) for peer in targets]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank, size = dist.get_rank(), dist.get_world_size()
    neighbours = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < size]
    for step in range(5):
        targets = [0, 0] if rank == 1 and step == 3 else neighbours
        exchange(torch.rand(256), neighbours, targets)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
