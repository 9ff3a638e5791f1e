"""One trial in a process of its own, followed by the thread of its slot."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_aorta.launch.child import external
from pytest_aorta.launch.child.event_log import pids_of_ranks
from pytest_aorta.launch.child.rank_files import attempt_folder, last_attempt
from pytest_aorta.launch.child.script_events import read_ends
from pytest_aorta.launch.diagnosis import flight_recorder
from pytest_aorta.launch.diagnosis.hangs import read_collectives, report_hang
from pytest_aorta.launch.diagnosis.stacks import read_dump, whereabouts
from pytest_aorta.launch.environment import Seat
from pytest_aorta.launch.host.log_limit import LogLimit
from pytest_aorta.launch.host.rank_results import combined_result, mark_outlived, ranks_event, records_of_attempt
from pytest_aorta.launch.launch_mode import Launch, own_rank
from pytest_aorta.launch.nodes.addressing import has_several
from pytest_aorta.launch.record import build_record, utc_now
from pytest_aorta.runtime.zygotes.messages import TaskEnd
from pytest_aorta.runtime.zygotes.server import Server
from pytest_aorta.runtime.zygotes.task import Task
from pytest_aorta.runtime.zygotes.zygote import STARTUP_TIMEOUT
from pytest_aorta.runtime.zygotes.zygote_error import ZygoteError
from pytest_aorta.trials.outcome import Observed, signal_name
from pytest_aorta.trials.result import TrialResult
from pytest_aorta.trials.spec import TrialSpec

#: Seconds between two looks at what a running trial writes.
_LOOK_INTERVAL = 0.5

#: In a trial's folder: where its process writes its stacks when asked to.
_STACKS = "stacks.log"

#: Processes that are told by name when they outlive their trial.
_NAMED = 10

#: Order of a trial's phases as ``wait`` knows them.
_ORDER = ("launch", "import", "setup", "run", "cleanup")


class ProcessTrial:
    """A trial in a process of its own. One thread follows it; any may ``interrupt``."""

    def __init__(self, spec: TrialSpec, folder: Path, grace: float) -> None:
        self.spec = spec
        self.seen = Observed()
        #: Processes of it that nobody could end.
        self.stuck: list[str] = []
        self._folder = folder
        self._grace = grace
        self._started_at = utc_now()
        self._start = time.monotonic()
        self._wall: float | None = None
        self._description: dict[str, Any] = {}
        self._launch = Launch("single")
        self._server: Server | None = None
        self._task: Task | None = None
        self._fresh = False
        self._give_back: Callable[[Server, bool], None] = lambda server, fresh: None
        self._deadline: float | None = None
        #: When it will have made no progress for too long.
        self._stalls_at: float | None = None
        self._overdue: float | None = None
        self._logs = LogLimit(folder, spec.log_limit)
        self._next_look = self._start + _LOOK_INTERVAL
        self._record: TrialResult | None = None

    def describe(self, description: dict[str, Any], launch: Launch, timeout: float | None) -> None:
        """Take in what is known before the start."""
        self._description = description
        self._launch = launch
        for limit in (timeout, self.spec.timeout, description["timeout_sec"]):
            if limit is not None:
                self.seen.timeout = float(limit)
                break

    def start(self, server: Server, fresh: bool, seat: Seat, give_back: Callable[[Server, bool], None]) -> None:
        """Hand the trial to a zygote; the deadline counts from here, or from the end of a fresh import.

        ``give_back`` takes the zygote when the trial is over.
        """
        self._server, self._fresh, self._give_back = server, fresh, give_back
        spec = self.spec
        payload = {
            "target": spec.workload.target,
            "overrides": dict(spec.overrides),
            "steps": spec.steps,
            "overlay": sorted(spec.overlay),
            "mode": self._launch.mode,
            "nproc": self._launch.nproc,
            "trial_id": spec.trial_id,
            "folder": str(self._folder.absolute()),
            "grace": self._grace,
            "memory": spec.memory,
            "elastic": spec.elastic.to_plain(),
            "launcher_pid": os.getppid() if self._launch.mode == "external" else None,
        }
        logs = {name: (self._folder / f"{name}.log").absolute() for name in ("stdout", "stderr", "stacks")}
        self._task = server.submit(payload, **logs, cores=seat.cores, descriptors=seat.descriptors)
        if fresh:
            self.seen.phase = "import"
            self._deadline = time.monotonic() + STARTUP_TIMEOUT
        else:
            self._start_clock()

    def _start_clock(self) -> None:
        self.seen.phases_sec["launch"] = time.monotonic() - self._start
        self.seen.phase = "setup"
        self._deadline = None if self.seen.timeout is None else time.monotonic() + self.seen.timeout
        self._note_progress()

    def _note_progress(self) -> None:
        if self.spec.stall_timeout is not None and not self.seen.timed_out and self.seen.lost is None:
            self._stalls_at = time.monotonic() + self.spec.stall_timeout

    def lose(self, error: ZygoteError) -> None:
        """It could not start, or the process that hosted it died."""
        if self._task is None:
            self.seen.phase = error.phase  # type: ignore[assignment]
        self.seen.lost = {
            "phase": self.seen.phase,
            **ending(error.returncode),
            **(error.error or {"message": str(error)}),
        }

    def interrupt(self, why: str) -> None:
        """End it now."""
        self.seen.lost = interruption(self.seen.phase, why)
        self._deadline = self._stalls_at = None
        task = self._task
        if task is not None and task.ended is None:
            task.kill(grace=min(self._grace, 1.0))

    def wait(self, phase: str) -> None:
        """Block until ``phase`` has ended, or the trial has, or its deadline has passed."""
        distributed = self._launch.mode != "single"
        while self._task is not None:
            # What the other ranks did is known only when all of them have ended.
            passed_by = _ORDER.index(self.seen.phase) > _ORDER.index(phase) and not (distributed and phase == "run")
            if passed_by or (phase in self.seen.failures and not distributed) or not self._advance():
                return

    def finish(self) -> TrialResult:
        """Block until the trial's processes are gone, then build its record. Again: the same record."""
        if self._record is None:
            while self._task is not None and self._advance():
                pass
            if self._server is not None:
                server, self._server = self._server, None
                self._give_back(server, self._fresh)
            self._record = self._build()
        return self._record

    def _advance(self) -> bool:
        """Take in one event, or look after the trial; ``False`` once it is over."""
        assert self._task is not None
        limits = [limit for limit in (self._deadline, self._stalls_at) if limit is not None]
        try:
            event = self._task.next_message(min([*limits, self._next_look]))
        except TimeoutError:
            now = time.monotonic()
            if limits and min(limits) <= now:
                self._end_overdue(stalled=min(limits) == self._stalls_at)
            else:
                self._logs.punch()
                self._next_look = now + _LOOK_INTERVAL
            return True
        except ZygoteError as error:
            self.lose(error)
            self._task = None
            return False
        if event is None:
            ended = self._task.ended
            assert ended is not None
            self.seen.returncode = ended["returncode"]
            self._note_leftovers(ended)
            self._task.close()
            self._task = None
            self._learn_the_rest()
            return False
        if event["type"] == "prepared":
            self._start_clock()
        else:
            self.seen.see(event)
            if event["type"] in ("begin", "progress", "attempt"):
                self._note_progress()
            elif event["type"] == "ranks":
                self._combine_results()
        return True

    def _end_overdue(self, *, stalled: bool) -> None:
        """Its deadline has passed, or it is ``stalled``: have its stacks taken, and end it."""
        assert self._task is not None
        self.seen.timed_out = True
        self._overdue = time.time()
        if stalled:
            self.seen.stalled = self.spec.stall_timeout
        elif self.seen.phase == "import":
            self.seen.timeout = STARTUP_TIMEOUT
        self._deadline = self._stalls_at = None
        if self._launch.mode in ("elastic", "torchrun"):
            self._ask_flight_recorders()
        self._task.kill(self._grace)

    def _ask_flight_recorders(self) -> None:
        """Before they are ended: which collectives the ranks have entered."""
        folder = attempt_folder(self._folder, last_attempt(self._folder))
        for rank, pid in pids_of_ranks(folder).items():
            recorded = flight_recorder.ask(pid)
            if recorded is not None and recorded.get("entries"):
                with contextlib.suppress(OSError):
                    (folder / f"rank_{rank}.collectives.json").write_text(json.dumps(recorded))

    def _learn_the_rest(self) -> None:
        """After its end: what its processes have left in files."""
        if self._launch.mode == "external":
            self._exchange_endings()
        elif self._overdue is None:
            if self._launch.mode == "elastic" and self.seen.lost is None and not self.seen.ranks:
                self._see_orphans()
        elif self._launch.mode == "single":
            where = whereabouts(read_dump(self._folder / _STACKS), self._source)
            self.seen.whereabouts = None if where is None else where.text
        else:
            self._read_stories(self._overdue)

    @property
    def _source(self) -> str | None:
        return self._description.get("source")

    def _exchange_endings(self) -> None:
        """Tell rank 0 how this rank ended; on rank 0, hear the others."""
        if own_rank() == 0:
            records = external.gather(self._folder, self.seen.returncode, self._overdue)
            self._see_ranks(records, lambda rank: external.rank_folder(self._folder, rank) / _STACKS)
        else:
            with contextlib.suppress(OSError):
                external.tell_the_end(self._folder, own_rank(), self.seen.returncode, self._overdue)

    def _see_orphans(self) -> None:
        """The agent was killed, and its ranks with it."""
        code = self.seen.returncode
        if code is None or code >= 0 or has_several(self.spec.elastic):  # whose own ranks only the agent knew
            return
        records = self._records_from_stories()
        mark_outlived(records, "the agent ended before this rank did")
        failure = {"phase": self.seen.phase, **ending(code), "rank": None}
        failure["message"] = f"the agent was ended by {signal_name(-code)} in {self.seen.phase}()"
        self.seen.see({**ranks_event(records), "failure": failure})

    def _read_stories(self, overdue: float) -> None:
        """Learn from the ranks' own stories what their agent, which was ended with them, could not tell any more."""
        records = self._records_from_stories(overdue)
        found = {record["rank"]: record["stacks"] for record in records}
        self._see_ranks(records, lambda rank: self._folder.parent / found[rank] if found[rank] else None)

    def _records_from_stories(self, overdue: float | None = None) -> list[dict[str, Any]]:
        """Of the ranks of the last attempt, from their own stories; ``overdue``: when the deadline passed."""
        nproc = self._launch.nproc
        attempt = last_attempt(self._folder)
        ends = {} if overdue is None else read_ends(self._folder, attempt, before=overdue)
        late = {} if overdue is None else {rank: overdue for rank in range(nproc) if rank not in ends}
        return records_of_attempt(self._folder, attempt, nproc, ends, overdue=late, stalled=self.seen.stalled)

    def _note_membership(self) -> None:
        """A worker group that has become smaller or larger says so."""
        sizes = [(state["attempt"], state["world_size"]) for state in self.seen.states if state["state"] == "HEALTHY"]
        for (_, before), (attempt, after) in itertools.pairwise(sizes):
            if before != after:
                self.seen.notes.append({"note": f"from attempt {attempt} on, {after} ranks instead of {before}"})

    def _see_ranks(self, records: list[dict[str, Any]], stacks: Callable[[int], Path | None]) -> None:
        if self._overdue is not None:
            folder = attempt_folder(self._folder, last_attempt(self._folder))
            report = report_hang(records, stacks, self._source, read_collectives(folder))
            self.seen.whereabouts, self.seen.hung_rank = report.text, report.rank
        self.seen.see(ranks_event(records))
        self._combine_results()

    def _combine_results(self) -> None:
        """Where every rank speaks for itself, what they say together is the result; else what rank 0 says."""
        if self._description["result_scope"] == "rank_local":
            self.seen.result = combined_result(self.seen.ranks) or self.seen.result
        elif has_several(self.spec.elastic):  # whose rank 0 may be on any of them
            self.seen.result = next((rank["result"] for rank in self.seen.ranks if rank["rank"] == 0), self.seen.result)

    def _note_leftovers(self, ended: TaskEnd) -> None:
        self.stuck = ended["unkillable"]
        kinds = ((ended["swept"], "was left running, and ended"), (ended["unkillable"], "could not be ended"))
        for left, what in kinds:
            names = left[:_NAMED]
            if len(left) > _NAMED:
                names.append(f"{len(left) - _NAMED} more")
            self.seen.notes += [{"note": f"{name} {what}"} for name in names]

    def _build(self) -> TrialResult:
        self._wall = time.monotonic() - self._start
        for folder in self._folder.glob("attempt_*"):
            for pid in pids_of_ranks(folder).values():
                flight_recorder.forget(pid)
        self.seen.notes += [{"note": text} for text in self._logs.cut()]
        self._note_membership()
        artifacts = self._artifacts()
        return build_record(
            self.spec,
            self.seen,
            self._description,
            nproc=self._launch.nproc,
            started_at=self._started_at,
            wall=self._wall,
            artifacts=artifacts,
            stacks=self._stacks(artifacts),
            launcher=None if self._launch.mode == "single" else self._launch.mode,
        )

    def _stacks(self, artifacts: dict[str, str]) -> str | None:
        """The dump to look at first: that of the rank that the others waited for or that failed, where it is known."""
        rank = self.seen.hung_rank if self.seen.rank_failure is None else self.seen.rank_failure.get("rank")
        for record in self.seen.ranks:
            if record["rank"] == rank and record["stacks"] in artifacts.values():
                return str(record["stacks"])
        return artifacts.get("stacks")

    def _artifacts(self) -> dict[str, str]:
        found = {}
        with contextlib.suppress(OSError):
            for stacks in [self._folder / _STACKS, *self._folder.glob("attempt_*/rank_*.stacks.log")]:
                if stacks.exists() and stacks.stat().st_size == 0:
                    stacks.unlink()
            if own_rank() == 0:  # another rank's is still to be read
                stories = [*self._folder.glob("rank_*.events"), *self._folder.glob("attempt_*/rank_*.events")]
                for leftover in [*stories, *self._folder.glob("torchrun.json")]:
                    leftover.unlink()
            kept = (path for kind in ("*.log", "*error.json", "*collectives.json") for path in self._folder.rglob(kind))
            for path in sorted(kept):
                name = path.relative_to(self._folder).with_suffix("").as_posix()
                found[name] = path.relative_to(self._folder.parent).as_posix()
        return found


def ending(returncode: int | None) -> dict[str, Any]:
    """Kind of a failure, and what belongs to it: by how a process ended, where that is what went wrong."""
    if returncode is None:
        return {"kind": "exception"}
    if returncode < 0:
        return {"kind": "signal", "signal": signal_name(-returncode)}
    return {"kind": "exit_code", "exit_code": returncode}


def interruption(phase: str, why: str) -> dict[str, Any]:
    """The failure of a trial that was ended in ``phase`` by whoever had asked for it."""
    return {"phase": phase, "kind": "signal", "message": f"interrupted: {why}"}
