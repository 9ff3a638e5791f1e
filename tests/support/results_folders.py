"""Results directories that no run has written, for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.records import record

NAN = {
    "phase": "run",
    "kind": "exception",
    "type": "FloatingPointError",
    "message": "loss is nan at step 11",
    "traceback": 'Traceback (most recent call last):\n  File "/home/me/train.py", line 88, in step\n    check(loss)\n'
    "FloatingPointError: loss is nan at step 11\n",
}
CRASH = {"phase": "run", "kind": "signal", "signal": "SIGSEGV", "message": "ended by SIGSEGV in run()"}
HANG = {"phase": "run", "kind": "timeout", "message": "the deadline of 3 s passed in run()"}
IMPORT = {"phase": "import", "kind": "exception", "type": "ImportError", "message": "No module named 'nccl'"}

#: ``.`` ok; letters: exit status and failure.
_ENDS: Mapping[str, tuple[str, Mapping[str, Any] | None]] = {
    ".": ("ok", None),
    "F": ("workload_failed", NAN),
    "C": ("workload_failed", CRASH),
    "T": ("timeout", HANG),
    "I": ("infrastructure_failed", IMPORT),
}

_REQUEST = {
    "workload": {"name": "train", "target": "/home/me/train.py:Train", "source_package": "file:train.py"},
    "environment": {"name": "local", "source_package": "builtin"},
    "interpreter": "/usr/bin/python3",
    "cwd": "/home/me",
}


def write_cell(
    results: Path,
    mitigation: str,
    ends: str,
    *,
    number: int = 0,
    step_ms: float = 20.0,
    overlay: Mapping[str, str] | None = None,
    logs: Mapping[str, str] | None = None,
    workload: str = "train",
    **changes: Any,
) -> list[Path]:
    """One trial per letter of ``ends``; the files.

    ``number``: of the cell in its plan. ``logs``: of the trials that fail.
    """
    files = []
    for index, letter in enumerate(ends):
        status, failure = _ENDS[letter]
        cell = f"local-{mitigation}"
        file = results / workload / cell / f"trial_{index}.json"
        folder = file.with_suffix("")
        folder.mkdir(parents=True)
        artifacts = {}
        for name, text in (logs or {}).items() if letter != "." else ():
            (folder / f"{name}.log").write_bytes(text.encode(errors="surrogatepass"))
            artifacts[name] = f"{folder.name}/{name}.log"
        steps: Sequence[float] = [step_ms + (index + step) % 5 for step in range(10)] if letter in ".F" else []
        content = record(
            workload=workload,
            trial_id=f"{workload}_d0_m{number}_t{index}",
            cell=cell,
            trial_index=index,
            mitigations_applied=[mitigation],
            exit_status=status,
            failure=failure,
            result={"passed": status == "ok", "step_times_ms": steps},
            started_at=f"2026-01-01T{index // 60:02}:{index % 60:02}:{number:02}.000+00:00",
            seeds={"seed": 1000 + index, "generators": {"random": 7}},
            request={**_REQUEST, "overlay": dict(overlay or {})},
            artifacts=artifacts,
            env={"env_vars": dict(overlay or {}), "process": {"pid": 1}},
        )
        content.update(changes)
        file.write_text(json.dumps(content), encoding="utf-8")
        files.append(file)
    return files


def write_triage(results: Path) -> Path:
    """A baseline with two bugs, a fix, a slow fix, and a cell that cannot be imported."""
    logs = {"stderr": "warning: clock is not synchronised\n", "stdout": "step 10 loss 3.1\nstep 11 loss nan\n"}
    write_cell(results, "none", "FF.FCF.FFTF.FCFFFF.F", logs=logs)
    write_cell(results, "omp_1", "." * 20, number=1, overlay={"OMP_NUM_THREADS": "1"})
    write_cell(results, "slow", "." * 20, number=2, step_ms=40.0)
    write_cell(results, "broken", "I" * 4, number=3)
    return results
