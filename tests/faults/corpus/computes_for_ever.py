"""One rank never leaves an inner loop; the others wait for it until the deadline.

ranks: 2
guilty: 1
status: timeout
kind: timeout
says: rank 1
deadline: 25
"""

import torch
import torch.distributed as dist


def solve(matrix, tolerance):
    x = torch.ones(64)
    residual = 1.0
    while residual > tolerance:
        x = matrix @ x / (matrix @ x).norm()
        residual = (matrix @ x).norm().item()
    return x


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(5):
        matrix = torch.eye(64) / (1 if rank == 1 and step == 2 else 1e9)
        if rank == 1:
            solve(torch.eye(64), tolerance=2.0 if step < 2 else 0.5)
        total = matrix.sum()
        dist.all_reduce(total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
