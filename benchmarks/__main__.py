"""``python -m benchmarks``: measure, print ratios, say which expectations are met."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import gpu, sessions, tasks, trials
from benchmarks.harness import BackgroundLoad, Bench, facts

_CACHE = Path(__file__).with_name(".cache")

_PARTS = {
    "torch": trials.torch,
    "gloo": trials.gloo,
    "dispatch": tasks.dispatch,
    "scaling": tasks.scaling,
    "leaves": tasks.leaves,
    "slots": trials.slots,
    "snapshots": trials.snapshots,
    "lazy": trials.lazy,
    "unused": sessions.unused,
    "command": trials.command,
    "collectors": trials.collectors,
    "status": sessions.status,
    "recipes": sessions.recipes,
    "gpu": gpu.gpu,
}


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="paired measurements (default 5)")
    parser.add_argument("--only", action="append", choices=_PARTS, help="only this part; repeat for several")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    parser.add_argument("--venv-cache", type=Path, default=_CACHE, metavar="DIR", help="for pytest-forked's venv")
    parser.add_argument(
        "--peers", type=Path, default=Path(sys.executable), metavar="PYTHON", help="has Ray and Dask, if not this one"
    )
    parser.add_argument(
        "--quiet",
        type=float,
        metavar="SHARE",
        help="wait while others use more than this part of the cores, and measure again what they have disturbed",
    )
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    cache: Path = options.venv_cache
    cache.mkdir(parents=True, exist_ok=True)
    if cache == _CACHE:
        (cache / ".gitignore").write_text("*\n")
    report: dict[str, Any] = {"machine": facts(), "used_by_others": {}}
    for name, value in report["machine"].items():
        print(f"{name}: {value}")
    # Beside the sources rather than in /tmp, which may be memory: trials write their files to a real disk.
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=cache))
    try:
        bench = Bench(folder, options)
        bench.run(sys.executable, "-c", "import torch")  # from the disk, for once
        for part in options.only or _PARTS:
            print(f"\n== {part}", flush=True)
            load = BackgroundLoad()
            report[part] = _PARTS[part](bench)
            report["used_by_others"][part] = load.share()
            print(f"(others used {load.share():.0%} of the cores meanwhile)")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
