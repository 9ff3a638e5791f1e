"""A ``finally`` of the rank at fault raises another exception, over the first.

ranks: 3
guilty: 0
status: workload_failed
kind: exception
says: 'NoneType' object has no attribute 'close' | config key
"""

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    writer = None
    config = {"lr": 0.1}
    try:
        for step in range(5):
            if dist.get_rank() == 0 and step == 2:
                if "warmup" not in config:
                    raise KeyError("config key 'warmup'")
                writer = open("events.log", "w")
            dist.all_reduce(torch.ones(4))
    finally:
        if dist.get_rank() == 0:
            writer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
