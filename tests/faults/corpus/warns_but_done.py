"""A failed attempt is logged with its traceback, and is made good: nobody is at fault.

ranks: 2
guilty: none
status: ok
"""

import logging

import torch
import torch.distributed as dist

logging.basicConfig()


def fetch(attempt):
    if attempt == 0:
        raise ConnectionResetError("object store: connection reset by peer")
    return torch.ones(8)


def main():
    dist.init_process_group("gloo")
    for _ in range(4):
        for attempt in range(3):
            try:
                batch = fetch(attempt)
                break
            except ConnectionError:
                logging.exception("fetch failed, once more")
        dist.all_reduce(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
