"""The failures of a cell, one line for each kind: how often it was seen, in how many trials."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

found: Counter[str] = Counter()
trials = sorted(Path(sys.argv[1]).glob("trial_*.json"))
for file in trials:
    record = json.loads(file.read_text())
    found.update({detail["kind"] for detail in (record["result"] or {}).get("failure_details", ())})
print(f"{len(trials)} trials")
for kind, number in found.most_common():
    print(f"{number}x {kind}")
