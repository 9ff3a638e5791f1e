"""Records that AORTA's own runner has written (package ``amd-aorta``, schema 0.1), as records of this package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: What AORTA puts into the configuration for itself.
_OWN_OPTIONS = "_aorta_"

_TRIAL_ID = re.compile(r"_t(\d{1,9})$")

#: A detector of AORTA's tiers, a deadline or a status of the command has decided.
_DETAIL = ("failure_detectors_fired", "error_detectors_fired", "exit_code")


def is_of_aorta(record: object) -> bool:
    """Whether AORTA has written this record: neither kind of environment nor cell are named in it."""
    if not isinstance(record, Mapping) or "cell" in record or "config" not in record:
        return False
    environment = record.get("execution_env")
    return isinstance(environment, Mapping) and "kind" not in environment and isinstance(record.get("env"), Mapping)


def from_aorta(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record in this package's form, for ``TrialResult.from_dict``; an extension block of ours is merged back.

    ``workload_setup_failed``, and the verdict ``error`` of a command, are ``infrastructure_failed``; a command that
    AORTA has ended at its deadline is a ``timeout``. Its fingerprint is left out: it is of another form, and would not
    match. Nothing is added that the record does not say.
    """
    environment, result = record["execution_env"], record["result"]
    details = [each for each in result.get("failure_details") or () if isinstance(each, Mapping)]
    status = _status(record, details)
    env = record["env"]
    variables = {name: value for name, value in (env.get("env_vars") or {}).items() if value is not None}
    index = _TRIAL_ID.search(str(record.get("trial_id")))
    return {
        **record,
        "execution_env": {
            "kind": "docker" if environment.get("docker") else "venv" if environment.get("venv") else "local",
            "name": environment.get("name", "local"),
            "image": environment.get("docker"),
            "venv": environment.get("venv"),
            "source_package": environment.get("source_package") or "aorta",
        },
        "config": {key: value for key, value in record["config"].items() if not key.startswith(_OWN_OPTIONS)},
        # Of a command, one of each axis.
        "mitigations_applied": [name for name in record["mitigations_applied"] if name != "none"] or ["none"],
        "env": {"aorta": env, "env_vars": variables},  # its snapshot has other sections
        "trial_index": int(index[1]) if index else None,
        "exit_status": status,
        "request_fingerprint": None,
        "failure": None if status == "ok" else _failure(status, record["exit_status"], details),
    }


def _status(record: Mapping[str, Any], details: list[Mapping[str, Any]]) -> str:
    status = str(record["exit_status"])
    if status != "ok" and any(each.get("timed_out") is True for each in details):
        return "timeout"
    errs = (record["result"].get("metrics") or {}).get("verdict") == "error"
    return "infrastructure_failed" if errs or status == "workload_setup_failed" else status


def _failure(status: str, recorded: str, details: list[Mapping[str, Any]]) -> dict[str, Any]:
    detail: Mapping[str, Any] = details[0] if details else {}
    raised = status == "infrastructure_failed" and "error" in detail
    text = str(detail.get("error") or ", ".join(f"{name}: {detail[name]}" for name in _DETAIL if detail.get(name)))
    return {
        "phase": "setup" if recorded == "workload_setup_failed" else "run",
        "kind": "timeout" if status == "timeout" else "exception" if raised else "result",
        "type": str(detail["type"]) if raised and "type" in detail else None,
        "message": text,
    }
