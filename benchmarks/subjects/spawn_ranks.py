"""``python spawn_ranks.py RANKS SCRIPT``: a main that starts its ranks by ``torch.multiprocessing.spawn``."""

from __future__ import annotations

import os
import runpy
import socket
import sys

import torch.multiprocessing as mp


def run_rank(rank: int, script: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    ranks, script = int(sys.argv[1]), sys.argv[2]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]), WORLD_SIZE=str(ranks))
    mp.spawn(run_rank, args=(script,), nprocs=ranks)  # type: ignore[attr-defined,no-untyped-call]
