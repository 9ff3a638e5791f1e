"""Imported by Python as a command, or a rank of a user's script, starts: arms the dump of its stacks.

Before the script begins, its environment and ``sys.path`` are as they would be without this file, and a
``sitecustomize`` of the user is imported. No imports from this package: it may be another interpreter. None of modules
that take time either: every program would pay for them.
"""

import os
import sys


def _arm() -> None:
    text = os.environ.pop("AORTA_BOOTSTRAP", None)
    if text is None:
        return
    folder, stacks, number, pythonpath, *sys_path = text.split("\x1f")
    if pythonpath == "-":
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = pythonpath[1:]
    sys.path.extend(path for path in sys_path if path not in sys.path)
    try:
        import faulthandler

        faulthandler.enable(file=2)
        if not stacks:
            attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
            stacks = os.path.join(folder, "attempt_" + attempt, "rank_" + rank + ".stacks.log")
        fd = os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        faulthandler.register(int(number), file=fd, all_threads=True)
        __import__("aorta_reads").watch(os.path.join(folder, "reads.events"))
        del sys.modules["aorta_reads"]
    except (OSError, KeyError, ValueError):  # then there will be no stacks; the script runs all the same
        pass


def _import_hidden_module() -> None:
    """Import what Python would have imported in place of this file."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    own = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own  # Python looks for it once this import is done


if __name__ == "sitecustomize":
    _arm()
    _import_hidden_module()
