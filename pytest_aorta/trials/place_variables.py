"""The variables that give a trial a place of its own, in the process that takes it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

#: The trial's index in its cell.
TRIAL_INDEX = "AORTA_TRIAL_INDEX"

#: A folder for files that belong to the trial's record.
TRIAL_DIR = "AORTA_TRIAL_DIR"

#: A seed for the program of a command, below 2**31.
TRIAL_SEED = "AORTA_TRIAL_SEED"

#: Name of that folder, in the trial's artifacts.
FILES = "files"

#: How long the TMPDIR of a failed trial is kept.
KEPT_DAYS = 3

#: All that a trial finds.
NAMES = (TRIAL_INDEX, TRIAL_DIR, "TMPDIR")

#: Before the import of a workload: TMPDIR, and the folder that ``tempfile`` remembers once it is asked for it.
_before: tuple[str | None, str | None] = (None, None)


def note_tmp() -> None:
    """To be called before the import of a workload, which may choose a folder for temporary files itself."""
    global _before
    remembered, tempfile.tempdir = tempfile.tempdir, None
    try:
        default = tempfile.gettempdir()
    except OSError:
        default = None
    tempfile.tempdir = remembered
    _before = os.environ.get("TMPDIR"), default


def take_place(variables: Mapping[str, str]) -> None:
    """Set the variables in this process, and make ``tempfile`` look again; what the workload's import chose stays.

    Raises:
        OSError: a folder is missing here, as in a container, and cannot be made.
    """
    tmp, default = _before
    if os.environ.get("TMPDIR") != tmp:
        variables = {name: value for name, value in variables.items() if name != "TMPDIR"}
    for name in (TRIAL_DIR, "TMPDIR"):
        if name in variables and not os.path.isdir(variables[name]):
            try:
                os.makedirs(variables[name], exist_ok=True)
            except OSError:
                if name == TRIAL_DIR:
                    raise
                variables = {name: value for name, value in variables.items() if name != "TMPDIR"}
    os.environ.update(variables)
    if "TMPDIR" in variables and tempfile.tempdir == default:
        tempfile.tempdir = None
