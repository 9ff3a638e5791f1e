"""``python -m benchmarks.report_size RESULTS``: what a report on many trials costs, and how large it is.

The trials are copies of those in RESULTS, with their logs, spread over ten cells; each has step times, messages and
logs of its own, so that no two texts are equal.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_aorta.triage.reading import RecordedTrial, Results

_CELLS = 10

_BUILD = "import sys; from pathlib import Path; from pytest_aorta.triage.report import write_report; "
_BUILD += "write_report(Path(sys.argv[1]), Path(sys.argv[2]))"


def main() -> int:
    """Make the trials, build their report, print what it took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report_size", description=__doc__)
    parser.add_argument("results", type=Path, help="a results directory with trials that failed, and some that did not")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--log-lines", type=int, default=200, help="of each of three logs of a failed trial")
    options = parser.parse_args()
    found = list(Results(options.results))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _write(found, place / "results", options.trials, options.log_lines)
        for _ in range(3):
            begun, cpu = time.perf_counter(), _cpu_of_children()
            subprocess.run(
                [sys.executable, "-c", _BUILD, str(place / "results"), str(place / "report.html")], check=True
            )
            took, used = time.perf_counter() - begun, _cpu_of_children() - cpu
            size = (place / "report.html").stat().st_size / 1e6
            print(f"{options.trials} trials: {took:.2f} s, of which {used:.2f} s on a CPU; {size:.2f} MB", flush=True)
    return 0


def _write(found: Sequence[RecordedTrial], results: Path, trials: int, log_lines: int) -> None:
    rng = random.Random(1)
    ends = [
        [trial for trial in found if (trial.facts.outcome == "ok") is is_ok] or list(found) for is_ok in (False, True)
    ]
    for number in range(trials):
        cell, index = number % _CELLS, number // _CELLS
        is_ok = rng.random() >= 0.9 - 0.08 * cell
        record: dict[str, Any] = json.loads(json.dumps(rng.choice(ends[is_ok]).record))
        name = "none" if cell == 0 else f"m{cell}"
        record["trial_id"] = f"copy_d0_m{cell}_t{index}"
        record.update(workload="copy", cell=f"local-{name}", mitigations_applied=[name], trial_index=index)
        record["started_at"] = f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}.000+00:00"
        record["result"]["step_times_ms"] = [abs(rng.gauss(20 + cell, 2)) for _ in range(200)]
        file = results / "copy" / record["cell"] / f"trial_{index}.json"
        logs = file.with_suffix("")
        logs.mkdir(parents=True)
        record["artifacts"] = {}
        for log in () if is_ok else ("stdout", "stderr", "stacks"):
            lines = [f"[{number}] step {step} loss {rng.random():.6f} <bucket {step}>" for step in range(log_lines)]
            (logs / f"{log}.log").write_text("\n".join(lines))
            record["artifacts"][log] = f"{logs.name}/{log}.log"
        file.write_text(json.dumps(record, indent=1))


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
