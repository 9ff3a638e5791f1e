"""A workload of ranks in which something goes wrong between them; copied to where pytest runs.

``config["script"]`` names the part of each trial, separated by dots; ``config["at"]`` is the rank at fault, or
``second_node`` for the second one of that node. As a script, it takes the parts as its argument; with ``--spawn`` it
starts its ranks itself.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

#: Seconds; more than any test waits.
FOREVER = 1000

#: As ``runtime.process_tree`` has it.
STACK_SIGNAL = signal.SIGRTMAX - 3


def trial_index() -> int:
    """Of the trial that this process belongs to, by its variable (of a command) or the place of its log."""
    if "AORTA_TRIAL_INDEX" in os.environ:
        return int(os.environ["AORTA_TRIAL_INDEX"])
    found = re.search(r"/trial_(\d+)[/._]", os.readlink("/proc/self/fd/1"))
    assert found is not None
    return int(found[1])


class RankFaults:
    launch_mode = "distributed"
    min_world_size = 3

    def __init__(self, config: dict[str, Any]) -> None:
        parts = str(config["script"]).split(".")
        self.part = parts[min(trial_index(), len(parts) - 1)]
        self.rank = int(os.environ["RANK"])
        # Which ranks it has, is for c10d to decide.
        self.second_node = ".node_1/" in os.readlink("/proc/self/fd/1")
        self.at_fault = str(self.rank) == str(config.get("at", 1))
        if config.get("at") == "second_node":
            self.at_fault = self.second_node and os.environ["LOCAL_RANK"] == "1"
        self.attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))

    def plays(self, part: str) -> bool:
        return self.part == part and self.at_fault

    def setup(self) -> None:
        if self.plays("leaves_before_init"):
            os._exit(0)
        if self.plays("sleeps_before_init"):
            time.sleep(FOREVER)
        if self.part == "no_group":
            return
        patience = (
            3 if self.part.startswith(("gives_up", "enters")) else 10 if self.part == "leaves_before_init" else 60
        )
        dist.init_process_group("gloo", timeout=timedelta(seconds=patience))
        if self.plays("setup_raises"):
            raise RuntimeError("rank 1 cannot be set up")
        self.pids = [None] * dist.get_world_size()
        dist.all_gather_object(self.pids, os.getpid())

    def run(self) -> Any:
        if self.part == "no_group":
            if not self.at_fault:
                time.sleep(1)
            return {"passed": True}
        print(f"rank {self.rank} begins", flush=True)
        for step in range(637):
            self.progress(step + 1, 1000)
        total = torch.ones(4)
        for _ in range(3):
            dist.all_reduce(total)
        if self.part == "raises_late":  # when the others are done
            if self.at_fault:
                time.sleep(2)
                raise ValueError("rank 1 has a late bug")
            return {"passed": True}
        self.play()
        if self.part == "shares_a_nan":
            total *= float("nan") if self.at_fault else 1.0
        dist.all_reduce(total)
        if self.plays("enters_one_more"):
            dist.all_reduce(total)
        if self.part == "shares_a_nan":
            return {"passed": not bool(total.isnan().any())}
        if self.part == "second_node_lingers" and self.second_node:
            open("lingers", "w").close()
            time.sleep(FOREVER)
        if self.part == "lingers" and self.rank == 1:
            time.sleep(1)  # by then, rank 0 has returned
            open("lingers", "w").close()
            time.sleep(FOREVER)
        if self.part == "first_node_lingers" and not self.second_node:
            time.sleep(FOREVER)
        if self.plays("returns_false"):
            return {"passed": False, "failure_count": 1}
        return {"passed": True, "metrics": {"total": float(total[0])}}

    def progress(self, step: int, total: int) -> None:
        """Replaced by the runner."""

    def play(self) -> None:
        part = self.part
        if part == "terminated_by_another" and self.rank == 0:
            os.kill(int(self.pids[1] or 0), signal.SIGTERM)
        if part == "killed_by_another" and self.rank == 0:
            os.kill(int(self.pids[1] or 0), signal.SIGKILL)
        if part == "second_node_sleeps" and self.second_node:
            open("sleeps", "w").close()
            time.sleep(FOREVER)
        while part == "steps_on":
            dist.all_reduce(torch.ones(4))
            open("steps", "w").close()
            time.sleep(0.02)
        if part == "waits_for_a_file":
            open("waits", "w").close()
            while not os.path.exists("go_on"):
                time.sleep(0.05)
        if part == "deaf_waits":
            # Rank 2 gives no stack, but waits as rank 0 does.
            if self.rank == 2:
                signal.signal(STACK_SIGNAL, signal.SIG_IGN)
            if self.at_fault:
                time.sleep(FOREVER)
        if part == "enters_another_size":
            dist.all_reduce(torch.ones(8 if self.at_fault else 4))
        if part == "enters_in_another_order":
            pair, both = dist.new_group([0, 1]), [lambda: dist.all_reduce(torch.ones(4))]
            if self.rank in (0, 1):
                both.append(lambda: dist.all_reduce(torch.ones(4), group=pair))
            for enter in reversed(both) if self.at_fault else both:
                enter()
        if self.at_fault:
            self.play_alone(part)

    def play_alone(self, part: str) -> None:
        if part in ("gives_up", "sleeps"):
            time.sleep(FOREVER)
        elif part == "segfaults":
            ctypes.string_at(0)
        elif part == "leaves":
            os._exit(0)
        elif part == "enters_another_kind":
            dist.broadcast(torch.ones(4), 0)
        elif part == "exits_3":
            os._exit(3)
        elif part == "raises" or (part == "raises_once" and self.attempt == 0):
            raise ValueError("rank 1 has a bug")
        elif part == "raises_its_own_timeout":
            raise TimeoutError("Timed out waiting for shard server")
        elif part == "blocked_with_the_gil":
            ctypes.PyDLL(None).sleep(FOREVER)
        elif part == "woken_from_c":
            # A system call that ends when a signal comes; and then all is as if nothing had been.
            ctypes.CDLL(None).pause()

    def cleanup(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def play_as_script(local_rank: int | None = None) -> None:
    if local_rank is not None:
        os.environ.update(RANK=str(local_rank), LOCAL_RANK=str(local_rank))
    faults = RankFaults({"script": sys.argv[1]})
    faults.setup()
    faults.run()
    faults.cleanup()


if __name__ == "__main__":
    if "--spawn" in sys.argv:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]), WORLD_SIZE="3")
        torch.multiprocessing.spawn(play_as_script, nprocs=3)  # type: ignore[attr-defined,no-untyped-call]
    else:
        play_as_script()
