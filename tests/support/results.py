"""Results directories that no run has written, for tests of what is read from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.environments import env
from support.records import record

_FAILURES = {
    "F": {"phase": "run", "kind": "exception", "type": "ArithmeticError", "message": "loss is nan"},
    "S": {"phase": "run", "kind": "signal", "signal": "SIGSEGV", "message": "died"},
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
