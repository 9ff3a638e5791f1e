"""A request of one rank to its own server times out; all mains log and exit 1.

ranks: 3
guilty: 2
status: workload_failed
kind: exception, exit_code
says: feature server
"""

import logging
import sys

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)


def features(rank, step):
    if rank == 2 and step == 4:
        raise TimeoutError("feature server: timed out waiting 3000 ms for a response")
    return torch.rand(8)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s:%(message)s", stream=sys.stdout)
    dist.init_process_group("gloo")
    try:
        for step in range(10):
            dist.all_reduce(features(dist.get_rank(), step))
    except Exception as error:
        logger.error("run aborted: %s", error)
        sys.exit(1)
    dist.destroy_process_group()
