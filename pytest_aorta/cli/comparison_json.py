"""A comparison of two runs as JSON data; ``docs/compare.md`` has the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_aorta.triage.verdicts import LEVEL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_aorta.triage.cells import CellStatistics, SignatureCount
    from pytest_aorta.triage.compare import CellChange, RunComparison, Side
    from pytest_aorta.triage.facts import CellKey
    from pytest_aorta.triage.rates import Interval

#: Of this structure: a reader of version 1 finds all of its keys in later ones that begin with a 1.
SCHEMA_VERSION = "1.0"


def comparison_as_plain(comparison: RunComparison, margin: float) -> dict[str, Any]:
    """Everything, as strict JSON data. Rates are fractions, intervals ``[low, high]``, step times in ms."""
    return {
        "schema_version": SCHEMA_VERSION,
        "level": LEVEL,
        "margin": margin,
        "a": _side(comparison.a),
        "b": _side(comparison.b),
        "matched_across_environments": comparison.matched_across_environments,
        "cells": [_change(change) for change in comparison.cells],
        "only_in_a": [_cell(cell) for cell in comparison.only_a],
        "only_in_b": [_cell(cell) for cell in comparison.only_b],
        "environment": {
            "all_cells": [difference.to_plain() for difference in comparison.shared],
            "some_cells": [
                {"cells": list(found.cells), "differences": [each.to_plain() for each in found.differences]}
                for found in comparison.particular
            ],
        },
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "path": str(side.results.path),
        "trials": side.trials,
        "cells": len(side.cells),
        "hosts": list(side.hosts),
        "first_trial": side.began or None,
        "last_trial": side.ended or None,
        "replays_left_out": side.results.replays,
        "unreadable": [{"file": each.file, "reason": each.reason} for each in side.results.unreadable],
    }


def _change(change: CellChange) -> dict[str, Any]:
    rate, speed = change.rate, change.speed
    return {
        "label": change.label,
        **_key(change.b.key),
        "cell_in_a": change.a.key.cell,
        "verdict": change.kind,
        "more_trials": change.more_trials,
        "failure_rate": None
        if rate is None
        else {
            "difference": rate.difference,
            "interval": _interval(rate.interval),
            "p": rate.p,
            "p_adjusted": rate.p_adjusted,
        },
        "speed": {"verdict": speed.kind, "ratio": speed.ratio, "interval": _interval(speed.interval)},
        "a": _numbers(change.a),
        "b": _numbers(change.b),
        "new_signatures": _signatures(change.new_signatures),
        "gone_signatures": _signatures(change.gone_signatures),
    }


def _cell(cell: CellStatistics) -> dict[str, Any]:
    return {**_key(cell.key), **_numbers(cell)}


def _key(key: CellKey) -> dict[str, Any]:
    return {"workload": key.workload, "cell": key.cell, "test": key.test or None, "options": key.options or None}


def _numbers(cell: CellStatistics) -> dict[str, Any]:
    return {
        "trials": cell.total,
        "outcomes": {outcome.replace(" ", "_"): len(trials) for outcome, trials in cell.trials.items()},
        "failure_rate": cell.rate,
        "failure_rate_interval": _interval(cell.rate_interval),
        "median_step_ms": None if cell.steps is None else cell.steps.median_ms,
    }


def _signatures(signatures: Iterable[SignatureCount]) -> list[dict[str, Any]]:
    return [{"text": each.signature.text, "count": len(each.trials)} for each in signatures]


def _interval(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]
