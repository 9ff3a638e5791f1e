"""When pytest itself is a rank: ``torchrun -m pytest``.

Every rank's pytest runs every trial in a child of its own; the ranks' children find each other through torchrun's
store. Rank 0 alone reports and writes; what the other ranks of its host found reaches it through their stories.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from pytest_aorta.launch.child.event_log import story
from pytest_aorta.launch.child.rank_records import rank_records
from pytest_aorta.trials.events import RankData

#: Seconds that rank 0 waits for the other ranks' endings after its own.
_PATIENCE = 30.0


def rank_folder(folder: Path, rank: int) -> Path:
    """A rank's own artifacts folder: that of the trial for rank 0, one beside it for every other."""
    return folder if rank == 0 else folder.with_name(f"{folder.name}.rank_{rank}")


def meet(trial_id: str) -> None:
    """Wait for the other ranks, and agree with them on a fresh ``MASTER_PORT`` for this trial.

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


def tell_the_end(folder: Path, rank: int, returncode: int | None, overdue: float | None = None) -> None:
    """Close this rank's story in its own ``folder``, so that rank 0 need not wait for more.

    ``overdue``: when its deadline passed, in seconds of ``time.time()``, if it did.
    """
    with story(folder, rank).open("a") as file:
        # On a line of its own, also after one that the rank could not finish.
        file.write("\n" + json.dumps({"type": "over", "returncode": returncode, "overdue": overdue}) + "\n")


def gather(
    folder: Path, returncode: int | None, overdue: float | None = None, patience: float = _PATIENCE
) -> list[RankData]:
    """The records of all ranks of this host, for rank 0, whose own end the arguments tell.

    Ranks of other hosts are not heard; what they break shows in rank 0's own collectives.
    """
    local = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    ends: dict[int, dict[str, Any]] = {0: {"returncode": returncode, "overdue": overdue}}
    give_up = time.monotonic() + patience
    while len(ends) < local and time.monotonic() < give_up:
        for rank in range(1, local):
            if rank not in ends and (end := _end_of(folder, rank)) is not None:
                ends[rank] = end
        time.sleep(0.01)
    endings = {rank: {"exitcode": end["returncode"]} for rank, end in ends.items() if end["returncode"] is not None}
    late = {rank: end["overdue"] for rank, end in ends.items() if end["overdue"] is not None}

    def log(rank: int, name: str) -> str | None:
        path = rank_folder(folder, rank) / f"{name}.log"
        return path.relative_to(folder.parent).as_posix() if path.exists() else None

    records = rank_records(lambda rank: rank_folder(folder, rank), local, endings, log, late)
    for rank in ends.keys() - {0}:
        story(rank_folder(folder, rank), rank).unlink(missing_ok=True)
    return records


def _end_of(folder: Path, rank: int) -> dict[str, Any] | None:
    try:
        lines = story(rank_folder(folder, rank), rank).read_text().splitlines()
        last = json.loads(lines[-1])
    except (OSError, ValueError, IndexError):
        return None
    return last if last.get("type") == "over" else None
