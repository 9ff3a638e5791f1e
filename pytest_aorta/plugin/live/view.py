"""The live view: while trials run on a terminal, lines below pytest's own that say how far they are.

In the process that owns the reports. It sees trials start through the ``TrialRunner``, on the threads of slots; in an
xdist controller, through the reports of the workers. Steps are read from the file that every trial and rank writes its
last step to (``trials.steps``), so the trials send nothing more than without it; those of other hosts have no such file
here until they are over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_aorta.plugin.compat import set_terminal_file, terminal_file
from pytest_aorta.plugin.live.region import LiveRegion, RegionFile
from pytest_aorta.plugin.live.state import CellName, LiveState, RunningTrial
from pytest_aorta.plugin.live.text import LiveLine, live_lines
from pytest_aorta.plugin.roles import is_controller
from pytest_aorta.plugin.run import current_run, current_runs

if TYPE_CHECKING:
    from typing import TextIO

    from pytest_aorta.launch.slot_trial import SlotTrial
    from pytest_aorta.plugin.run import Run
    from pytest_aorta.triage.facts import TrialFacts
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths

#: Seconds between two looks at what runs: where pytest has written something, and else.
_PAUSE, _INTERVAL = 0.1, 0.3

#: Looks without a running trial after which there are no more, until the next one starts.
_IDLE_LOOKS = 8

#: Variables by which pytest, too, knows that it runs for a log.
_CI = ("CI", "BUILD_NUMBER")


def wanted_file(config: pytest.Config, environ: Mapping[str, str]) -> TextIO | None:
    """The terminal that pytest writes to, if a live view is to be shown on it."""
    file = terminal_file(config)
    if file is None or not file.isatty() or config.get_verbosity() < 0:
        return None
    # Some CI services give a terminal to what they run, and keep all that it writes in a log.
    if environ.get("TERM", "dumb") == "dumb" or any(environ.get(name) for name in _CI):
        return None
    # What tests print would come in between, and a debugger needs the terminal for itself.
    shares = config.getoption("capture", "no") in ("no", "tee-sys")
    return None if shares or any(config.getoption(name, False) for name in ("usepdb", "trace")) else file


class LiveView:
    """Hooks, and the thread that draws."""

    def __init__(self, config: pytest.Config, file: TextIO) -> None:
        self._config = config
        self._file = file
        writer = config.get_terminal_writer()
        self._colours = writer.markup if writer.hasmarkup else None
        self._look_soon = threading.Event()
        self._region: LiveRegion | None = LiveRegion(
            file, lambda: writer.width_of_current_line, on_erased=self._look_soon.set
        )
        set_terminal_file(config, cast("TextIO", RegionFile(file, self._region)))
        #: Of all below; held for moments only, as slots wait for it.
        self._lock = threading.Lock()
        self._state = LiveState(time.monotonic())
        self._trials: dict[Hashable, SlotTrial] = {}
        self._folders: dict[Hashable, Path] = {}
        #: Trials of this run by node id, in an xdist controller; and how many workers there are.
        self._known: dict[str, tuple[Run, TrialSpec, TrialPaths]] = {}
        self._workers: set[str] = set()
        self._ticker: threading.Thread | None = None
        self._stop = threading.Event()

    # What happens, on any thread

    def trial_started(self, trial: SlotTrial, file: Path, name: str, cell: CellName) -> None:
        """A slot is about to start a trial."""
        with self._lock:
            if self._region is None:
                return
            self._trials[file] = trial
            self._add(file, name, cell, trial.place, trial.folder)

    def _add(self, key: Hashable, name: str, cell: CellName | None, place: str, folder: Path | None) -> None:
        if folder is not None:
            self._folders[key] = folder
        self._state.running[key] = RunningTrial(name, cell, place, time.monotonic())
        if self._ticker is None:
            self._stop = threading.Event()
            arguments = (self._stop,)
            self._ticker = threading.Thread(target=self._tick, args=arguments, name="aorta-live-view", daemon=True)
            self._ticker.start()

    def trial_finished(self, facts: TrialFacts, file: Path, cell: CellName) -> None:
        """The result of a trial has been written."""
        with self._lock:
            self._state.finished(file, cell, facts.wall_sec, facts.outcome)
            self._forget(file)

    def _forget(self, key: Hashable) -> None:
        self._trials.pop(key, None)
        self._folders.pop(key, None)

    # Hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """See which trials there will be."""
        from pytest_aorta.plugin.trial_item import TrialItem

        run = current_run(self._config)
        self._state.begun = time.monotonic()
        if run is not None and not is_controller(self._config):
            self._state.expect(
                (item.nodeid, _cell_of(item.trial_run, item.spec) if isinstance(item, TrialItem) else None)
                for item in session.items
                if isinstance(item, TrialItem) or "aorta_trial" in getattr(item, "fixturenames", ())
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """In a controller: see which trials there will be, as the first worker has found them."""
        with self._lock:
            self._workers.add(node.gateway.id)
            self._state.slots = len(self._workers)
        run = current_run(self._config)
        if run is None or self._known:
            return
        self._known = _trials_of(run, ids)
        with self._lock:
            self._state.expect((nodeid, _cell_of(its, spec)) for nodeid, (its, spec, _) in self._known.items())

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """In a controller, a trial begins with its item. Elsewhere, a test may fork if nothing runs beside it."""
        run = current_run(self._config)
        if run is None:
            return
        if not is_controller(self._config):
            held = any(each.held_by for each in current_runs(self._config))
            self._state.slots = 1 if held else run.selection.resources.total_slots
            with self._lock:
                beside = self._state.running or self._state.expects(nodeid)
            if not beside:
                self._end_ticker()
        elif nodeid in self._known:
            its, spec, paths = self._known[nodeid]
            with self._lock:
                folder = paths.folder_in(its.results)
                self._add(paths.file_in(its.results), its.shown_name(spec), _cell_of(its, spec), "", folder)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """See on which worker a trial runs, and that an item did not run one."""
        node = getattr(report, "node", None)
        with self._lock:
            if node is not None and report.when == "setup" and report.nodeid in self._known:
                its, _, paths = self._known[report.nodeid]
                trial = self._state.running.get(paths.file_in(its.results))
                if trial is not None:
                    trial.place = node.gateway.id
            if report.when == "teardown" or (report.when == "setup" and report.skipped):
                self._state.item_over(report.nodeid, ran=report.when == "teardown")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        """The worker of an item has died."""
        if crashitem in self._known:
            with self._lock:
                self._state.item_over(crashitem, ran=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_enter_pdb(self) -> None:
        """Leave the terminal to the debugger, for good."""
        self.close()

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Leave nothing behind."""
        self.close()

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self) -> None:
        """Leave nothing behind."""
        self.close()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """The end of the run is pytest's."""
        self.close()
        return (yield)

    def pytest_unconfigure(self) -> None:
        """Also of a session that did not finish."""
        self.close()

    def close(self) -> None:
        """Erase the view, for good."""
        with self._lock:
            region, self._region = self._region, None
        self._end_ticker()
        if region is not None:
            region.close()
            set_terminal_file(self._config, self._file)

    # The thread

    def _end_ticker(self) -> None:
        with self._lock:
            ticker, self._ticker = self._ticker, None
            self._stop.set()
            self._look_soon.set()
        if ticker is not None:
            ticker.join(1.0)  # a terminal may be stopped (Ctrl-S)
        if self._region is not None:
            self._region.show(())

    def _tick(self, stop: threading.Event) -> None:
        idle = 0
        while not stop.wait(_PAUSE):
            self._look_soon.wait(_INTERVAL)
            self._look_soon.clear()
            region = self._region
            if region is None:
                return
            idle = 0 if self._look() else idle + 1
            with self._lock:
                if idle > _IDLE_LOOKS and not self._state.running:
                    self._ticker = None
                    stop.set()
                lines = [] if stop.is_set() else live_lines(self._state, time.monotonic(), *region.size())
            region.show([self._coloured(line) for line in lines])

    def _look(self) -> bool:
        """See what has ended, and how far the others are; whether any trial runs."""
        with self._lock:
            for key, trial in list(self._trials.items()):
                if trial.is_over():
                    self._state.ended(key)
                    self._forget(key)
            folders = {key: self._folders[key] for key in self._state.running if key in self._folders}
        found = {key: last_step(folder) for key, folder in folders.items()}
        now = time.monotonic()
        with self._lock:
            for key, step in found.items():
                if step is not None and key in self._state.running:
                    self._state.running[key].reached(*step, now)
            return bool(self._state.running)

    def _coloured(self, line: LiveLine) -> str:
        if self._colours is None or line.colour is None:
            return line.text
        return self._colours(line.text, **{line.colour: True})


