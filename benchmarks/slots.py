"""What slots save: the trials of one pytest process, one at a time and two at a time, and ``-n 2`` beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from benchmarks.compare import Comparison, Subject
from benchmarks.processes import Workplace

#: Trials of one pytest run.
TRIALS = 64

#: One trial: single-threaded products for some tenths of a second.
_GEMM = (
    "--aorta-workload=gemm",
    "--aorta-config=sizes=512x512x512",
    "--aorta-config=dtypes=float32",
    "--aorta-config=steps=16",
    f"--aorta-trials={TRIALS}",
)

COMPARISONS = (
    Comparison("1 slot / 2 slots, one thread each", "one", "two", at_least=1.7),
    Comparison("-n 2 / 2 slots, one thread each", "xdist", "two"),
    Comparison("1 slot / 2 slots, threads not fixed", "one_free", "two_free"),
    Comparison("2 slots, threads not fixed / 2 slots, cores of their own", "two_free", "two_own"),
    Comparison("-n 2, threads not fixed / -n 2, cores of their own", "xdist_free", "xdist_own"),
)


def subjects(place: Workplace) -> dict[str, Subject]:
    """Whose times are compared."""

    def run(*how: str, threads: str | None) -> Callable[[], Sequence[float]]:
        environ = {"OMP_NUM_THREADS": threads} if threads is not None else {}
        command = (sys.executable, "-m", "pytest", "-q", "-p", "pytest_aorta.plugin.hooks", "-p", "xdist", *_GEMM, *how)
        return lambda: place.wall(*command, **environ)

    found: dict[str, Subject] = {}
    for suffix, threads, said in (("", "1", ", OMP_NUM_THREADS=1"), ("_free", None, "")):
        found |= {
            f"one{suffix}": Subject(f"--aorta-slots 1{said}", run("--aorta-slots=1", threads=threads)),
            f"two{suffix}": Subject(f"--aorta-slots 2{said}", run("--aorta-slots=2", threads=threads)),
            f"xdist{suffix}": Subject(f"-n 2{said}", run("-n2", threads=threads)),
        }
    return found | {
        "two_own": Subject("--aorta-slots 2,own-cores", run("--aorta-slots=2,own-cores", threads=None)),
        "xdist_own": Subject("-n 2 --aorta-slots own-cores", run("-n2", "--aorta-slots=own-cores", threads=None)),
    }
