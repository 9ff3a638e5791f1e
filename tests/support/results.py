"""Results directories that no run has written, for tests of what is read from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.environments import env
from support.records import record

_FAILURES = {
    "F": {"phase": "run", "kind": "exception", "type": "ArithmeticError", "message": "loss is nan"},
    "S": {"phase": "run", "kind": "signal", "signal": "SIGSEGV", "message": "ended by SIGSEGV"},
    "T": {"phase": "run", "kind": "timeout", "message": "late"},
    "-": {"phase": "import", "kind": "exception", "type": "ImportError", "message": "no module"},
}
_STATUSES = {".": "ok", "T": "timeout", "-": "infrastructure_failed"}


def write_cell(
    folder: Path,
    outcomes: str,
    *,
    workload: str = "gemm",
    environment: str = "local",
    mitigations: str = "none",
    step_ms: Sequence[float] = (),
    place: int = 0,
    **changes: Any,
) -> None:
    """One trial per letter: ``.`` ok, ``F`` an exception, ``S`` a crash, ``T`` a timeout, ``-`` did not run.

    ``step_ms``: of the trials that are ok, by turns. ``place``: of the mitigation set in the plan.
    """
    cell = f"{environment}-{mitigations.replace(',', '+')}"
    for index, letter in enumerate(outcomes):
        status = _STATUSES.get(letter, "workload_failed")
        result: dict[str, Any] = {"passed": status == "ok"}
        if status == "ok" and step_ms:
            result["step_times_ms"] = [step_ms[index % len(step_ms)]] * 3
        content = record(
            **{
                "workload": workload,
                "cell": cell,
                "trial_id": f"{workload}_d0_m{place}_t{index}",
                "trial_index": index,
                "execution_env": {"kind": "local", "name": environment, "source_package": "builtin"},
                "mitigations_applied": mitigations.split(","),
                "env": env(),
                "exit_status": status,
                "failure": _FAILURES.get(letter),
                "result": result,
                "started_at": f"2026-01-01T00:{index // 60:02}:{index % 60:02}.000+00:00",
                **changes,
            }
        )
        path = folder / workload.replace("/", "_") / cell.replace("/", "_") / f"trial_{index}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


NAN = {
    "phase": "run",
    "kind": "exception",
    "type": "FloatingPointError",
    "message": "loss is nan at step 11",
    "traceback": 'Traceback (most recent call last):\n  File "/home/me/train.py", line 88, in step\n    check(loss)\n'
    "FloatingPointError: loss is nan at step 11\n",
}

_REQUEST = {
    "workload": {"name": "train", "target": "/home/me/train.py:Train", "source_package": "file:train.py"},
    "environment": {"name": "local", "source_package": "builtin"},
    "interpreter": "/usr/bin/python3",
    "cwd": "/home/me",
}


def write_whole_cell(
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
    write_cell(results, outcomes, workload=workload, mitigations=mitigation, place=place)
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
        content["failure"] = NAN if letter == "F" else content["failure"]
        content["seeds"] = {"seed": 1000 + index, "generators": {"random": 7}}
        content["request"] = {**_REQUEST, "overlay": dict(overlay or {})}
        content["env"]["env_vars"] = {**content["env"].get("env_vars", {}), **(overlay or {})}
        content["started_at"] = f"2026-01-01T{index // 60:02}:{index % 60:02}:{place:02}.000+00:00"
        file.write_text(json.dumps({**content, **changes}))
        files.append(file)
    return files


def write_triage(results: Path) -> Path:
    logs = {"stderr": "warning: clock is not synchronised\n", "stdout": "step 10 loss 3.1\nstep 11 loss nan\n"}
    write_whole_cell(results, "none", "FF.FSF.FFTF.FSFFFF.F", logs=logs)
    write_whole_cell(results, "omp_1", "." * 20, place=1, overlay={"OMP_NUM_THREADS": "1"})
    write_whole_cell(results, "slow", "." * 20, place=2, step_ms=40.0)
    write_whole_cell(results, "broken", "-" * 4, place=3)
    return results
