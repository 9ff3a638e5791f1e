"""All ranks hide what they caught behind the same ``raise ... from None``.

ranks: 3
guilty: 1, unknowable
status: workload_failed
kind: exception
says: corrupt batch 17 | training failed
"""

import torch
import torch.distributed as dist


class TrainingError(Exception):
    pass


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(6):
        if rank == 1 and step == 3:
            raise ValueError("corrupt batch 17")
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except Exception:
        raise TrainingError("training failed, see the log of the data service") from None
