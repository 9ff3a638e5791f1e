"""torchrun for a user's script, with a record of how its ranks end.

Started with the path of an order (JSON: ``folder``, ``grace``, ``cwd``, ``sys_path``) and torchrun's arguments.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from pytest_aorta.launch.child.bootstrap_variables import bootstrap_variables
from pytest_aorta.launch.child.recording_context import RecordingContext
from pytest_aorta.launch.child.script_events import record_exit, record_start
from pytest_aorta.launch.child.torch_compat.rank_context import use_context_in_torchrun
from pytest_aorta.launch.diagnosis.trial_evidence import RankExit


class ScriptContext(RecordingContext):
    """Writes the event logs of the ranks as well, which a script does not."""

    def on_started(self) -> None:
        """Record the start of every rank."""
        ranks = self.ranks()
        with contextlib.suppress(OSError):  # a full disk must not disturb the ranks
            for local_rank, process in self.processes().items():
                record_start(self.folder, self.attempt, ranks[local_rank], process.pid)

    def record(self, rank: int, end: RankExit) -> None:
        """Record the end of a rank."""
        record_exit(self.folder, self.attempt, rank, end)
        super().record(rank, end)


def main(order: dict[str, Any], arguments: list[str]) -> int:
    """Run torchrun; its exit status."""
    os.chdir(order["cwd"])
    ScriptContext.folder, ScriptContext.stop_timeout = Path(order["folder"]), order["grace"]
    use_context_in_torchrun(ScriptContext)
    os.environ.update(bootstrap_variables(os.environ, folder=order["folder"], sys_path=order["sys_path"]))
    # Of an outer torchrun, whose rank's failure this one's are not.
    os.environ.pop("TORCHELASTIC_ERROR_FILE", None)
    try:
        torchrun(arguments)
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2:]))
