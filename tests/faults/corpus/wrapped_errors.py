"""Every rank wraps what it caught in the same error of its own, ``from`` the first.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: negative sampling | step 4 failed
"""

import torch
import torch.distributed as dist


class StepFailed(Exception):
    pass


def sample(rank, step):
    if rank == 1 and step == 4:
        raise ValueError("negative sampling found no candidates")
    return torch.ones(8)


def train_step(rank, step):
    try:
        batch = sample(rank, step)
        dist.all_reduce(batch)
    except Exception as error:
        raise StepFailed(f"step {step} failed") from error


def main():
    dist.init_process_group("gloo")
    for step in range(8):
        train_step(dist.get_rank(), step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
