"""The run of a pytest process with trials: what was selected, the trials that run, and what was not reported yet."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import pytest

from pytest_aorta.common import log
from pytest_aorta.plan import Plan, Selection, make_plan
from pytest_aorta.plugin import NOT_EACH, STAMP, decisions_of_controller, is_controller, is_of_recipe, is_worker
from pytest_aorta.plugin.compat import SkippedItem, general_timeout
from pytest_aorta.plugin.options import read_selection
from pytest_aorta.registry import Registry
from pytest_aorta.runtime.resources.leases import UsedFolder, make_own
from pytest_aorta.settings import SETTINGS, RequestError
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.trial_runner import Runner
from pytest_aorta.trials.execution import Resources
from pytest_aorta.workspace.atomic import locked, write_json

if TYPE_CHECKING:
    from pytest_aorta.launch.job import TrialJob
    from pytest_aorta.replay import Replay
    from pytest_aorta.triage.facts import TrialFacts
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths

#: Gives the paths of a trial.
PathsOf = Callable[["TrialSpec"], "TrialPaths"]

#: Names for users: the workload, or the action of a recipe; and the cell.
CellName = tuple[str, str]

#: ``target`` of the workload of a test that is a trial.
TEST_TARGET = "pytest_aorta.plugin.one_test:OneTest"

#: Limit that pytest-timeout would set for an item, in seconds.
TIMEOUT = pytest.StashKey[float]()

RUN = pytest.StashKey["SessionRun"]()

#: Why a prefetched trial was ended, if nothing else ended the run.
NO_ITEM = "the run ended before its item"

_SIGTERM_HANDLED = pytest.StashKey[bool]()


# SIGTERM, which batch systems send before they kill: pytest ends as with Ctrl-C, in order and with its results.


class Terminated(KeyboardInterrupt): ...


def reason_of(error: BaseException) -> str:
    return "SIGTERM" if isinstance(error, Terminated) else type(error).__name__


def end_in_order_when_terminated(config: pytest.Config) -> None:
    """Handle SIGTERM until pytest ends, unless something else handles it.

    An xdist worker has no results to write: it ends at once when its controller does.
    """
    if _SIGTERM_HANDLED in config.stash:
        return
    if is_worker(config):
        from pytest_aorta.runtime.process_tree import die_with_parent

        config.stash[_SIGTERM_HANDLED] = True
        die_with_parent(os.getppid())  # execnet would wait five seconds for the test that runs
        return
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        config.stash[_SIGTERM_HANDLED] = True
        signal.signal(signal.SIGTERM, _terminate)
        config.add_cleanup(_restore_sigterm)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # pytest is ending already
    raise Terminated("SIGTERM")


def _restore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def ignore_sigterm_from_now_on() -> None:
    """Ignore SIGTERM once all is reported, so that pytest ends with the exit status of the run."""
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stdout.flush()


# Deadlines


def deadline_of(item: pytest.Item, spec: TrialSpec) -> float | None:
    """A trial's deadline in seconds; ``None`` leaves it to the workload.

    The first that is set wins: the marker ``aorta(timeout=)``, pytest-timeout's marker, ``--aorta-timeout``,
    pytest-timeout's limit for all tests.
    """
    for mark in item.iter_markers("aorta"):
        if mark.kwargs.get("timeout") is not None:
            return float(mark.kwargs["timeout"])
    own = spec.limits.timeout
    if spec.workload.target == TEST_TARGET:
        return own  # pytest-timeout is inside as well, where it counts no start of an interpreter
    general, marker = item.stash.get(TIMEOUT, None), item.get_closest_marker("timeout")
    if not general and item.config.pluginmanager.has_plugin("timeout"):
        if marker is not None:  # 0 switches it off
            general = marker.kwargs.get("timeout", marker.args[0] if marker.args else None) or None
        else:
            general = general_timeout(item.config)
    return general if own is None or (general is not None and marker is not None) else own


# What reports carry to the process that writes the results


@dataclass(frozen=True)
class RecordToWrite:
    path: str
    result: dict[str, Any]
    resumed: bool = False
    not_kept: list[str] = field(default_factory=list)


@dataclass
class ReportPayload:
    """The report of an item: the exit status of its trial if known, its trials, and lines for the summary."""

    exit_status: str | None = None
    trials: list[RecordToWrite] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_plain(self, *, with_records: bool) -> dict[str, Any]:
        """For the attribute ``aorta`` of a report, which xdist sends from process to process.

        Records are JSON, since execnet cannot send every text, such as a file name that is not UTF-8.
        """
        records = list(map(vars, self.trials)) if with_records else []
        return {"exit_status": self.exit_status, "records": json.dumps(records), "notes": json.dumps(self.notes)}


PAYLOAD = pytest.StashKey[ReportPayload]()


class TrialWatcher(Protocol):
    def trial_started(self, trial: TrialJob, file: Path, name: str, cell: CellName) -> None: ...
    def trial_ended(self, file: Path) -> None: ...
    def trial_finished(self, facts: TrialFacts, file: Path, cell: CellName) -> None: ...


WATCHER = pytest.StashKey[TrialWatcher]()


class Repeat(NamedTuple):
    """Number of a repeat of a trial: 0 for the first, unique among all xdist workers.

    ``again``: whether this very item has run before, for instance by pytest-rerunfailures.
    """

    number: int = 0
    again: bool = False


# What ends trials before their number does: a decision on their cell, or the end of the time


_FILE = "stopped_cells.json"


def cell_of(spec: TrialSpec) -> CellKey:
    return CellKey(spec.workload.name, spec.cell)


_CLOCK = "clock"


class TimedRounds:
    """Says which rounds may run. A begun round is completed; none begins when the time is over.

    ``seconds``: from the first trial that really runs; ``folder``: shared by the xdist workers.
    """

    def __init__(self, seconds: float, folder: Path | None = None) -> None:
        self.seconds = seconds
        self._folder = folder
        self._begun: set[str] = set()
        self._ends_at: float | None = None

    def begin(self, name: str) -> bool:
        """Whether a trial of this round may be run; the first one of a round begins it."""
        if name in self._begun:
            return True
        if self._folder is None:
            may_begin = self._is_in_time()
        else:
            # What another worker has begun in time must not be missed, nor may one begin after another has given up.
            with locked(self._folder):
                mark = self._folder / f"round-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
                in_time = self._is_in_time()
                may_begin = mark.exists() or in_time
                if may_begin:
                    mark.touch()
        if may_begin:
            self._begun.add(name)
        return may_begin

    def _is_in_time(self) -> bool:
        now = time.monotonic()
        if self._ends_at is None:
            clock = None if self._folder is None else self._folder / _CLOCK
            self._ends_at = float(clock.read_text()) if clock is not None and clock.exists() else now + self.seconds
            if clock is not None:
                clock.write_text(repr(self._ends_at))
        return now < self._ends_at


class NotNeeded(SkippedItem):
    """Skips an item whose trial is not needed."""


class Stopping:
    def __init__(self, config: pytest.Config, selection: Selection, shared: Callable[[], Path] | None = None) -> None:
        self._config = config
        self._shared = shared
        self._selection = selection
        self.may_end_early = selection.may_end_early
        self._decided: dict[CellKey, str] = {}
        #: Returns the cells that were decided before this run, with the reasons.
        self.decided_before: Callable[[], Mapping[CellKey, str]] = dict
        #: Whether to skip no trial: other nodes of a job run the same trials, and would wait for this one.
        self.skips_nothing = False
        #: Inode and time of the file from which ``_decided`` was read.
        self._seen: tuple[int, int] | None = None

    @cached_property
    def _used(self) -> UsedFolder:
        return UsedFolder(self._shared or make_own)

    @cached_property
    def folder(self) -> Path | None:
        """A folder that the processes of the run share; ``None`` for a single process, and on other hosts."""
        if not self.may_end_early:
            return None
        if self._shared is not None or is_controller(self._config):
            return self._used.path
        shared = decisions_of_controller(self._config).get("folder")
        return Path(shared) if shared and Path(shared).is_dir() else None

    @cached_property
    def rounds(self) -> TimedRounds | None:
        """``None`` without a time in ``--aorta-stop``."""
        duration = self._selection.stop.seconds
        return None if duration is None else TimedRounds(duration, self.folder)

    def publish(self, reasons: Mapping[CellKey, str]) -> None:
        """Tell all processes which cells need no more trials, and why."""
        self._decided = dict(reasons)
        if self.folder is not None:
            write_json(self.folder / _FILE, [{**vars(key), "reason": reason} for key, reason in reasons.items()])

    def decided(self, key: CellKey) -> str | None:
        """The reason why a cell needs no more trials; ``None`` if it needs them."""
        if self.skips_nothing:
            return None
        if self.folder is not None and self._selection.stop.ends_cells:
            with contextlib.suppress(FileNotFoundError):  # nothing was decided yet
                status = os.stat(self.folder / _FILE)
                if (seen := (status.st_ino, status.st_mtime_ns)) != self._seen:
                    cells: list[dict[str, Any]] = json.loads((self.folder / _FILE).read_text(encoding="utf-8"))
                    reasons = [each.pop("reason") for each in cells]
                    self._decided = {CellKey(**each): reason for each, reason in zip(cells, reasons, strict=True)}
                    self._seen = seen
        return self._decided.get(key) or self.decided_before().get(key)

    def reason(self, item: pytest.Item, key: CellKey) -> str | None:
        """The reason not to start the trial of an item that has no result yet; ``None`` to start it."""
        if not self.may_end_early:
            return None
        why = self.decided(key)
        if why is None and self.rounds is not None and not self.rounds.begin(round_of(item) or ""):
            return "the time is over (--aorta-stop)"
        return why

    def close(self) -> None:
        used: UsedFolder | None = self.__dict__.get("_used")
        if used is not None:
            used.close()


def longrepr_of_skip(item: pytest.Item, error: NotNeeded) -> tuple[str, None, str]:
    """Place and reason of a skip, for pytest's report. The place is the cell, so pytest shows its skips as one."""
    where = item.nodeid.rpartition("-")[0] + "]" if hasattr(item, "spec") or hasattr(item, "callspec") else item.nodeid
    return where, None, f"Skipped: {error.msg}"