def last_step(folder: Path) -> tuple[int, int | None] | None:
    """Step and total that a trial, or its rank 0, has reported last, by its artifacts folder; ``None`` without one."""
    from pytest_aorta.launch.child.attempt_files import attempt_folder, last_attempt
    from pytest_aorta.trials.steps import read_steps, step_file

    found = read_steps(step_file(folder)) or read_steps(step_file(attempt_folder(folder, last_attempt(folder))))
    return None if found is None else (found["step"], found["total"])


def _cell_of(run: Run, spec: TrialSpec) -> CellName:
    return run.shown_cell(spec.workload.name, spec.cell)


def _trials_of(run: Run, ids: Sequence[str]) -> dict[str, tuple[Run, TrialSpec, TrialPaths]]:
    """The trials among the items of an xdist worker, by node id."""
    from pytest_aorta.plugin.collection import ROOT, plans_of

    found = {replay.nodeid: (run, replay.spec, replay.paths) for replay in run.replays}
    given = {(run.config.invocation_params.dir / text.partition("::")[0]).absolute() for text in run.config.args}
    for base in {nodeid.rpartition("::")[0] for nodeid in ids if nodeid.endswith("]") and ".toml::" not in nodeid}:
        if base == ROOT or run.config.rootpath / base in given:  # others are not read for workloads
            for plan in plans_of(run, base):
                found |= {f"{base}::{spec.item_name}": (run, spec, plan.paths(spec)) for spec in plan.trials}
    for action in {nodeid.partition("[")[0] for nodeid in ids if ".toml::" in nodeid}:
        from pytest_aorta.plugin.recipes.runs import action_run_of_item

        action_run = action_run_of_item(run.config, f"{action}[]")
        if action_run is not None and action_run.recipe_trials is not None:
            base, plan = action.rpartition("::")[0], action_run.plan
            trials = action_run.recipe_trials()
            found |= {f"{base}::{name}": (action_run, spec, plan.paths(spec)) for name, spec in trials.items()}
    return {nodeid: found[nodeid] for nodeid in ids if nodeid in found}
