"""What is kept of an import that hung, for the record of each trial that could not start because of it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.launch.diagnosis.stacks import locate, parse_dump

if TYPE_CHECKING:
    from pytest_aorta.trials.outcome import Observed

#: In a trial's folder: the stacks of the importing processes, and what they had written.
_STACKS, _OUTPUT = "stacks.log", "import.log"


@dataclass(frozen=True)
class ImportHang:
    """An import that took longer than ``limit`` seconds, and was ended.

    Attributes:
        limit: see above.
        stacks: of its processes, as ``faulthandler`` writes them.
        output: the end of what they had written.
    """

    limit: float
    stacks: str
    output: str

    def see(self, seen: Observed, target: str, folder: Path | None) -> None:
        """Note it as what was seen of a trial of ``target``, and write it into the trial's ``folder``."""
        if folder is not None:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                for name, text in ((_STACKS, self.stacks), (_OUTPUT, self.output)):
                    if text.strip():
                        (folder / name).write_text(text)
        where = target.rpartition(":")[0]
        location = locate(parse_dump(self.stacks), where if where.endswith(".py") else None)
        seen.phase, seen.timed_out, seen.timeout = "import", True, self.limit
        seen.location = None if location is None else location.text
