"""Only rank 0 prints; the rank at fault catches its exception and exits 1 in silence.

ranks: 4
guilty: 3
status: workload_failed
kind: exception, exit_code
says: index 99 is out of bounds | rank 3
"""

import sys
import traceback

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, table = dist.get_rank(), torch.arange(50)
    try:
        for step in range(8):
            index = 99 if rank == 3 and step == 5 else step
            row = table[index].float()
            dist.all_reduce(row)
            if rank == 0:
                print(f"step {step}: {row.item()}")
    except Exception:
        if rank == 0:
            print("TRAINING FAILED")
            traceback.print_exc(file=sys.stdout)
        sys.exit(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
