"""Which variables a launcher has set for its ranks, beyond what the trial was given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pytest_aorta.probe.variables import recorded_variables
from pytest_aorta.trials.place_variables import NAMES


def launcher_variables(base: int | None, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of this process whose values differ from those of ``base``, the process that started the launcher.

    Of those that a trial file may hold, without those of the trial's place. Empty when there is no such process, or it
    may not be read.
    """
    if base is None:
        return {}
    try:
        content = Path(f"/proc/{base}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in content.split(b"\0"))
    before = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return recorded_variables(
        {name: value for name, value in environ.items() if before.get(name) != value and name not in NAMES}
    )
