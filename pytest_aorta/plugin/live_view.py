"""The live view: while trials run on a terminal, lines below pytest's own that say how far they are.

In the process that owns the reports. It sees trials start through the ``TrialRunner``, on the threads of slots; in an
xdist controller, through the reports of the workers. Steps are read from the file that every trial and rank writes its
last step to (``trials.steps``), so the trials send nothing more than without it; those of other hosts have no such file
here until they are over. Times are seconds of ``time.monotonic()``.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_aorta.common.texts import one_line
from pytest_aorta.plugin import is_controller
from pytest_aorta.plugin.compat import set_terminal_file, terminal_file
from pytest_aorta.plugin.run import CellName, current_run, current_runs, trial_of_test
from pytest_aorta.plugin.trial_item import TrialItem
from pytest_aorta.triage.facts import COUNTED, FAILURES, OUTCOMES, Outcome

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import RenderableType
    from rich.live import Live

    from pytest_aorta.launch.engine import SlotTrial
    from pytest_aorta.plugin.run import Run
    from pytest_aorta.triage.facts import TrialFacts
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths

#: What runs a trial, the trial, and where its file lies.
FoundTrial = tuple["Run", "TrialSpec", "TrialPaths"]

#: Seconds between two looks at what runs.
_INTERVAL = 0.2

#: Lines of the view at most, and of the terminal, one half.
_MOST_LINES = 20

#: Columns of a trial's line beside its name.
_BESIDE_NAME = 34

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


@dataclass
class RunningTrial:
    name: str
    #: ``None`` where a test chooses the workload when it runs.
    cell: CellName | None
    #: Its slot, host or xdist worker; empty where that is not known.
    place: str
    begun: float
    #: Of its artifacts, where it writes its steps; the last one, and of how many.
    folder: Path | None = None
    step: int | None = None
    total: int | None = None
    #: In an xdist controller, only its report says so.
    is_over: Callable[[], bool] = lambda: False


@dataclass
class CellProgress:
    seconds: list[float] = field(default_factory=list)
    outcomes: Counter[Outcome] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        return sum(self.outcomes[name] for name in FAILURES)

    @property
    def counted(self) -> int:
        """Trials that say something of the workload."""
        return sum(self.outcomes[name] for name in COUNTED)


class LiveState:
    """Counts of a run; ``slots`` trials run at a time. Not thread-safe."""

    def __init__(self, begun: float, slots: int = 1) -> None:
        self.begun, self.slots = begun, slots
        self.running: dict[Hashable, RunningTrial] = {}
        self.cells: dict[CellName, CellProgress] = {}
        #: Trials with a result; and those that were or will be run, as far as known.
        self.done = 0
        self.total = 0
        #: Cells of the items whose trial has no result yet, by node id.
        self.expected: dict[str, CellName | None] = {}

    def expect(self, items: Iterable[tuple[str, CellName | None]]) -> None:
        self.expected.update(items)
        self.total = self.done + len(self.expected)

    def item_over(self, nodeid: str, *, ran: bool) -> None:
        """An item is over; unless it ``ran``, it has no trial."""
        if nodeid in self.expected:
            del self.expected[nodeid]
            self.total -= not ran

    def finished(self, key: Hashable, cell: CellName, seconds: float | None, outcome: Outcome) -> None:
        """The result of a trial, which took ``seconds`` if that was measured."""
        self.running.pop(key, None)
        self.done += 1
        progress = self.cells.setdefault(cell, CellProgress())
        progress.outcomes[outcome] += 1
        if seconds is not None:
            progress.seconds.append(seconds)

    def left(self, now: float) -> float | None:
        """Seconds until the run will be over: the median of each cell for all its trials to come, divided by the slots.

        ``None`` while no trial has finished.
        """
        usual: dict[CellName | None, float] = {
            cell: statistics.median(it.seconds) for cell, it in self.cells.items() if it.seconds
        }
        if not usual or not self.expected:
            return None
        other = statistics.mean(usual.values())
        to_come = sum(usual.get(cell, other) for cell in self.expected.values())
        over = sum(min(now - trial.begun, usual.get(trial.cell, other)) for trial in self.running.values())
        return max(0.0, to_come - over) / max(1, self.slots)


def live_lines(state: LiveState, now: float, width: int, height: int) -> list[RenderableType]:
    """The run in one line, its trials, and the cells that fail; half of the terminal at most."""
    from rich.table import Table

    room = min(_MOST_LINES, height // 2)
    if room < 1:
        return []
    outcomes: Counter[Outcome] = sum((each.outcomes for each in state.cells.values()), Counter())
    failed, left = sum(outcomes[name] for name in FAILURES), state.left(now)
    parts = [
        f"{state.done}/{max(state.done, state.total)} done",
        f"{failed} failed" if failed else "",
        *(f"{outcomes[name]} {name}" for name in OUTCOMES if name not in COUNTED and outcomes[name]),
        "" if left is None else f"eta {clock(left)}",
        f"elapsed {clock(now - state.begun)}",
    ]
    head = _text("aorta: " + ", ".join(filter(None, parts)), "red" if failed else "")
    trials = sorted(state.running.values(), key=lambda trial: (len(trial.place), trial.place, trial.begun))
    shown = trials if len(trials) < room else trials[: max(0, room - 2)]
    grid = Table.grid(*[""] * 4, padding=(0, 2, 0, 0))
    for column in grid.columns:
        column.no_wrap = True
    for trial in shown:
        step = "" if trial.step is None else f"step {trial.step}" + ("" if trial.total is None else f"/{trial.total}")
        place, name = f"  {one_line(trial.place)[:20]}" if trial.place else "", one_line(trial.name)
        if len(name) > (most := max(12, width - _BESIDE_NAME)):
            name = f"...{name[len(name) - most + 3 :]}"
        grid.add_row(*map(_text, (place, name, clock(now - trial.begun), step)))
    more = [_text(f"  and {len(trials) - len(shown)} more")] if len(shown) < len(trials) and room > 1 else []
    failing = [(name, each) for name, each in state.cells.items() if each.failed]
    failing.sort(key=lambda found: found[1].failed / found[1].counted, reverse=True)
    several = len({workload for workload, _ in state.cells}) > 1
    below = [
        _text(f"  {one_line(f'{workload} {cell}' if several else cell)}: {it.failed} of {it.counted} failed", "red")
        for (workload, cell), it in failing[: max(0, room - 1 - len(shown) - len(more))]
    ]
    return [head, *([grid] if shown else []), *more, *below]


def _text(text: str, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(text, style=style, no_wrap=True, overflow="crop")


def clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class LinesBelow:
    """pytest's file, and lines below what is written to it, which come and go without a trace. Thread-safe.

    pytest writes its lines dot by dot: while others are shown below it, the last one is the first of rich's.
    """

    def __init__(self, file: TextIO, draw: Callable[[int, int], Sequence[RenderableType]], has_colours: bool) -> None:
        self._file = file
        self._draw = draw
        self._has_colours = has_colours
        # Capture redirects the file's own descriptor while tests run.
        self._terminal = os.fdopen(os.dup(file.fileno()), "w", encoding=file.encoding or "utf-8", errors="replace")
        self._place = _place(self._terminal)
        self._lock = threading.RLock()
        self._live: Live | None = None
        #: What is on pytest's last line.
        self._line = ""

    def show(self) -> None:
        from rich.console import Console
        from rich.live import Live

        with self._lock, contextlib.suppress(OSError, ValueError):  # a terminal that has gone is no reason to fail
            size = os.get_terminal_size(self._terminal.fileno())
            if self._live is None:
                console = Console(
                    file=self._terminal,
                    force_terminal=True,
                    color_system="standard" if self._has_colours else None,
                    highlight=False,
                )
                console.size = size
                self._live = Live(
                    console=console,
                    get_renderable=self._renderable,
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                self._file.flush()
                self._terminal.write("\r\x1b[K")
                self._live.start()
            self._live.console.size = size
            self._live.refresh()

    def hide(self) -> None:
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                with contextlib.suppress(OSError, ValueError):
                    live.stop()
                    self._terminal.write(self._line)
                    self._terminal.flush()

    def close(self) -> None:
        self.hide()
        with contextlib.suppress(OSError):
            self._terminal.close()

    def _renderable(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        line = Text.from_ansi(self._line, no_wrap=True, overflow="crop") if self._line else Text("")
        size = os.get_terminal_size(self._terminal.fileno())
        return Group(line, *self._draw(size.columns, size.lines))

    def write(self, text: str) -> int:
        with self._lock:
            if self._live is not None and self._is_reached():
                complete, newline, self._line = (self._line + text).rpartition("\n")
                if newline:
                    from rich.segment import Segment, Segments

                    with contextlib.suppress(OSError, ValueError):
                        self._live.console.print(Segments([Segment(complete + newline)]), soft_wrap=True, end="")
                        self._live.refresh()
                return len(text)
            if self._is_reached():
                self._line = (self._line + text).rpartition("\n")[2].rpartition("\r")[2]
            return self._file.write(text)

    def flush(self) -> None:
        if self._live is None:
            self._file.flush()

    def _is_reached(self) -> bool:
        try:
            return _place(self._file) == self._place
        except (OSError, ValueError):
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _place(file: TextIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_rdev, found.st_ino


class LiveView:
    """Hooks, and the thread that draws; ``find`` gives the trial of an item by its node id."""

    def __init__(self, config: pytest.Config, file: TextIO, find: Callable[[str], FoundTrial | None]) -> None:
        self._config = config
        self._find = find
        self._file = file
        self._below: LinesBelow | None = LinesBelow(file, self._lines, config.get_terminal_writer().hasmarkup)
        set_terminal_file(config, cast("TextIO", self._below))
        #: Of all below; held for moments only, as slots wait for it, and never while something is drawn.
        self._lock = threading.Lock()
        self._state = LiveState(time.monotonic())
        #: Trials of this run by node id, in an xdist controller; and its workers.
        self._known: dict[str, FoundTrial] = {}
        self._workers: set[str] = set()
        self._ticker: threading.Thread | None = None
        self._stop = threading.Event()

    def trial_started(self, trial: SlotTrial, file: Path, name: str, cell: CellName) -> None:
        running = RunningTrial(name, cell, trial.place, time.monotonic(), trial.folder, is_over=trial.is_over)
        with self._lock:
            self._add(file, running)

    def _add(self, file: Path, trial: RunningTrial) -> None:
        self._state.running[file] = trial
        if self._ticker is None and self._below is not None:
            self._stop = threading.Event()
            arguments = (self._stop, self._below)
            self._ticker = threading.Thread(target=self._draw, args=arguments, name="aorta-live-view", daemon=True)
            self._ticker.start()

    def trial_ended(self, file: Path) -> None:
        """The trial of a test is over: the terminal may be the test's now, or a debugger's."""
        with self._lock:
            self._state.running.pop(file, None)
            is_quiet = not self._state.running
        if is_quiet:
            self._end_ticker()

    def trial_finished(self, facts: TrialFacts, file: Path, cell: CellName) -> None:
        with self._lock:
            self._state.finished(file, cell, facts.wall_sec, facts.outcome)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """See which trials there will be."""
        self._state.begun = time.monotonic()
        if current_run(self._config) is not None and not is_controller(self._config):
            self._state.expect(
                (item.nodeid, _cell_of(item.trial_run, item.spec) if isinstance(item, TrialItem) else None)
                for item in session.items
                if isinstance(item, TrialItem) or trial_of_test(item) is not None
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """In a controller: see which trials there will be, as the first worker has found them."""
        with self._lock:
            self._workers.add(node.gateway.id)
            self._state.slots = len(self._workers)
        if current_run(self._config) is None or self._known:
            return
        self._known = {nodeid: found for nodeid in ids if (found := self._find(nodeid)) is not None}
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
                is_quiet = not self._state.running and nodeid not in self._state.expected
            if is_quiet:
                self._end_ticker()
        elif nodeid in self._known:
            its, spec, paths = self._known[nodeid]
            trial = RunningTrial(its.shown_name(spec), _cell_of(its, spec), "", time.monotonic())
            trial.folder = paths.folder_in(its.results)
            with self._lock:
                self._add(paths.file_in(its.results), trial)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """See on which worker a trial runs, and that an item did not run one."""
        node = getattr(report, "node", None)
        with self._lock:
            if node is not None and report.when == "setup" and report.nodeid in self._known:
                its, _, paths = self._known[report.nodeid]
                if (trial := self._state.running.get(paths.file_in(its.results))) is not None:
                    trial.place = node.gateway.id
            if report.when == "teardown" or (report.when == "setup" and report.skipped):
                self._state.item_over(report.nodeid, ran=report.when == "teardown")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        self.close()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_enter_pdb(self) -> None:
        """Leave the terminal to the debugger, or to pytest's last words, for good."""
        self.close()

    pytest_keyboard_interrupt = pytest_internalerror = pytest_unconfigure = pytest_enter_pdb

    def close(self) -> None:
        with self._lock:
            below, self._below = self._below, None
        self._end_ticker()
        if below is not None:
            below.close()
            set_terminal_file(self._config, self._file)

    def _end_ticker(self) -> None:
        with self._lock:
            ticker, self._ticker = self._ticker, None
            self._stop.set()
        if ticker is not None:
            ticker.join(1.0)  # a terminal may be stopped (Ctrl-S)
        if self._below is not None:
            self._below.hide()

    def _draw(self, stop: threading.Event, below: LinesBelow) -> None:
        while not stop.wait(_INTERVAL):
            with self._lock:
                for key in [key for key, trial in self._state.running.items() if trial.is_over()]:
                    del self._state.running[key]
                running = list(self._state.running.values())
            found = [None if trial.folder is None else last_step(trial.folder) for trial in running]
            with self._lock:
                for trial, step in zip(running, found, strict=True):
                    trial.step, trial.total = step or (None, None)
            below.show()

    def _lines(self, width: int, height: int) -> Sequence[RenderableType]:
        with self._lock:
            return live_lines(self._state, time.monotonic(), width, height)


def last_step(folder: Path) -> tuple[int, int | None] | None:
    from pytest_aorta.launch.child.rank_files import attempt_folder, last_attempt
    from pytest_aorta.trials.steps import read_steps, step_file

    found = read_steps(step_file(folder)) or read_steps(step_file(attempt_folder(folder, last_attempt(folder))))
    return None if found is None else (found["step"], found["total"])


def _cell_of(run: Run, spec: TrialSpec) -> CellName:
    return run.shown_cell(spec.workload.name, spec.cell)
