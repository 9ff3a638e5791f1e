"""What a trial with two, and with four, gloo ranks costs from start to result, against torchrun."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence

from benchmarks.compare import Comparison, Subject
from benchmarks.processes import Workplace

#: Items of one pytest run.
TRIALS = 12

COMPARISONS = (
    Comparison("torchrun / trial of two ranks", "torchrun", "ranks", at_least=20),
    Comparison("torchrun / trial of four ranks", "torchrun of 4", "ranks of 4", at_least=20),
)


def subjects(place: Workplace) -> dict[str, Subject]:
    """Whose times are compared."""

    def ranks(number: int) -> Callable[[], Sequence[float]]:
        return lambda: place.items(
            *(sys.executable, "-p", "pytest_aorta.plugin.hooks", "gloo_ranks_workload.py"),
            *(f"--aorta-trials={TRIALS}", f"--aorta-nproc={number}"),
        )

    def torchrun(number: int) -> Callable[[], Sequence[float]]:
        # Static rendezvous: c10d's would wait a random time in addition.
        command = ("-m", "torch.distributed.run", f"--nproc-per-node={number}")
        return lambda: place.wall(sys.executable, *command, f"--master-port={_free_port()}", "gloo_ranks_script.py")

    return {
        "ranks": Subject("a trial of 2 gloo ranks and an all-reduce", ranks(2)),
        "torchrun": Subject("torchrun of a script that does the same", torchrun(2)),
        "ranks of 4": Subject("a trial of 4 gloo ranks and an all-reduce", ranks(4)),
        "torchrun of 4": Subject("torchrun of a script that does the same", torchrun(4)),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
