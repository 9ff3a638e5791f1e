"""Variables with which every Python program that is started arms the dump of its stacks, see ``bootstrap``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_aorta.runtime.process_tree import STACK_SIGNAL

#: Holds the module that Python imports at its start.
_FOLDER = Path(__file__).parent


#: Where the processes of a trial note the files that they open.
READS = "reads.events"


def bootstrap_variables(
    environ: Mapping[str, str], *, folder: str, stacks: str | None = None, sys_path: Sequence[str] = ()
) -> dict[str, str]:
    """What has to be set; a Python program undoes it at its start.

    Args:
        environ: what the program gets otherwise.
        folder: of the trial.
        stacks: path of the file for the stacks; ``None`` for a file per rank and attempt in the ``folder``.
        sys_path: what is added to ``sys.path``.
    """
    before = environ.get("PYTHONPATH")
    # No JSON: its module would take a Python program longer to import than all else that it does at its start.
    order = [folder, stacks or "", str(int(STACK_SIGNAL)), "-" if before is None else f"+{before}", *sys_path]
    return {
        "AORTA_BOOTSTRAP": "\x1f".join(order),
        "PYTHONPATH": os.pathsep.join([str(_FOLDER), *([before] if before else [])]),
    }
