"""What a decision that a cell needs no more trials is about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from pytest_aorta.workflow.actions import Action

#: Digits of a digest.
_DIGITS = 16


def asked_of(action: Action, requests: Mapping[str, str]) -> str:
    """A digest of all that the verdicts on an action depend on, apart from the trials.

    With another cell, another level of significance holds for each of them; so decisions on some are none on more.

    Args:
        action: with a workload.
        requests: digests of what is asked of its cells, by cell.
    """
    table = action.table
    asked = [sorted(requests.items()), table.baseline, table.margin]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:_DIGITS]
