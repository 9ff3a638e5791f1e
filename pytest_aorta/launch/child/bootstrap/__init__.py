"""Variables that make every Python process of a command tell what becomes of it, see ``sitecustomize``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_aorta.launch.child.bootstrap.sitecustomize import VARIABLE, identity
from pytest_aorta.runtime.process_tree import STACK_SIGNAL

#: Folder of the module that Python imports at its start.
_FOLDER = Path(__file__).parent


#: Where the processes of a trial note their modules and devices.
READS = "reads.events"


def bootstrap_variables(
    environ: Mapping[str, str],
    *,
    folder: str,
    sockets: str = "",
    stacks: str = "",
    how: str = "full",
    sys_path: Sequence[str] = (),
) -> dict[str, str]:
    """The variables to set. A Python program hides them at its start, and hands them on to programs that it starts.

    Args:
        environ: what the program gets otherwise.
        folder: of the trial.
        sockets: folder in which ranks serve their flight recorders; empty for no such service.
        stacks: path of the file for the stacks of the first program, unless it is a rank.
        how: ``exits`` or ``full``.
        sys_path: what is added to its ``sys.path``.
    """
    before = environ.get("PYTHONPATH")
    (Path(folder) / "processes").mkdir(parents=True, exist_ok=True)
    # No JSON: its module would take a Python program longer to import than all else that it does at its start.
    place = [folder, sockets, stacks, str(int(STACK_SIGNAL)), "-" if before is None else f"+{before}"]
    return {
        VARIABLE: "\x1f".join([*place, identity(environ), "", how, *sys_path]),
        "PYTHONPATH": os.pathsep.join([str(_FOLDER), *([before] if before else [])]),
    }
