"""One trial in a separate process, followed by the thread of its slot."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from pytest_aorta.collectors.contract import load, variable
from pytest_aorta.common.texts import utc_now
from pytest_aorta.launch.diagnosis.traces import STACKS, crash_text, see_import_hang
from pytest_aorta.launch.environment import EnvironmentUnusable, PreparedCell, TrialOrder
from pytest_aorta.launch.host import collecting
from pytest_aorta.launch.host.allocation import Allocation, DevicesQuarantined
from pytest_aorta.launch.host.cell_zygotes import CellZygote, CellZygotes, start_limits
from pytest_aorta.launch.host.folders import (
    Manifest,
    TemporaryFolders,
    TrialFolders,
    clear_place,
    copy_folder,
    make_place,
    remove_unchanged,
    share_place,
)
from pytest_aorta.launch.host.trial_files import (
    TrialFiles,
    collect_artifacts,
    opened_files,
    stacks_to_read,
    stderr_to_read,
)
from pytest_aorta.launch.launch_mode import SCRIPT_TARGET, LaunchModeError, TrialPayload, is_command, own_rank
from pytest_aorta.launch.nodes import NodeStore, is_multi_node
from pytest_aorta.launch.record import build_record, request_of
from pytest_aorta.runtime.channel import Message
from pytest_aorta.runtime.zygote import Task, TaskEnd, Zygote, ZygoteError, ZygoteTimeout, ZygoteUnwanted
from pytest_aorta.trials.loading import ConfigError
from pytest_aorta.trials.outcome import Observation, conclude, exit_failure, interruption, was_terminated
from pytest_aorta.trials.records import parse_event
from pytest_aorta.trials.result import Request, TrialResult
from pytest_aorta.trials.seeding import random_seed

_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, as fallocate(2) has them

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class LogLimit:
    """Keeps ``limit`` bytes of every ``*.log`` below a trial's ``folder``: half from its head, half from its tail."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._head = limit // 2
        self._tail = limit - self._head
        #: Where the hole of each log ends.
        self._holes: dict[Path, int] = {}

    def punch(self) -> None:
        """Free the disk space between head and tail of logs that are still being written.

        A file keeps its size, so its writer is not affected. Without holes in the file system, nothing happens.
        """
        for path, size in self._long_ones():
            start, end = self._holes.get(path, self._head), size - self._tail
            with contextlib.suppress(OSError), path.open("r+b") as file:
                _libc.fallocate(file.fileno(), _PUNCH_HOLE, start, end - start)
                # The next hole begins a little before, because only whole blocks are freed.
                self._holes[path] = max(self._head, end - 2**20)

    def cut(self) -> list[str]:
        """Shorten the logs of a trial whose processes are gone; a text for each cut."""
        texts = []
        for path, size in self._long_ones():
            cut = size - self._head - self._tail
            said = f"{cut} of {size} bytes were cut here; aorta_log_limit keeps {self._head + self._tail}"
            with contextlib.suppress(OSError):  # else it stays as long as it is
                fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
                try:
                    with path.open("rb") as old, os.fdopen(fd, "wb") as new:
                        new.write(old.read(self._head))
                        new.write(f"\n[... {said} ...]\n".encode())
                        old.seek(size - self._tail)
                        shutil.copyfileobj(old, new)
                        os.fchmod(new.fileno(), 0o644)
                    os.replace(temporary, path)
                except BaseException:
                    os.unlink(temporary)
                    raise
                texts.append(f"{path.relative_to(self._folder).as_posix()}: {said.replace(' here', '')}")
        return texts

    def _long_ones(self) -> Iterator[tuple[Path, int]]:
        for path in sorted(self._folder.rglob("*.log")):
            with contextlib.suppress(OSError):
                facts = path.lstat()
                if facts.st_size > self._head + self._tail and not path.is_symlink():
                    yield path, facts.st_size


#: What prevents every trial of a cell: it is in the record of each.
START_FAILURES = (ZygoteError, EnvironmentUnusable, ConfigError, LaunchModeError, DevicesQuarantined)


def see_start_failure(seen: Observation, error: Exception, target: str, folder: Path | None) -> None:
    """Note why a trial of ``target`` could not start; stacks of an import that hung go into its ``folder``."""
    if isinstance(error, ZygoteTimeout):
        see_import_hang(seen, target, folder, error.limit, error.stacks, error.output)
        return
    lost = error if isinstance(error, ZygoteError) else ZygoteError(str(error))
    seen.phase = lost.phase
    seen.lost = exit_failure(lost.phase, lost.returncode, lost.error or {"message": str(lost)})


#: Processes that are named when they outlive their trial.
_NAMED = 10

#: Seconds between two looks at the logs of a running trial.
_LOOK_INTERVAL = 0.5

