"""The process in which a collector summarizes what it has found in one trial."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_aorta.collectors.contract import collector_class
from pytest_aorta.runtime.process_tree import die_with_parent
from pytest_aorta.trials.workload import to_plain


def print_summary(asked: Mapping[str, Any]) -> None:
    """Print the summary as JSON; what the collector itself prints goes to standard error."""
    die_with_parent(os.getppid())
    output, sys.stdout = sys.stdout, sys.stderr
    collector = collector_class(f"{asked['module']}:{asked['name']}")(asked["given"])
    found = collector.summarize(Path(asked["folder"]), asked["ranks"])
    plain = {"sentence": found.sentence, "data": to_plain(dict(found.data)), "artifacts": [*map(str, found.artifacts)]}
    json.dump(plain, output)  # a NaN among the data is read back as one
