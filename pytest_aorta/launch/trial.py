"""One trial in a process of its own, followed by the thread of its slot."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_aorta.launch import external
from pytest_aorta.launch.process import Seat
from pytest_aorta.launch.ranks import find_log, rank_records, root_cause
from pytest_aorta.launch.record import build_record, utc_now
from pytest_aorta.launch.rules import Launch, own_rank
from pytest_aorta.runtime.processes.errors import ZygoteError
from pytest_aorta.runtime.processes.server import Server
from pytest_aorta.runtime.processes.task import Task
from pytest_aorta.runtime.processes.zygote import STARTUP_TIMEOUT
from pytest_aorta.trials.outcome import Observed, signal_name
from pytest_aorta.trials.result import TrialResult
from pytest_aorta.trials.spec import TrialSpec

#: Order of a trial's phases as ``wait`` knows them.
_ORDER = ("launch", "import", "setup", "run", "cleanup")


class ProcessTrial:
    """A trial in a process of its own. One thread follows it; any may ``interrupt``."""

    def __init__(self, spec: TrialSpec, folder: Path, grace: float) -> None:
        self.spec = spec
        self.seen = Observed()
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
        self._overdue: float | None = None
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
        self._deadline = None
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
        """Take in one event; ``False`` once the trial is over."""
        assert self._task is not None
        try:
            event = self._task.next_message(self._deadline)
        except TimeoutError:
            self.seen.timed_out = True
            self._overdue = time.time()
            if self.seen.phase == "import":
                self.seen.timeout = STARTUP_TIMEOUT
            self._deadline = None
            self._task.kill(self._grace)
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
            if self._launch.mode == "external":
                self._exchange_endings()
            elif self._launch.mode != "single" and self._overdue is not None:
                self._read_stories(self._overdue)
            return False
        if event["type"] == "prepared":
            self._start_clock()
        else:
            self.seen.see(event)
        return True

    def _exchange_endings(self) -> None:
        """Tell rank 0 how this rank ended; on rank 0, hear the others."""
        if own_rank() == 0:
            self.seen.see(external.gather(self._folder, self.seen.returncode, self._overdue))
        else:
            with contextlib.suppress(OSError):
                external.tell_the_end(self._folder, own_rank(), self.seen.returncode, self._overdue)

    def _read_stories(self, overdue: float) -> None:
        """Learn from the ranks' own stories what their agent, which was ended with them, could not tell any more."""
        nproc = self._launch.nproc
        late = dict.fromkeys(range(nproc), overdue)
        records = rank_records(lambda _: self._folder, nproc, {}, lambda *log: find_log(self._folder, *log), late)
        self.seen.see({"type": "ranks", "ranks": records, "failure": root_cause(records)})

    def _note_leftovers(self, ended: dict[str, Any]) -> None:
        for key, what in (("swept", "left running, and ended"), ("unkillable", "could not be ended")):
            for name in ended[key]:
                self.seen.notes.append({"note": f"{name} was {what}" if key == "swept" else f"{name} {what}"})

    def _build(self) -> TrialResult:
        self._wall = time.monotonic() - self._start
        return build_record(
            self.spec,
            self.seen,
            self._description,
            nproc=self._launch.nproc,
            started_at=self._started_at,
            wall=self._wall,
            artifacts=self._artifacts(),
            stacks=f"{self._folder.name}/stacks.log",
        )

    def _artifacts(self) -> dict[str, str]:
        found = {}
        with contextlib.suppress(OSError):
            stacks = self._folder / "stacks.log"
            if stacks.exists() and stacks.stat().st_size == 0:
                stacks.unlink()
            if own_rank() == 0:  # another rank's is still to be read
                for leftover in [*self._folder.glob("rank_*.events"), *self._folder.glob("torchrun.json")]:
                    leftover.unlink()
            for path in sorted(self._folder.rglob("*.log")):
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
