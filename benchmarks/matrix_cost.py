"""What the matrix costs of a run: ``python -m benchmarks.matrix_cost``.

Records of 50 cells x 200 trials are given to what writes matrix.json and matrix.md, as a run gives them. The trials
themselves are not run: the clock that the writer sees is set forward by the time that each would take.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from pytest_aorta.plugin.writer import MatrixWriter
from pytest_aorta.triage.facts import CellKey, facts_of
from pytest_aorta.triage.verdicts import Triage
from pytest_aorta.workspace.trial_store import TrialStore

_CACHE = Path(__file__).with_name(".cache")


def record(cell: int, index: int, seconds: float, steps: int, generator: random.Random) -> dict[str, Any]:
    """A trial of which some fail: the more, the lower the number of the cell."""
    failed = generator.random() < max(0.0, 0.6 - 0.02 * cell)
    failure = {
        "phase": "run",
        "kind": "exception",
        "type": "ValueError",
        "message": f"loss is nan at step {index}",
        "traceback": 'Traceback\n  File "/home/user/train.py", line 88, in step\n    raise ValueError\n',
    }
    return {
        "trial_id": f"gemm_d0_m{cell}_t{index}",
        "workload": "gemm",
        "cell": f"local-mitigation_{cell}" if cell else "local-none",
        "trial_index": index,
        "execution_env": {"name": "local"},
        "mitigations_applied": [f"mitigation_{cell}" if cell else "none"],
        "result": {"step_times_ms": [generator.lognormvariate(3.0, 0.1) for _ in range(steps)]},
        "exit_status": "workload_failed" if failed else "ok",
        "failure": failure if failed else None,
        "wall_clock_sec": seconds,
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "warnings": [],
    }


class Clock:
    """Real time, and that of trials that were not run."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return time.perf_counter() + self.skipped


def measure(cells: int, trials: int, seconds: float, steps: int) -> dict[str, float]:
    """Give all records to a writer, cells taking turns; seconds and counts."""
    generator, clock, triage = random.Random(0), Clock(), Triage()
    written, in_writer, slowest = 0, 0.0, 0.0
    # Beside the sources rather than in /tmp, which may be memory.
    _CACHE.mkdir(exist_ok=True)
    (_CACHE / ".gitignore").write_text("*\n")
    with tempfile.TemporaryDirectory(dir=_CACHE) as name:
        folder = Path(name)
        for cell in range(cells):
            triage.declare(CellKey("gemm", f"local-mitigation_{cell}" if cell else "local-none"), "local", ("none",))
        writer = MatrixWriter(triage, TrialStore(folder, "stamp"), folder, [], clock)
        begun = clock()
        for index in range(trials):
            for cell in range(cells):
                facts = facts_of(record(cell, index, seconds, steps, generator), f"gemm/{cell}/trial_{index}.json")
                triage.add(facts)
                clock.skipped += seconds
                before = time.perf_counter()
                writer.trial_is_over()
                took = time.perf_counter() - before
                in_writer += took
                slowest = max(slowest, took)
                written += took > 0.001
        run = clock() - begun
        before = time.perf_counter()
        table = triage.table()
        with_table = time.perf_counter() - before
        before = time.perf_counter()
        writer.finish(table, None)
        at_end = time.perf_counter() - before
        size = (folder / "matrix.json").stat().st_size
    return {
        "run_sec": run,
        "written": written,
        "while_running_sec": in_writer,
        "slowest_sec": slowest,
        "table_at_end_sec": with_table,
        "write_at_end_sec": at_end,
        "share": (in_writer + at_end) / run,
        "bytes": size,
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix_cost", description=__doc__)
    parser.add_argument("--cells", type=int, default=50)
    parser.add_argument("--trials", type=int, default=200, help="per cell")
    parser.add_argument("--steps", type=int, default=100, help="per trial")
    parser.add_argument("--seconds", type=float, nargs="+", default=(0.05, 0.5, 5.0), help="that a trial takes")
    options = parser.parse_args()
    print("trial      run        writes  while running  slowest   last write  share   verdicts, end     matrix.json")
    for seconds in options.seconds:
        found = measure(options.cells, options.trials, seconds, options.steps)
        texts = [
            f"{seconds:5.2f} s",
            f"{found['run_sec']:8.0f} s",
            f"{found['written']:6.0f}",
            f"{found['while_running_sec']:11.2f} s",
            f"{found['slowest_sec']:6.2f} s",
            f"{found['write_at_end_sec']:8.2f} s",
            f"{found['share']:6.2%}",
            f"{found['table_at_end_sec']:12.2f} s",
            f"{found['bytes'] / 1e6:8.1f} MB",
        ]
        print("  ".join(texts))


if __name__ == "__main__":
    main()
