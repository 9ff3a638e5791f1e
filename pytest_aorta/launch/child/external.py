"""A rank under an outer launcher: ``torchrun -m pytest``, where every rank's pytest starts every trial."""

from __future__ import annotations

import os


def agree_on_master_port(trial_id: str) -> None:
    """Wait for the other ranks, and set ``MASTER_PORT`` to the same fresh port in all of them.

    torchrun gives all trials of a pytest run one store. A second ``init_process_group()`` on it would read the
    addresses that the first one left there, so rank 0 announces a free port under the trial's name instead.
    Without torchrun's store (another launcher), the given ``MASTER_PORT`` is used again and again, which works as long
    as trials follow one another.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    import socket
    from datetime import timedelta

    import torch.distributed as dist

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    agents = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=300))  # type: ignore[attr-defined]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    shared = dist.PrefixStore(f"aorta/{attempt}/{trial_id}", agents)  # type: ignore[attr-defined]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    shared.set(f"here/{rank}", "1")
    if rank == 0:
        shared.wait([f"here/{other}" for other in range(size)])
        with socket.socket() as probe:
            probe.bind(("", 0))
            shared.set("port", str(probe.getsockname()[1]))
    os.environ["MASTER_PORT"] = shared.get("port").decode()
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