def trial_of_test(item: pytest.Item) -> TrialSpec | None:
    """The trial that an item of a marked test with ``aorta_run`` runs for."""
    call = getattr(item, "callspec", None)
    return None if call is None else call.params.get("aorta_run")


def round_of(item: pytest.Item) -> str | None:
    """The round of a trial item or a marked test: all trials of its collector, or of its test, with the same index.

    All workloads of a file share their rounds; each action of a recipe has its own. ``None`` for any other item.
    """
    base = item.nodeid.partition("[")[0]
    spec: TrialSpec | None = getattr(item, "spec", None)
    if spec is not None:
        return f"{base if is_of_recipe(base) else base.rpartition('::')[0]} {spec.trial_index}"
    trial = trial_of_test(item)
    return None if trial is None else f"{base} {trial.trial_index}"


# Trials


class Prefetcher:
    """Starts the trials of items that pytest has not reached yet, so that no slot is idle.

    If the run may end early, it starts only twice as many trials as there are slots.
    """

    def __init__(self, run: SessionRun) -> None:
        self._run = run
        self._ahead = 2 * run.selection.resources.total_slots if run.selection.may_end_early else sys.maxsize
        #: Not started yet.
        self._queue: dict[str, tuple[pytest.Item, TrialSpec, TrialPaths]] = {}
        #: Started, or with an earlier result.
        self._waiting: dict[str, tuple[TrialJob, TrialPaths]] = {}
        #: Being ended, because their items did not run.
        self._dropped: list[tuple[TrialJob, TrialPaths]] = []

    def launch(self, trials: Iterable[tuple[pytest.Item, TrialSpec, TrialPaths]]) -> None:
        # All are looked for before the first one starts: to compare requests takes a slot, which trials would occupy.
        for item, spec, paths in trials:
            earlier = self._run.runner.find(spec, paths, deadline_of(item, spec))
            if earlier is not None:
                self._waiting[item.nodeid] = (earlier, paths)
            else:
                self._queue[item.nodeid] = (item, spec, paths)
        self._refill()

    def _refill(self) -> None:
        ahead = sum(not running.resumed for running, _ in self._waiting.values()) if self._queue else 0
        while self._queue and ahead < self._ahead:
            item, spec, paths = self._queue.pop(next(iter(self._queue)))
            if self._run.stopping.reason(item, cell_of(spec)) is None:
                running = self._run.runner.start(spec, paths, deadline_of(item, spec), urgent=False)
                self._waiting[item.nodeid] = (running, paths)
                ahead += 1

    def take(self, nodeid: str) -> TrialJob | None:
        trial = self._waiting.pop(nodeid, None)
        self._queue.pop(nodeid, None)
        self._refill()
        return None if trial is None else trial[0]

    def is_running(self, nodeid: str) -> bool:
        return nodeid in self._waiting and self._waiting[nodeid][0].started

    def withdraw(self, needed: Callable[[TrialSpec], bool]) -> None:
        for nodeid, (running, _) in list(self._waiting.items()):
            if not running.started and not running.resumed and not needed(running.spec):
                self.drop(nodeid)

    def drop(self, nodeid: str) -> None:
        """End the trial of an item that was skipped."""
        self._queue.pop(nodeid, None)
        trial = self._waiting.pop(nodeid, None)
        if trial is not None:
            trial[0].interrupt("its item was not run")
            self._dropped.append(trial)
            self._refill()

    def interrupt(self, why: str) -> None:
        """Cancel waiting trials, then end running ones: a freed slot must not start another."""
        self._queue.clear()
        for trial, _ in reversed(self._waiting.values()):
            trial.interrupt(why)

    def close(self, why: str) -> list[RecordToWrite]:
        self.interrupt(why)
        waiting, self._waiting = self._waiting, {}
        finished = []
        for trial, paths in waiting.values():
            record = trial.finish()
            if trial.started:
                finished.append(RecordToWrite(str(paths.file), record.to_dict()))
        for trial, paths in self._dropped:
            trial.finish()
            if trial.started and not paths.file_in(self._run.results).exists():
                shutil.rmtree(paths.folder_in(self._run.results), ignore_errors=True)
        return finished