#: Seconds that pytest may be behind with a signal that a batch system has sent to all processes of its job.
BEHIND = 0.5

_ORDER = ("launch", "import", "setup", "run", "cleanup")


class ProcessTrial:
    """A trial in a separate process. One thread follows it; any may ``interrupt``."""

    def __init__(
        self,
        order: TrialOrder,
        allocation: Allocation,
        zygotes: CellZygotes,
        temporary: TemporaryFolders,
        node_store: NodeStore | None = None,
    ) -> None:
        self.spec = spec = order.spec
        self.seen = Observation()
        #: Its processes that cannot be ended.
        self.stuck: list[str] = []
        self._order = order
        self._allocation = allocation
        self._folder = order.folder
        self._zygotes = zygotes
        self._seed = random_seed() if spec.given_seed is None else spec.given_seed
        self._temporary = temporary
        self._node_store = node_store
        self._place: TrialFolders | None = None
        self._collectors = load(spec.collect) if spec.collect else {}
        #: What was copied into its working directory.
        self._copied: Manifest = {}
        self._started_at = utc_now()
        self._start = time.monotonic()
        self.cell: PreparedCell | None = None
        self._files: TrialFiles | None = None
        self._source: CellZygote | None = None
        self._server: Zygote | None = None
        self._task: Task | None = None
        self._had_process = False
        #: That of an import in its own process, in seconds, while it imports.
        self._import_limit: float | None = None
        self._deadline: float | None = None
        #: When the stall limit will have passed.
        self._stalls_at: float | None = None
        self._interrupted = threading.Event()
        #: When one of these passed, in seconds of ``time.time()``.
        self._overdue: float | None = None
        self._logs = LogLimit(self._folder, spec.limits.log_limit)
        self._next_look = self._start + _LOOK_INTERVAL
        self._record: TrialResult | None = None

    def start(self) -> None:
        """Hand the trial to a zygote. Never raises for what is the trial's own fault."""
        self._folder.mkdir(parents=True, exist_ok=True)
        order, allocation = self._order, self._allocation
        try:
            self._source = source = self._zygotes.of(order, allocation)
            self.cell = cell = source.prepare(order, allocation, self._is_wanted)
            self._note(cell.info.config_warnings)
            self._place = place = self._make_place(cell)
            self._files = TrialFiles(self.spec, cell, self._folder, place.sockets, self.seen, self._node_store)
            limits = (order.timeout, self.spec.limits.timeout, cell.info.timeout_sec)
            self.seen.timeout = next((float(limit) for limit in limits if limit is not None), None)
            if self._collectors:
                collecting.make_folders(self._folder, self._collectors)
                order = collecting.prepared(order, self._collectors)
                self._source = source = self._zygotes.of(order, allocation)
            self._server = server = source.acquire(order, allocation, self._seed, self._is_wanted)
            self._task = server.start_task(
                self._payload(cell, place, source.watches(order, server)),
                stdout=self._folder / "stdout.log",
                stderr=self._folder / "stderr.log",
                stacks=self._folder / STACKS,
                cores=allocation.cores,
                descriptors=allocation.descriptors,
            )
            self._had_process = True
            if self._interrupted.is_set():  # meanwhile
                self._kill_interrupted()
            if server.spec.fresh:
                self.seen.phase = "import"
                self._limit_import(start_limits(self._order).total)
                return
            with self._zygotes.lock:
                sec, server.load_sec = server.load_sec, None  # of the first trial only
            if sec is not None:
                self.seen.phases_sec["import"] = sec
            self._start_clock(waited=sec is not None and server.loaded_at > self._start)
        except ZygoteUnwanted:
            pass  # it was interrupted
        except (ZygoteError, EnvironmentUnusable, ConfigError, LaunchModeError) as error:
            if not self._interrupted.is_set():
                see_start_failure(self.seen, error, self.spec.workload.target, self._folder)

    def _is_wanted(self) -> bool:
        return not self._interrupted.is_set()

    def _make_place(self, cell: PreparedCell) -> TrialFolders:
        given = self.spec.trial_index, self._folder, self._temporary, self._order.inherited.variables
        if cell.plan.mode == "external":
            place = share_place(*given)
        else:
            ranks = cell.plan.mode != "single" or is_command(self.spec.workload.target)
            place = make_place(*given, ranks=ranks)
        if place.problem is not None:
            self._note([place.problem])
        if self.spec.execution.cwd == "copy" and own_rank() == 0:
            inherited = self._order.inherited
            try:
                self._copied = copy_folder(Path(inherited.cwd), place.files, Path(inherited.results or os.devnull))
            except OSError as error:
                raise EnvironmentUnusable(f"--aorta-cwd copy: {inherited.cwd} cannot be copied: {error}") from None
        return place

    def _payload(self, cell: PreparedCell, place: TrialFolders, watches: bool) -> TrialPayload:
        spec = self.spec
        return {
            "target": spec.workload.target,
            "overrides": dict(spec.overrides),
            "steps": spec.steps,
            "overlay": sorted(spec.overlay),
            "watched": spec.all_watched,
            "environment": spec.environment_data,
            "collect": list(self._collectors),
            "cwd": None if spec.execution.cwd == "here" else str(place.files),
            "place": {
                **place.variables(spec.overlay, self._seed if is_command(spec.workload.target) else None),
                **variable(self._collectors, self._folder.absolute()),
            },
            "sockets": str(place.sockets or os.devnull),  # in which nothing can be made
            "mode": cell.plan.mode,
            "nproc": cell.plan.nproc,
            "trial_id": spec.trial_id,
            "folder": str(self._folder),
            "grace": spec.limits.grace,
            "memory": spec.limits.memory,
            "elastic": vars(spec.execution.elastic),
            "seed": self._seed,
            "rank_seed": None if spec.origin is None else spec.origin.rank_seed,
            "launcher_pid": os.getppid() if cell.plan.mode == "external" else None,
            # A launcher gives its ranks variables that their imports could see.
            "watch_imports": cell.plan.mode == "single" and watches,
            "timeout": self.seen.timeout,
            "stall_timeout": spec.limits.stall_timeout,
            "source": cell.info.source,
        }

    def _limit_import(self, seconds: float) -> None:
        self._import_limit = seconds
        self._deadline = time.monotonic() + seconds

    def _start_clock(self, *, waited: bool = False) -> None:
        launched = time.monotonic() - self._start - (self.seen.phases_sec["import"] if waited else 0.0)
        self.seen.phases_sec = {"launch": launched, **self.seen.phases_sec}
        self.seen.phase = "setup"
        self._import_limit = None
        self._deadline = None if self.seen.timeout is None else time.monotonic() + self.seen.timeout
        self._note_progress()

    def _note_progress(self) -> None:
        if self.seen.phase in ("launch", "import"):  # which cannot report progress
            self._stalls_at = None
        elif self.spec.limits.stall_timeout is not None and not self.seen.timed_out and self.seen.lost is None:
            self._stalls_at = time.monotonic() + self.spec.limits.stall_timeout

    def interrupt(self, why: str) -> None:
        failure = None
        if self.cell is not None and not is_multi_node(self.spec.execution.elastic):
            failure = self.seen.rank_failure
            if self.cell.plan.mode == "single":
                failure = self.seen.failures.get("setup") or self.seen.failures.get("run")
        if failure is None or was_terminated(failure):  # of several nodes, another is perhaps interrupted first
            self.seen.lost = interruption(self.seen.phase, why)
        self._interrupted.set()
        self._deadline = self._stalls_at = None
        self._kill_interrupted()

    def _kill_interrupted(self) -> None:
        task = self._task
        if task is not None and task.ended is None:
            task.kill(grace=min(self.spec.limits.grace, 1.0))

    def wait(self, phase: str) -> None:
        """Block until ``phase`` has ended, or the trial has, or its deadline has passed."""
        distributed = self.cell is not None and self.cell.plan.mode != "single"
        while self._task is not None:
            # What the other ranks did is known only when all of them have ended.
            passed_by = _ORDER.index(self.seen.phase) > _ORDER.index(phase) and not (distributed and phase == "run")
            if passed_by or (phase in self.seen.failures and not distributed) or not self._advance():
                return

    def finish(self) -> TrialResult:
        """Block until the trial's processes are gone, then build its record. Again: the same record."""
        if self._record is None:
            spec, order = self.spec, self._order
            # While the trial still ends. A script has no seed; else, it may be that of a process started ahead.
            seed = None if spec.workload.target == SCRIPT_TARGET else self._seed
            request = request_of(spec, order.inherited, timeout=order.timeout).model_copy(update={"seed": seed})
            while self._task is not None and self._advance():
                pass
            failure = conclude(self.seen)[1]
            if failure is not None and (was_terminated(failure) or is_multi_node(spec.execution.elastic)):
                self._interrupted.wait(BEHIND)
            mode = None if self.cell is None else self.cell.plan.mode
            if self.seen.lost is not None and mode not in (None, "single") and not self.seen.ranks:
                self.seen.result = None  # rank 0's alone
            if self._server is not None and self._source is not None:
                forks = mode != "torchrun" and (mode != "elastic" or spec.execution.elastic.start_method == "fork")
                self._source.release(self._server, self.seen, forked=forks)
                self._server = None
            self._record = self._build(request)
        return self._record

    def _advance(self) -> bool:
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
            self.seen.lost = exit_failure(self.seen.phase, error.returncode, error.error or {"message": str(error)})
            self._task = None
            return False
        if event is None:
            assert self._task.ended is not None
            self._end(self._task, self._task.ended)
            return False
        self._receive(event)
        return True

    def _receive(self, message: Message) -> None:
        assert self._files is not None
        if message.get("type") in ("loading", "loaded", "prepared"):
            self._follow_import(message)
            return
        try:
            event = parse_event(message)
        except ValueError:
            return  # ``done``, or what the workload has written to the channel
        self.seen.see(event)
        if event["type"] in ("begin", "progress", "alive", "attempt"):
            self._note_progress()
        elif event["type"] in ("ranks_start", "ranks_ready"):
            self._follow_ranks(ready=event["type"] == "ranks_ready")
        elif event["type"] == "ranks":
            self._files.combine_results()

    def _follow_import(self, message: Message) -> None:
        if self._import_limit is None or self.seen.timed_out or self.seen.lost is not None:
            return
        if message["type"] == "prepared":
            self._start_clock(waited="import" in self.seen.phases_sec)
        elif message["type"] == "loaded":
            self.seen.phases_sec["import"] = float(message["sec"])
            self._limit_import(start_limits(self._order).total)
        elif (limit := start_limits(self._order).load) is not None:
            self._limit_import(limit)

    def _follow_ranks(self, *, ready: bool) -> None:
        """Ranks that import for themselves have as long for that as any start, however short the deadline."""
        if self.seen.timed_out or self.seen.lost is not None or self._interrupted.is_set():
            return
        self._import_limit, limit = None, self.seen.timeout
        if limit is not None and not ready:
            self._import_limit = limit = max(limit, start_limits(self._order).total)
        self._deadline = None if limit is None else time.monotonic() + limit
        self._note_progress()

    def _end(self, task: Task, ended: TaskEnd) -> None:
        assert self._files is not None
        self.seen.returncode = ended.returncode
        self.stuck = list(ended.unkillable)
        # A debugger that waited beside a process is ours.
        swept = [name for name in ended.swept if not ("native" in self._collectors and name.startswith("gdb "))]
        for left, one, many in (
            (swept, "was left running, and ended", "were left running, and ended"),
            (ended.unkillable, "could not be ended", "could not be ended"),
        ):
            self._note(f"{name} {one}" for name in left[:_NAMED])
            if (more := len(left) - _NAMED) > 0:
                self._note([f"{more} more {one if more == 1 else many}"])
        task.close()
        self._task = None
        self._files.read(self._overdue)

    def _end_overdue(self, *, stalled: bool) -> None:
        assert self._task is not None
        assert self._files is not None
        self.seen.timed_out = True
        self._overdue = time.time()
        if stalled:
            self.seen.stalled = self.spec.limits.stall_timeout
        elif self._import_limit is not None:
            self.seen.timeout = self._import_limit
        self._deadline = self._stalls_at = None
        self._files.save_collectives()
        self._task.kill(self.spec.limits.grace)

    def _note(self, texts: Iterable[str]) -> None:
        self.seen.notes += [{"note": text} for text in texts]

    def _build(self, request: Request) -> TrialResult:
        wall = time.monotonic() - self._start if self._had_process else None
        self._note(self._logs.cut())
        sizes = [(state.attempt, state.world_size) for state in self.seen.states if state.state == "HEALTHY"]
        for (_, before), (attempt, after) in itertools.pairwise(sizes):
            if before != after:
                self._note([f"from attempt {attempt} on, {after} ranks instead of {before}"])
        if is_command(self.spec.workload.target) and self._place is not None:
            here = self._order.inherited
            results = None if here.results is None else Path(here.results)
            own = None if self.spec.execution.cwd == "here" else self._place.files
            opened = opened_files(self._folder, own, Path(here.cwd), results)
            if opened is not None:
                self.seen.imported_later |= opened.read
            if opened is not None and self.seen.result is not None:
                told = {"written": opened.written[:_NAMED], "devices": opened.devices}
                self.seen.result = replace(self.seen.result, output={**self.seen.result.output, **told})
        found = collecting.collected(self._folder, self._collectors, self.seen.ranks) if self._collectors else {}
        artifacts = collect_artifacts(self._folder)
        failure = conclude(self.seen)[1]
        crashed = failure is not None and failure.signal is not None
        if self._place is not None:
            remove_unchanged(self._place.files, self._copied)
            artifacts |= clear_place(self._place, self._temporary, failed=failure is not None, in_use=bool(self.stuck))
        return build_record(
            self.spec,
            self.seen,
            self.cell,
            started_at=self._started_at,
            wall=wall,
            artifacts=artifacts,
            stacks=stacks_to_read(self.seen, artifacts),
            crash=crash_text(stderr_to_read(self.seen, self._folder)) if crashed else None,
            request=request,
            imposed=self._allocation.imposed(self._order.inherited.variables, self.spec.overlay),
            side_by_side=self._allocation.side_by_side,
            collected=found,
        )
