"""The life of a rank that an agent has started: it tells its story, and leaves an error file as torch's do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pytest_aorta.launch.child.event_log import teller
from pytest_aorta.launch.child.rank_files import attempt_folder
from pytest_aorta.launch.child.workload_main import live, prepare
from pytest_aorta.launch.diagnosis.flight_recorder import serve_flight_recorder
from pytest_aorta.runtime.zygotes.task_main import arm
from pytest_aorta.trials.events import Send


def live_as_rank(payload: dict[str, Any], attempt: int, *, prepared: bool = True, relay: Send | None = None) -> bool:
    """Live the trial as the rank that ``RANK`` says; whether setup and run succeeded.

    Args:
        payload: as in ``launch.child.run``.
        attempt: which one this is.
        prepared: whether this process has imported the workload.
        relay: takes the events of the node's first rank as well.
    """
    folder, rank = attempt_folder(Path(payload["folder"]), attempt), int(os.environ["RANK"])
    folder.mkdir(parents=True, exist_ok=True)
    arm(str(folder / f"rank_{rank}.stacks.log"))
    if not prepared:
        prepare(payload)
    serve_flight_recorder()
    tell = teller(folder, rank, relay=relay if os.environ["LOCAL_RANK"] == "0" else None)
    return live(payload, tell, on_error=_write_error_file)


def _write_error_file(error: BaseException) -> None:
    """For the agent, which tells it to whoever asks which rank failed first; at once, as it may end this rank."""
    if isinstance(error, Exception):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)