class SessionRun:
    """One per pytest process, and one per action of a recipe.

    ``stamp``: name of the run in the history, by default a new one. ``stopping_folder``: returns the folder of
    ``Stopping``, for an action.
    """

    def __init__(
        self,
        config: pytest.Config,
        selection: Selection,
        stamp: str | None = None,
        stopping_folder: Callable[[], Path] | None = None,
    ) -> None:
        self.config = config
        self.selection = selection
        self.results: Path = config.invocation_params.dir / selection.results_dir
        before_use = partial(end_in_order_when_terminated, config)
        self.runner = Runner(selection, self.results, stamp, before_use, self.trial_started, self._judged)
        #: Whether another plugin may say that a trial has failed which got through its run.
        self.has_judges = bool(config.hook.pytest_aorta_trial_result.get_hookimpls())
        self.stopping = Stopping(config, selection, stopping_folder)
        #: Made for the first item, if there are several slots.
        self.prefetcher: Prefetcher | None = None
        #: Whether any setting has a value, from the command line, a variable or the ini file.
        self.is_mentioned = False
        #: Names of trials on the command line, empty for all; ``None`` if none of ``--aorta-workload`` is collected.
        self.chosen: set[str] | None = None
        #: By node id of an item: its trial, and the function that gives its paths.
        self.trials: dict[str, tuple[TrialSpec, PathsOf]] = {}
        #: Whether the options ask for trials of the tests that are collected; and all such trials.
        self.takes_tests = False
        self.tests: list[TrialSpec] = []
        #: The trials of ``--aorta-replay``, and runners for those that ``runner`` cannot run.
        self.replays: list[Replay] = []
        self.further_runners: dict[Hashable, Runner] = {}
        #: The runs of actions of recipes, by file and action.
        self.of_actions: dict[tuple[Path, str], SessionRun] = {}
        #: Name of the action, in the run of an action.
        self.action: str | None = None
        #: Whether the action expects its trials to fail.
        self.expects_failures = False
        #: Called at the end with the cells that need no more trials, and why.
        self.on_decided: Callable[[Mapping[str, str]], object] | None = None
        #: In a job: yields trials that other jobs started (``None``) or finished (facts) since the last call.
        self.others: Callable[[], Iterable[tuple[TrialSpec, TrialFacts | None]]] | None = None
        #: Called with each written record.
        self.on_record: Callable[[Mapping[str, Any]], object] | None = None
        #: How often each item has begun, by ``id(item)``; and the items with equal node ids.
        self._begun: Counter[int] = Counter()
        self._equal: dict[str, list[int]] = {}
        #: Whether there were items, and all of them are those of other shards; and what was refused, in a worker of
        #: xdist: the whole run ends as for a wrong option.
        self.all_elsewhere = False
        self.refused: str | None = None
        #: Fixtures and hooks that prevent prefetching; for each, an item that has it.
        self.held_by: dict[str, str] = {}
        #: Finished trials that the writer has not received yet.
        self.unreported: list[RecordToWrite] = []
        #: What interrupted pytest itself.
        self.interrupted: str | None = None
        self.interrupted_at = math.inf  # in seconds of ``time.monotonic()``

    @cached_property
    def registry(self) -> Registry:
        return Registry.load(self.selection.registry_files)

    @cached_property
    def plan(self) -> Plan:
        plan = make_plan(self.selection, self.registry)
        self.runner.add_plan(plan)
        return plan

    def trial_started(self, trial: TrialJob, paths: TrialPaths) -> None:
        """A slot is about to start a trial; called on its thread."""
        folder = paths.folder_in(self.results)
        ask_others(self.config, "trial_start", trial.warn, spec=trial.spec, folder=folder)
        if (watcher := self.config.stash.get(WATCHER, None)) is not None:
            cell = self.shown_cell(trial.spec.workload.name, trial.spec.cell)
            watcher.trial_started(trial, paths.file_in(self.results), self.shown_name(trial.spec), cell)

    def _judged(self, trial: TrialJob, record: TrialResult) -> TrialResult:
        """With what other plugins say of a trial; called on the thread of its slot."""
        if not self.has_judges:
            return record
        from pytest_aorta.trials.result import with_judgement

        problems: list[str] = []
        for each in ask_others(self.config, "trial_result", problems.append, spec=trial.spec, record=record):
            record = with_judgement(record, each)
        return record.model_copy(update={"warnings": [*record.warnings, *problems]}) if problems else record

    def shown_cell(self, workload: str, cell: str) -> CellName:
        """The names of a cell for users; of a recipe with the action, since several actions may have the same cell."""
        return self.action or workload, cell

    def shown_name(self, spec: TrialSpec) -> str:
        return spec.item_name if self.action is None else f"{self.action}[{spec.item_name.partition('[')[2]}"

    def next_repeat(self, item: pytest.Item) -> Repeat:
        """Count the start of an item, which other plugins may run again or collect several times.

        The number follows from the item's place among equal items, which is the same in all workers, and from how often
        it has begun here. So no process has to ask another one.
        """
        if not self._equal:
            for each in item.session.items:
                self._equal.setdefault(each.nodeid, []).append(id(each))
        times = self._begun[id(item)]
        self._begun[id(item)] += 1
        equal = self._equal.get(item.nodeid) or [id(item)]
        place = equal.index(id(item)) if id(item) in equal else 0
        return Repeat(times * len(equal) + place, again=times > 0)

    def has_result(self, item: pytest.Item) -> bool:
        """Whether ``--aorta-resume`` may find a result for the trial of an item."""
        paths: TrialPaths | None = getattr(item, "paths", None)
        return self.selection.resume and paths is not None and paths.file_in(self.results).exists()

    def launch(
        self,
        item: pytest.Item,
        spec: TrialSpec,
        paths: TrialPaths,
        extra_env: Mapping[str, str],
        key: CellKey | None = None,
        *,
        again: bool = False,
    ) -> TrialJob:
        """Start the trial of an item, unless it was prefetched or, with ``--aorta-resume``, has a result.

        ``again``: whether the item has run before in this run, which rules out an earlier result. Skip the item if the
        cell ``key`` needs no more trials.
        """
        if self.prefetcher is not None and not extra_env and not paths.repeat:
            running = self.prefetcher.take(item.nodeid)
            if running is not None:
                return running
        spec = replace(spec, overlay={**spec.overlay, **extra_env})
        deadline = deadline_of(item, spec)
        earlier = self.runner.find(spec, paths, deadline) if not again else None
        if earlier is not None:
            return earlier
        if key is not None and (why := self.stopping.reason(item, key)) is not None:
            raise NotNeeded(why)
        return self.runner.start(spec, paths, deadline)

    def add_record(self, item: pytest.Item, paths: TrialPaths, record: TrialResult, resumed: bool = False) -> None:
        """Attach a record to the item's last report, for the process that writes."""
        not_kept = self.runner.store.not_kept.pop(paths, ())
        trial = RecordToWrite(str(paths.file), record.to_dict(), resumed, list(not_kept))
        payload = item.stash[PAYLOAD]
        payload.exit_status = record.exit_status
        payload.trials.append(trial)
        if not is_worker(self.config):  # a worker's last report may be lost, and then so is its process
            self.unreported.append(trial)

    def interrupt(self, why: str) -> None:
        """Start nothing more: pytest itself was interrupted."""
        self.interrupted, self.interrupted_at = why, min(self.interrupted_at, time.monotonic())
        if self.prefetcher is not None:
            self.prefetcher.interrupt(why)

    def end_prefetched(self, why: str) -> None:
        if self.prefetcher is not None:
            self.unreported += self.prefetcher.close(why)

    def end_processes(self) -> None:
        for runner in (self.runner, *self.further_runners.values()):
            runner.close()


