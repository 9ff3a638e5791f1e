"""The main logs the exception with ``logging.exception`` and exits 1, on all ranks.

ranks: 3
guilty: 2
status: workload_failed
kind: exception, exit_code
says: tokenizer returned no tokens
"""

import logging
import sys

import torch
import torch.distributed as dist

log = logging.getLogger("train")


def tokens(rank, step):
    found = [] if rank == 2 and step == 5 else list(range(16))
    if not found:
        raise RuntimeError("tokenizer returned no tokens")
    return torch.tensor(found, dtype=torch.float32)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [rank {rank}] %(levelname)s %(message)s")
    try:
        for step in range(20):
            loss = tokens(rank, step).mean()
            dist.all_reduce(loss)
            log.info("step %d loss %.2f", step, loss)
    except Exception:
        log.exception("training failed")
        return 1
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
