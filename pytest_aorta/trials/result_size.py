"""Bounding the size of a result, because readers load a trial file as a whole."""

from __future__ import annotations

import json
from typing import Any

from pytest_aorta.trials.events import ResultData

#: Bytes of JSON that each of the open-ended fields of a result may have.
FIELD_LIMIT = 2**23

#: Notes on single metrics.
_NOTES = 20


def bounded(result: ResultData, limit: int = FIELD_LIMIT) -> ResultData:
    """A result without what is too large, and a note in ``failure_details`` for each omission.

    Of ``metrics``, the largest go first; of the lists, the end goes.
    """
    notes: list[dict[str, Any]] = []
    bound = result.copy()
    if "metrics" in bound:
        bound["metrics"] = _largest_left_out(bound["metrics"], limit, notes)
    if "step_times_ms" in bound:
        bound["step_times_ms"] = _end_left_out(bound["step_times_ms"], limit, "step_times_ms", notes)
    if "failure_details" in bound:
        bound["failure_details"] = _end_left_out(bound["failure_details"], limit, "failure_details", notes)
    bound["failure_details"] = [*bound.get("failure_details", []), *notes]
    return bound


def _largest_left_out(metrics: dict[str, Any], limit: int, notes: list[dict[str, Any]]) -> dict[str, Any]:
    sizes = {name: len(json.dumps({name: value})) for name, value in metrics.items()}
    kept = dict(metrics)
    total = sum(sizes.values())
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if total <= limit:
            break
        del kept[name]
        total -= sizes[name]
        if len(notes) < _NOTES:
            notes.append({"note": f"metrics.{name[:100]}: {sizes[name]} bytes as JSON; left out"})
    if len(kept) < len(metrics):
        notes.append(
            {"note": f"metrics: {len(metrics) - len(kept)} of {len(metrics)} left out; {limit} bytes are kept"}
        )
    return kept


def _end_left_out(values: list[Any], limit: int, name: str, notes: list[dict[str, Any]]) -> list[Any]:
    if len(json.dumps(values)) <= limit:
        return values
    total = 0
    for index, value in enumerate(values):
        total += len(json.dumps(value)) + 2
        if total > limit:
            notes.append({"note": f"{name}: the last {len(values) - index} of {len(values)} left out"})
            return values[:index]
    return values
