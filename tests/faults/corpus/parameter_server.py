"""Workers send gradients to the server of rank 0; one of them dies of a bad sample.

ranks: 4
guilty: 3
status: workload_failed
kind: exception
says: sample 9 has no target
"""

import torch
import torch.distributed as dist


def serve(workers, rounds):
    weights, grad = torch.zeros(16), torch.zeros(16)
    for _ in range(rounds):
        for worker in range(1, workers + 1):
            dist.recv(grad, src=worker)
            weights -= 0.1 * grad
        for worker in range(1, workers + 1):
            dist.send(weights, dst=worker)


def work(rank, rounds):
    weights = torch.zeros(16)
    for index in range(rounds):
        if rank == 3 and index == 9:
            raise LookupError(f"sample {index} has no target")
        dist.send(weights + index, dst=0)
        dist.recv(weights, src=0)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        serve(size - 1, rounds=12)
    else:
        work(rank, rounds=12)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
