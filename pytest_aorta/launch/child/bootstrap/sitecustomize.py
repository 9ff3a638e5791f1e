"""Imported by Python as a command, or a rank of a user's script, starts: arms the dump of its stacks.

Before the script begins, its environment and ``sys.path`` are as they would be without this file, and a
``sitecustomize`` of the user is imported. No imports from this package: it may be another interpreter.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def _arm() -> None:
    text = os.environ.pop("AORTA_BOOTSTRAP", None)
    if text is None:
        return
    order = json.loads(text)
    if order["pythonpath"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = order["pythonpath"]
    sys.path.extend(path for path in order["sys_path"] if path not in sys.path)
    try:
        import faulthandler

        faulthandler.enable(file=2)
        stacks = order["stacks"]
        if stacks is None:
            attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
            stacks = os.path.join(order["folder"], "attempt_" + attempt, "rank_" + rank + ".stacks.log")
        fd = os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        faulthandler.register(order["signal"], file=fd, all_threads=True)
    except (OSError, KeyError, ValueError):  # then there will be no stacks; the script runs all the same
        pass


def _import_hidden_module() -> None:
    """Import what Python would have imported in place of this file."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own  # Python looks for it once this import is done


if __name__ == "sitecustomize":
    _arm()
    _import_hidden_module()
