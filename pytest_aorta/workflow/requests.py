"""What a recipe asks of a cell, as a digest; equal for the cell as it is planned and for a record of one of its trials.

It is made of what can be known without importing the workload: names, options as they were given, variables, how the
trials are started. What the fingerprint of a trial has besides (defaults of options, installed packages, the machine)
is compared when the trial is about to run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pytest_aorta.probe.guard import plain
from pytest_aorta.trials.conversion import canonical_json, decode_non_finite, to_plain
from pytest_aorta.trials.fingerprint import REQUESTED, requested_parts
from pytest_aorta.trials.spec import TrialSpec
from pytest_aorta.workflow.cell_requests import Requests as Requests

#: Digits of a digest.
_DIGITS = 16


def request_digest(spec: TrialSpec) -> str:
    """The digest of a cell, from any of its trials."""
    given = (spec.mitigations, to_plain(dict(spec.overrides)), spec.steps, spec.execution.nproc, spec.execution.seed)
    return _digest(requested_parts(spec), *given)


def recorded_digest(record: Mapping[str, Any]) -> str | None:
    """The digest of the cell whose trial a record, as it is in its file, is of; ``None`` where it does not say."""
    request, parts = record.get("request"), record.get("fingerprint_parts")
    if not isinstance(request, Mapping) or not isinstance(parts, Mapping) or not parts:
        return None
    given = (request.get(name) for name in ("steps", "nproc", "run_seed"))
    config = decode_non_finite(request.get("config", {}))
    return _digest(decode_non_finite(dict(parts)), record.get("mitigations_applied"), config, *given)


def _digest(
    parts: Mapping[str, Any], mitigations: object, config: object, steps: object, nproc: object, seed: object
) -> str:
    requested = {name: parts[name] for name in REQUESTED if name in parts}
    given = {"mitigations": mitigations, "config": config, "steps": steps, "nproc": nproc, "seed": seed}
    text = canonical_json(plain({**requested, **given}))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
