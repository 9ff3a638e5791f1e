"""One trial in a separate process, followed by the thread of its slot."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import logging
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_aorta.collectors.contract import load, variable
from pytest_aorta.common.texts import utc_now
from pytest_aorta.launch.diagnosis.traces import STACKS, crash_text
from pytest_aorta.launch.environment import EnvironmentUnusable, PreparedCell
from pytest_aorta.launch.host import collecting
from pytest_aorta.launch.host.allocation import Allocation
from pytest_aorta.launch.host.cell_zygotes import CellZygote, CellZygotes, Source, start_limits
from pytest_aorta.launch.host.folders import (
    PrivateFolders,
    TemporaryFolders,
    clear_place,
    copy_folder,
    make_place,
    remove_unchanged,
)
from pytest_aorta.launch.host.trial_files import (
    FolderReader,
    collect_artifacts,
    opened_files,
    stacks_to_read,
    stderr_to_read,
)
from pytest_aorta.launch.job import START_FAILURES, TrialJob, see_start_failure
from pytest_aorta.launch.launch_mode import (
    SCRIPT_TARGET,
    ChildArgument,
    NodeStore,
    is_command,
    is_multi_node,
    own_rank,
)
from pytest_aorta.launch.record import build_record, request_of
from pytest_aorta.runtime.zygote import Task, Zygote, ZygoteError, ZygoteUnwanted
from pytest_aorta.trials.execution import HASH_SEED
from pytest_aorta.trials.loading import digest_once
from pytest_aorta.trials.outcome import Observation, conclude, exit_failure, interruption, was_terminated
from pytest_aorta.trials.records import prepare_events
from pytest_aorta.trials.result import TrialResult
from pytest_aorta.trials.seeding import random_seed

_log = logging.getLogger(__name__)

_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, as fallocate(2) has them

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def punch_logs(folder: Path, limit: int, holes: dict[Path, int]) -> None:
    """Free the disk space between head and tail of logs that still grow; ``holes``: where the hole of each ends.

    A file keeps its size, so its writer is not affected. Without holes in the file system, nothing happens.
    """
    for path, size in _long_logs(folder, limit):
        start, end = holes.get(path, limit // 2), size - (limit - limit // 2)
        with contextlib.suppress(OSError), path.open("r+b") as file:
            _libc.fallocate(file.fileno(), _PUNCH_HOLE, start, end - start)
            # The next hole begins a little before, because only whole blocks are freed.
            holes[path] = max(limit // 2, end - 2**20)


def cut_logs(folder: Path, limit: int) -> list[str]:
    """Cut each ``*.log`` of an ended trial to ``limit`` bytes, half of them from its head; returns a text per cut."""
    texts = []
    for path, size in _long_logs(folder, limit):
        said = f"{size - limit} of {size} bytes were cut here; aorta_log_limit keeps {limit}"
        with contextlib.suppress(OSError):  # else it stays as long as it is
            fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with path.open("rb") as old, os.fdopen(fd, "wb") as new:
                    new.write(old.read(limit // 2))
                    new.write(f"\n[... {said} ...]\n".encode())
                    old.seek(size - (limit - limit // 2))
                    shutil.copyfileobj(old, new)
                    os.fchmod(new.fileno(), 0o644)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
            texts.append(f"{path.relative_to(folder).as_posix()}: {said.replace(' here', '')}")
    return texts


def _long_logs(folder: Path, limit: int) -> list[tuple[Path, int]]:
    long = []
    for path in sorted(folder.rglob("*.log")):
        with contextlib.suppress(OSError):
            facts = path.lstat()
            if facts.st_size > limit and not path.is_symlink():
                long.append((path, facts.st_size))
    return long


#: Number of processes that are named if they outlive their trial.
_NAMED = 10

#: Seconds between two looks at the logs of a running trial.
_LOOK_INTERVAL = 0.5

#: Seconds by which pytest may get a signal later than a trial, if a batch system sends it to all processes of a job.
BEHIND = 0.5

_ORDER = ("launch", "import", "setup", "run", "cleanup", "exit")

#: Seconds that the process of a workload class may take to exit after its trial, without a deadline.
_EXIT_LIMIT = 30.0


def draw_pid() -> None:
    """Use up a process id at random: else every trial takes the same number, and all ids are even, or odd."""
    if os.urandom(1)[0] & 1:
        with contextlib.suppress(RuntimeError):  # no thread can be started
            _thread.start_new_thread(int, ())  # its id is one of the same numbers


class Supervisor:
    """Supervises a trial in a separate process. One thread follows it; any thread may ``interrupt``."""

    def __init__(
        self,
        job: TrialJob,
        allocation: Allocation,
        zygotes: CellZygotes,
        temporary: TemporaryFolders,
        node_store: NodeStore | None = None,
    ) -> None:
        self.spec = spec = job.spec
        self.seen = Observation()
        #: Names of its processes that cannot be ended.
        self.stuck: list[str] = []
        self._job = job
        self._allocation = allocation
        self._folder = job.folder
        self._zygotes = zygotes
        self._seed = random_seed() if spec.given_seed is None else spec.given_seed
        self._temporary = temporary
        self._node_store = node_store
        self._place: PrivateFolders | None = None
        self._collectors = load(spec.collect) if spec.collect else {}
        self._has_copy = False
        self._started_at = utc_now()
        self._start = time.monotonic()
        self.cell: PreparedCell | None = None
        self._files: FolderReader | None = None
        self._zygote: CellZygote | None = None
        self._source: Source | None = None
        self._ranks: list[Zygote] = []
        self._start_index: int | None = None
        self._rank_pids: list[int] = []
        self._left_by_ranks: list[str] = []
        self._handed_over = 0.0
        self._task: Task | None = None
        self._had_process = False
        #: Limit in seconds of an import in its own process, while it imports.
        self._import_limit: float | None = None
        self._deadline = math.inf
        #: When the stall limit passes.
        self._stalls_at = math.inf
        self._interrupted = threading.Event()
        #: When one of these limits passed, in seconds of ``time.time()``.
        self._overdue: float | None = None
        #: Where the hole in each log ends.
        self._holes: dict[Path, int] = {}
        self._next_look = self._start + _LOOK_INTERVAL

    def start(self) -> None:
        """Hand the trial to a zygote. Never raises an error that is the trial's own fault."""
        job, allocation, cancelled = self._job, self._allocation, self._interrupted.is_set
        try:
            self._zygote = zygote = self._zygotes.of(job, allocation)
            self.cell = cell = zygote.prepare_cell(job, allocation, cancelled)
            for text in cell.info.config_warnings:
                self._note(text)
            for limit in (cell.info.timeout_sec, self.spec.limits.timeout, job.timeout):
                if limit is not None:
                    self.seen.timeout = float(limit)
            if self._collectors:  # which may write there from their start
                collecting.make_folders(self._folder, self._collectors)
                job = collecting.with_collectors(job, self._collectors)
                self._zygote = zygote = self._zygotes.of(job, allocation)
            self._source = source = zygote.acquire(job, allocation, self._seed, cancelled)
            server = source.zygote
            assert server is not None
            mode, is_here, here = cell.plan.mode, own_rank() == 0, job.inherited
            self._folder.mkdir(parents=True, exist_ok=True)  # not before: another run would put it away meanwhile
            self._place = place = make_place(
                self.spec.trial_index,
                self._folder,
                self._temporary,
                here.variables,
                ranks=mode in ("elastic", "torchrun") or (mode == "single" and is_command(self.spec.workload.target)),
                shared=mode == "external",
            )
            if place.problem is not None:
                self._note(place.problem)
            if self.spec.execution.cwd == "copy" and is_here:
                try:
                    copy_folder(Path(here.cwd), place.files, Path(here.results or os.devnull))
                    self._has_copy = True
                except OSError as error:
                    raise EnvironmentUnusable(f"--aorta-cwd copy: {here.cwd} cannot be copied: {error}") from None
            self._files = FolderReader(self.spec, cell, self._folder, place.sockets, self.seen, self._node_store)
            self._start_index, self.seen.how_started = source.start.index, "as typed"
            if not self._is_typed:
                self.seen.zygote = source.start.index if source.start.quota > 1 else None
                self.seen.how_started = zygote.reason
            argument = self._argument(cell, place, source, watch_imports=not (server.spec.fresh or zygote.has_learned))
            if self._has_rank_zygotes(mode) and not server.spec.fresh:
                self._ranks = zygote.acquire_ranks(source, job, cell.plan.nproc, cancelled)
                argument["rank_zygotes"] = len(self._ranks)
            draw_pid()
            self._handed_over = time.monotonic()
            self._task = server.start_task(
                argument,
                stdout=self._folder / "stdout.log",
                stderr=self._folder / "stderr.log",
                stacks=self._folder / STACKS,
                cores=allocation.cores,
                descriptors=allocation.descriptors,
            )
            self._had_process = True
            for each in self._ranks:
                with contextlib.closing(each.lend()) as lent, contextlib.suppress(OSError):  # it has died, as is seen
                    self._task.send_fd(lent.fileno())
            if self._interrupted.is_set():  # meanwhile
                self._kill_interrupted()
            if server.spec.fresh:
                self.seen.phase = "import"
                self._limit_import(start_limits(self._job).total)
                return
            with self._zygotes.lock:
                sec, server.load_sec = server.load_sec, None  # of the first trial only
            if sec is not None:
                self.seen.phases_sec["import"] = sec
            self._start_clock(waited=sec is not None and server.loaded_at > self._start)
        except ZygoteUnwanted:
            pass  # it was interrupted
        except START_FAILURES as error:
            if not self._interrupted.is_set():
                see_start_failure(self.seen, error, self.spec.workload.target, self._folder)

    @property
    def _is_typed(self) -> bool:
        """Whether it is a command that starts as typed, in a process of its own."""
        return is_command(self.spec.workload.target) and self.spec.execution.isolation != "fork"

    def _has_rank_zygotes(self, mode: str) -> bool:
        """Whether each rank is forked from a zygote of its own, as on one node; else the agent forks the ranks."""
        execution = self.spec.execution
        forks = execution.isolation == "auto" and execution.elastic.start_method == "fork"
        return mode == "elastic" and forks and not is_multi_node(execution.elastic)

    def _argument(
        self, cell: PreparedCell, place: PrivateFolders, source: Source, *, watch_imports: bool
    ) -> ChildArgument:
        spec = self.spec
        hashes = {HASH_SEED: str(self._job.hash_seed(spec.trial_index))} if self._is_typed else {}
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
                **place.variables(spec.overlay, spec.limits, self._seed if is_command(spec.workload.target) else None),
                **hashes,
                **(variable(self._collectors, self._folder.absolute()) if self._collectors else {}),
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
            "watch_imports": watch_imports
            and cell.plan.mode == "single"
            and spec.execution.preload == "auto"
            and not self._is_typed,
            "ends_fully": source.has_no_further_trial(self._job) and not self._is_typed,
            "timeout": self.seen.timeout,
            "stall_timeout": spec.limits.stall_timeout,
            "source": cell.info.source,
        }

    def _limit_import(self, seconds: float) -> None:
        self._import_limit = seconds
        self._deadline = time.monotonic() + seconds

    def _start_clock(self, *, waited: bool = False) -> None:
        # The trial has waited for only a part of an import that began before it.
        launched = time.monotonic() - self._start - (self.seen.phases_sec["import"] if waited else 0.0)
        self.seen.phases_sec = {"launch": max(0.0, launched), **self.seen.phases_sec}
        self.seen.phase = "setup"
        self._import_limit = None
        self._deadline = math.inf if self.seen.timeout is None else time.monotonic() + self.seen.timeout
        self._note_progress()

    def _note_progress(self) -> None:
        if self.seen.phase in ("launch", "import"):  # which cannot report progress
            self._stalls_at = math.inf
        elif self.spec.limits.stall_timeout is not None and not self.seen.timed_out and self.seen.lost is None:
            self._stalls_at = time.monotonic() + self.spec.limits.stall_timeout

    def interrupt(self, why: str) -> None:
        failure = None
        if self.cell is not None and not is_multi_node(self.spec.execution.elastic):
            failure = self.seen.rank_failure
            if self.cell.plan.mode == "single":
                failure = self.seen.failures.get("setup") or self.seen.failures.get("run")
        if failure is None or was_terminated(failure):  # of several nodes, another one may be interrupted first
            self.seen.lost = interruption(self.seen.phase, why)
        self._interrupted.set()
        self._deadline = self._stalls_at = math.inf
        self._kill_interrupted()

    def _kill_interrupted(self) -> None:
        task = self._task
        if task is not None and task.ended is None:
            task.kill(min(self.spec.limits.grace, 1.0), self._rank_pids)

    def wait(self, phase: str) -> None:
        """Block until ``phase`` has ended, or the trial has, or its deadline has passed."""
        distributed = self.cell is not None and self.cell.plan.mode != "single"
        while self._task is not None:
            # What the other ranks did is known only when all of them have ended.
            passed_by = _ORDER.index(self.seen.phase) > _ORDER.index(phase) and not (distributed and phase == "run")
            if passed_by or (phase in self.seen.failures and not distributed) or not self._advance():
                return

    def finish(self) -> TrialResult:
        """Block until the trial's processes are gone, then build its record."""
        spec, job, seen = self.spec, self._job, self.seen
        # Built while the trial still ends. A script has no seed; a process that was started ahead has its own.
        seed = None if spec.workload.target == SCRIPT_TARGET else self._seed
        number = spec.trial_index if self._is_typed else self._start_index
        drawn = {"seed": seed, "hash_seed": None if number is None else job.hash_seed(number)}
        request = request_of(spec, job.inherited, timeout=job.timeout).model_copy(update=drawn)
        while self._task is not None and self._advance():
            pass
        failure = conclude(seen)[1]
        if failure is not None and (was_terminated(failure) or is_multi_node(spec.execution.elastic)):
            self._interrupted.wait(BEHIND)
        mode = None if self.cell is None else self.cell.plan.mode
        if seen.lost is not None and mode not in (None, "single") and not seen.ranks:
            seen.result = None  # rank 0's alone
        if self._source is not None and self._zygote is not None:
            forks = mode != "torchrun" and (mode != "elastic" or spec.execution.elastic.start_method == "fork")
            status, sec = conclude(seen)[0], time.monotonic() - self._handed_over
            passed = None if status == "infrastructure_failed" else status == "ok"
            self._zygote.release(self._source, seen, ranks=self._ranks, forked=forks, passed=passed, sec=sec)
            self._source = None
        wall = time.monotonic() - self._start if self._had_process else None
        for text in cut_logs(self._folder, spec.limits.log_limit):
            self._note(text)
        before: int | None = None
        for state in seen.states:
            if state.state == "HEALTHY":
                if before not in (None, state.world_size):
                    self._note(f"from attempt {state.attempt} on, {state.world_size} ranks instead of {before}")
                before = state.world_size
        here = job.inherited
        results = None if here.results is None else Path(here.results)
        root = Path((None if self.cell is None else self.cell.info.source_root) or "/")
        for path in seen.reads:
            # What earlier trials have written decides nothing.
            is_result = results is not None and (root / path).is_relative_to(results)
            if not is_result and (digest := digest_once(root / path)) is not None:
                seen.imported_later[path] = digest
        if is_command(spec.workload.target) and self._place is not None:
            own = None if spec.execution.cwd == "here" else self._place.files
            opened = opened_files(self._folder, own, Path(here.cwd), results)
            if opened is not None:
                seen.imported_later |= opened.read
                seen.modules = sorted({*seen.modules, *opened.modules})
            if opened is not None and seen.result is not None:
                seen.result = replace(seen.result, output={**seen.result.output, "devices": opened.devices})
        collected = {}
        if self._collectors:
            said = {} if seen.result is None else seen.result.output
            output = said if is_command(spec.workload.target) else None
            collected = collecting.collected(self._folder, self._collectors, seen.ranks, output)
        artifacts = collect_artifacts(self._folder)
        failure = conclude(seen)[1]
        crashed = failure is not None and failure.signal is not None
        if self._place is not None:
            if self._has_copy:
                remove_unchanged(self._place.files, Path(job.inherited.cwd))
            artifacts |= clear_place(self._place, self._temporary, failed=failure is not None, in_use=bool(self.stuck))
        return build_record(
            spec,
            seen,
            self.cell,
            started_at=self._started_at,
            wall=wall,
            artifacts=artifacts,
            stacks=artifacts.get("stacks") if failure is None else stacks_to_read(seen, artifacts),
            crash=crash_text(stderr_to_read(seen, self._folder)) if crashed else None,
            request=request,
            imposed=self._allocation.imposed(job.inherited.variables, spec.overlay),
            side_by_side=self._allocation.side_by_side,
            collected=collected,
        )

    def _advance(self) -> bool:
        """Follow the trial until something happens; returns whether it goes on."""
        task, files, seen = self._task, self._files, self.seen
        assert task is not None
        assert files is not None
        limit = min(self._deadline, self._stalls_at)
        try:
            message = task.next_message(min(limit, self._next_look))
        except TimeoutError:
            now = time.monotonic()
            if limit <= now:
                seen.timed_out, self._overdue = True, time.time()
                if limit == self._stalls_at:
                    seen.stalled = self.spec.limits.stall_timeout
                elif self._import_limit is not None:
                    seen.timeout = self._import_limit
                self._deadline = self._stalls_at = math.inf
                what = "no progress" if seen.stalled is not None else "the deadline has passed"
                name, grace = self.spec.item_name, self.spec.limits.grace
                _log.info("%s: %s in %s; SIGTERM, and SIGKILL after %g s", name, what, seen.phase, grace)
                files.save_collectives()
                task.kill(self.spec.limits.grace, self._rank_pids)
            else:
                punch_logs(self._folder, self.spec.limits.log_limit, self._holes)
                self._next_look = now + _LOOK_INTERVAL
            return True
        except ZygoteError as error:
            seen.lost = exit_failure(seen.phase, error.returncode, error.error or {"message": str(error)})
            self._task = None
            return False
        if message is None:
            ended = task.ended
            assert ended is not None
            seen.returncode = ended.returncode
            self.stuck = list(ended.unkillable)
            swept = list(self._left_by_ranks)
            for name in ended.swept:
                # A debugger that waited beside a process is ours.
                if "native" not in self._collectors or not name.startswith("gdb "):
                    swept.append(name)
            for left, one, many in (
                (swept, "was left running, and ended", "were left running, and ended"),
                (self.stuck, "could not be ended", "could not be ended"),
            ):
                for name in left[:_NAMED]:
                    self._note(f"{name} {one}")
                if (more := len(left) - _NAMED) > 0:
                    self._note(f"{more} more {one if more == 1 else many}")
            task.close()
            self._task = None
            files.read(self._overdue)
            return False
        if message.get("type") in ("loading", "loaded", "prepared"):
            self._follow_import(message)
            return True
        try:
            event = prepare_events().validate_python(message)
            seen.see(event)
        except (ValueError, KeyError):
            return True  # ``done``, or what the workload has written to the channel
        if event["type"] in ("begin", "progress", "alive", "attempt"):
            self._note_progress()
        elif event["type"] == "rank_pids":
            self._rank_pids, self._left_by_ranks = event["pids"], event["left"]
        elif event["type"] == "lived":
            self._stalls_at = math.inf
            if self._deadline == math.inf and not self.seen.timed_out and self.seen.lost is None:
                self.seen.timeout = _EXIT_LIMIT
                self._deadline = time.monotonic() + _EXIT_LIMIT
        elif event["type"] in ("ranks_start", "ranks_ready"):
            self._follow_ranks(ready=event["type"] == "ranks_ready")
        elif event["type"] == "ranks":
            files.combine_results()
        return True

    def _follow_import(self, message: Mapping[str, Any]) -> None:
        if self._import_limit is None or self.seen.timed_out or self.seen.lost is not None:
            return
        if message["type"] == "prepared":
            self._start_clock(waited="import" in self.seen.phases_sec)
        elif message["type"] == "loaded":
            self.seen.phases_sec["import"] = float(message["sec"])
            self._limit_import(start_limits(self._job).total)
        elif (limit := start_limits(self._job).load) is not None:
            self._limit_import(limit)

    def _follow_ranks(self, *, ready: bool) -> None:
        """Give ranks that import for themselves as long as any start has, even with a shorter deadline."""
        if self.seen.timed_out or self.seen.lost is not None or self._interrupted.is_set():
            return
        self._import_limit, limit = None, self.seen.timeout
        if limit is not None and not ready:
            self._import_limit = limit = max(limit, start_limits(self._job).total)
        self._deadline = math.inf if limit is None else time.monotonic() + limit
        self._note_progress()

    def _note(self, text: str) -> None:
        self.seen.notes.append({"note": text})
