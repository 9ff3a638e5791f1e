"""A solver on one rank never converges; the others wait for it until the deadline.

ranks: 3
guilty: 1
status: timeout
kind: timeout
says: solve
deadline: 25
"""

import torch
import torch.distributed as dist


def solve(matrix, tolerance=1e-3):
    x, change = torch.rand(len(matrix)), 1.0
    while change > tolerance:
        update = matrix @ x
        change = (update - x).norm().item()
        x = update / update.norm()
    return x


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(5):
        matrix = torch.eye(32)
        if rank == 1 and step == 2:
            matrix = -matrix  # its vectors change their sign for ever
        total = solve(matrix).sum()
        dist.all_reduce(total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
