"""Jobs that a scheduler has: which directories of which actions they are for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

#: Action to unit to the job that it is part of, ``CLUSTER/ID``.
Submitted = Mapping[str, Mapping[str, str]]


def read_submitted(folder: Path) -> Submitted:
    """The jobs that are known in the folder of an index; none where the file is missing, or damaged."""
    try:
        content = json.loads((folder / "submitted.json").read_bytes())
        return {str(action): {str(unit): str(job) for unit, job in units.items()} for action, units in content.items()}
    except (OSError, ValueError, AttributeError):
        return {}