#: Options that may be given beside ``--aorta-replay``: records do not have their values.
_BESIDE_REPLAY = ("replay", "results-dir", "extra-env", "host")


def ask_others(config: pytest.Config, name: str, warn: Callable[[str], object], **given: Any) -> list[Any]:
    """The answers of other plugins to the hook ``pytest_aorta_`` with this name; what they raise costs no result."""
    try:
        answers: list[Any] = getattr(config.hook, f"pytest_aorta_{name}")(config=config, **given)
    except Exception as error:
        warn(f"pytest_aorta_{name}: {type(error).__name__}: {error}")
        return []
    return answers


def run_of(config: pytest.Config) -> SessionRun:
    if RUN not in config.stash:
        decided = decisions_of_controller(config)
        if decided.get("each"):
            raise pytest.UsageError(NOT_EACH)
        try:
            log.follow()
            selection = read_selection(config)
        except RequestError as error:
            raise pytest.UsageError(str(error)) from None
        if selection.replays:
            for option in SETTINGS:
                if option.name not in _BESIDE_REPLAY and getattr(config.option, option.ini, None) is not None:
                    valid = ", ".join(f"--aorta-{name}" for name in _BESIDE_REPLAY[1:])
                    raise pytest.UsageError(
                        f"{option.flag}: with --aorta-replay, the record says what is run; valid beside it are {valid}"
                    )
            selection = Selection(
                replays=selection.replays,
                results_dir=selection.results_dir,
                extra_env=selection.extra_env,
                resources=Resources(hosts=selection.resources.hosts),
            )
        stamp: str | None = decided.get("stamp", config.stash.get(STAMP, None))
        config.stash[RUN] = SessionRun(config, selection, stamp)
    return config.stash[RUN]


def current_run(config: pytest.Config) -> SessionRun | None:
    return config.stash.get(RUN, None)


def current_runs(config: pytest.Config) -> list[SessionRun]:
    run = config.stash.get(RUN, None)
    return [] if run is None else [run, *run.of_actions.values()]
