"""Make the directories of the workspace, each with its value."""

from __future__ import annotations

import json
from pathlib import Path

VALUES = [
    {"type": "point", "x": 0, "y": 10},
    {"type": "point", "x": 3, "y": 4},
    {"type": "point", "x": 0, "y": 1},
    {"type": "point", "x": 3, "y": 2},
    {"type": "point", "x": 0, "y": 5},
    {"type": "letter", "letter": "alpha"},
    {"type": "letter", "letter": "beta & gamma"},
]

for number, value in enumerate(VALUES):
    folder = Path("workspace") / f"directory{number}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "value.json").write_text(json.dumps(value))
