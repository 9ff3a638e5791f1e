"""Results directories with all that a failed trial leaves: tracebacks, logs, seeds, variables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support import results as plain

NAN = {
    "phase": "run",
    "kind": "exception",
    "type": "FloatingPointError",
    "message": "loss is nan at step 11",
    "traceback": 'Traceback (most recent call last):\n  File "/home/me/train.py", line 88, in step\n    check(loss)\n'
    "FloatingPointError: loss is nan at step 11\n",
}

#: Failures by letter; those of ``support.results`` for others.
_FAILURES = {"F": NAN, "S": {"phase": "run", "kind": "signal", "signal": "SIGSEGV", "message": "ended by SIGSEGV"}}

_REQUEST = {
    "workload": {"name": "train", "target": "/home/me/train.py:Train", "source_package": "file:train.py"},
    "environment": {"name": "local", "source_package": "builtin"},
    "interpreter": "/usr/bin/python3",
    "cwd": "/home/me",
}


def write_cell(
    results: Path,
    mitigation: str,
    outcomes: str,
    *,
    place: int = 0,
    step_ms: float = 20.0,
    overlay: Mapping[str, str] | None = None,
    logs: Mapping[str, str] | None = None,
    workload: str = "train",
    **changes: Any,
) -> list[Path]:
    plain.write_cell(results, outcomes, workload=workload, mitigations=mitigation, place=place)
    files = []
    for index, letter in enumerate(outcomes):
        file = results / workload.replace("/", "_") / f"local-{mitigation}" / f"trial_{index}.json"
        content = json.loads(file.read_text())
        folder = file.with_suffix("")
        folder.mkdir()
        for name, text in (logs or {}).items() if letter != "." else ():
            (folder / f"{name}.log").write_bytes(text.encode(errors="surrogatepass"))
            content.setdefault("artifacts", {})[name] = f"{folder.name}/{name}.log"
        if letter in ".F":
            content["result"]["step_times_ms"] = [step_ms + (index + step) % 5 for step in range(10)]
        content["failure"] = _FAILURES.get(letter, content["failure"])
        content["seeds"] = {"seed": 1000 + index, "generators": {"random": 7}}
        content["request"] = {**_REQUEST, "overlay": dict(overlay or {})}
        content["env"]["env_vars"] = {**content["env"].get("env_vars", {}), **(overlay or {})}
        content["started_at"] = f"2026-01-01T{index // 60:02}:{index % 60:02}:{place:02}.000+00:00"
        file.write_text(json.dumps({**content, **changes}))
        files.append(file)
    return files


def write_triage(results: Path) -> Path:
    logs = {"stderr": "warning: clock is not synchronised\n", "stdout": "step 10 loss 3.1\nstep 11 loss nan\n"}
    write_cell(results, "none", "FF.FSF.FFTF.FSFFFF.F", logs=logs)
    write_cell(results, "omp_1", "." * 20, place=1, overlay={"OMP_NUM_THREADS": "1"})
    write_cell(results, "slow", "." * 20, place=2, step_ms=40.0)
    write_cell(results, "broken", "-" * 4, place=3)
    return results
