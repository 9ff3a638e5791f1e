"""Reading the files that the processes of a trial have left, for what they did not report."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from pytest_aorta.launch.child.event_log import pids_of_ranks
from pytest_aorta.launch.child.rank_files import attempt_folder, last_attempt
from pytest_aorta.launch.child.rank_records import mark_outlived, records_of_attempt
from pytest_aorta.launch.child.script_events import read_exits
from pytest_aorta.launch.diagnosis import flight_recorder
from pytest_aorta.launch.diagnosis.hangs import explain_hang, read_collectives
from pytest_aorta.launch.diagnosis.root_cause import ranks_event
from pytest_aorta.launch.diagnosis.stacks import locate, read_dump
from pytest_aorta.launch.host.artifacts import STACKS
from pytest_aorta.launch.host.external_ranks import gather_rank_records, rank_folder, report_exit
from pytest_aorta.launch.host.rank_results import combined_result
from pytest_aorta.launch.launch_mode import own_rank
from pytest_aorta.launch.nodes.addressing import is_multi_node
from pytest_aorta.launch.workload_info import PreparedCell
from pytest_aorta.trials.events import RankData
from pytest_aorta.trials.outcome import Observed, after_step, exit_failure, place, signal_name
from pytest_aorta.trials.spec import TrialSpec
from pytest_aorta.trials.steps import read_steps, step_file


class Evidence:
    """Completes what was ``seen`` of a trial from the files in its ``folder``, and the ``sockets`` of its ranks."""

    def __init__(self, spec: TrialSpec, cell: PreparedCell, folder: Path, sockets: Path | None, seen: Observed) -> None:
        self._spec = spec
        self._cell = cell
        self._folder = folder
        self._sockets = sockets
        self._seen = seen

    def save_collectives(self) -> None:
        """Ask every rank's flight recorder which collectives the rank has entered, while the ranks still run."""
        if self._sockets is None:
            return
        folder = self._last_attempt
        for rank, pid in pids_of_ranks(folder).items():
            recorded = flight_recorder.request_trace(pid, self._sockets)
            if recorded is not None and recorded.get("entries"):
                with contextlib.suppress(OSError):
                    (folder / f"rank_{rank}.collectives.json").write_text(json.dumps(recorded))

    def read(self, overdue: float | None) -> None:
        """After the end of all processes. ``overdue``: when a limit passed, in seconds of ``time.time()``."""
        mode = self._cell.plan.mode
        if mode == "single" and (last := read_steps(step_file(self._folder))) is not None:
            self._seen.see(last)
        if mode == "external":
            self._exchange_with_ranks(overdue)
        elif overdue is None:
            if mode == "elastic" and self._seen.lost is None and not self._seen.ranks:
                self._read_orphans()
        elif mode == "single":
            location = locate(read_dump(self._folder / STACKS), self._cell.info.source)
            self._seen.location = None if location is None else location.text
        else:
            self._read_overdue(overdue)

    @property
    def _last_attempt(self) -> Path:
        return attempt_folder(self._folder, last_attempt(self._folder))

    def _exchange_with_ranks(self, overdue: float | None) -> None:
        """Where pytest is a rank: report this rank's exit to rank 0; on rank 0, read those of the other ranks."""
        if own_rank() == 0:
            records = gather_rank_records(self._folder, self._seen.returncode, overdue)
            stacks = {record["rank"]: rank_folder(self._folder, record["rank"]) / STACKS for record in records}
            self._see_ranks(records, stacks.get, overdue)
        else:
            with contextlib.suppress(OSError):
                report_exit(self._folder, own_rank(), self._seen.returncode, overdue)

    def _read_orphans(self) -> None:
        """Where the agent was killed, and its ranks with it."""
        code = self._seen.returncode
        if code is None or code >= 0 or is_multi_node(self._spec.execution.elastic):
            return  # the ranks of one of several nodes were known to the agent alone
        records = self._records()
        mark_outlived(records, "the agent ended before this rank did")
        self._seen.ranks = records
        message = f"the agent was ended by {signal_name(-code)} in {place(self._seen.phase)}{after_step(self._seen)}"
        failure = exit_failure(self._seen.phase, code, {"message": message})
        self._seen.see({**ranks_event(records), "failure": {**failure, "rank": None}})

    def _read_overdue(self, overdue: float) -> None:
        """Where the agent was ended together with its ranks because of a limit."""
        records = self._records(overdue)
        found = {record["rank"]: self._folder.parent / record["stacks"] for record in records if record["stacks"]}
        self._see_ranks(records, found.get, overdue)

    def _records(self, overdue: float | None = None) -> list[RankData]:
        """Of the ranks of the last attempt, from their event logs."""
        nproc = self._cell.plan.nproc
        attempt = last_attempt(self._folder)
        exits = {} if overdue is None else read_exits(self._folder, attempt, before=overdue)
        late = {} if overdue is None else {rank: overdue for rank in range(nproc) if rank not in exits}
        return records_of_attempt(self._folder, attempt, nproc, exits, overdue=late, stalled=self._seen.stalled)

    def _see_ranks(self, records: list[RankData], stacks: Callable[[int], Path | None], overdue: float | None) -> None:
        if overdue is not None:
            report = explain_hang(records, stacks, self._cell.info.source, read_collectives(self._last_attempt))
            self._seen.location, self._seen.hung_rank = report.text, report.rank
            if any(_hung_importing(record) for record in records if record["rank"] == report.rank):
                self._seen.phase = "import"  # of which rank 0, whose phase it was, knows nothing
        self._seen.see(ranks_event(records))
        self.combine_results()

    def combine_results(self) -> None:
        """Where ``result_scope`` is ``rank_local``, the result is that of all ranks together; else that of rank 0."""
        seen = self._seen
        if self._cell.info.result_scope == "rank_local":
            seen.result = combined_result(seen.ranks) or seen.result
        elif is_multi_node(self._spec.execution.elastic):  # rank 0 may be on any node
            seen.result = next((rank["result"] for rank in seen.ranks if rank["rank"] == 0), seen.result)


def _hung_importing(record: RankData) -> bool:
    failure = record["failure"]
    return failure is not None and failure["kind"] in ("timeout", "stall") and failure["phase"] == "import"
