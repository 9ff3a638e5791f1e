"""What a trial with two gloo ranks costs from start to result, against torchrun."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from benchmarks.compare import Comparison, Subject
from benchmarks.processes import Workplace

#: Items of one pytest run.
TRIALS = 12

COMPARISONS = (Comparison("torchrun / trial of two ranks", "torchrun", "ranks", at_least=15),)


def subjects(place: Workplace) -> dict[str, Subject]:
    """Whose times are compared."""

    def ranks() -> Sequence[float]:
        return place.items(
            sys.executable, "-p", "pytest_aorta.plugin", "two_ranks_workload.py", f"--aorta-trials={TRIALS}"
        )

    def torchrun() -> Sequence[float]:
        # Static rendezvous: c10d's would wait a random time in addition.
        command = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={_free_port()}")
        return place.wall(sys.executable, *command, "two_ranks_script.py")

    return {
        "ranks": Subject("a trial of 2 gloo ranks and an all-reduce", ranks),
        "torchrun": Subject("torchrun of a script that does the same", torchrun),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
