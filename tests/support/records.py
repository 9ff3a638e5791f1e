"""Contents of trial files, for tests that need no trial."""

from __future__ import annotations

from typing import Any


def record(**changes: Any) -> dict[str, Any]:
    return {
        "schema_version": "0.1",
        "trial_id": "probe_d0_m0_t0",
        "workload": "probe",
        "cell": "local-none",
        "trial_index": 0,
        "execution_env": {"kind": "local", "name": "local", "source_package": "builtin"},
        "mitigations_applied": ["none"],
        "config": {},
        "env": {},
        "result": {"passed": changes.get("exit_status", "ok") == "ok"},
        "wall_clock_sec": 0.5,
        "exit_status": "ok",
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "host": "here",
        "request_fingerprint": "f00",
        **changes,
    }
