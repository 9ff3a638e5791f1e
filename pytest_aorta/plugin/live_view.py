"""The live view: lines below pytest's own show which trials run, their steps, counts of outcomes, and times.

It lives in the process that owns the reports. It sees trials start through the ``Runner``, on the threads of
slots; in an xdist controller, through the reports of workers. Steps come from the file to which every trial and rank
writes its last step (``trials.steps``); a trial on another host has no such file here until it is over.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_aorta.common.texts import one_line
from pytest_aorta.plugin import is_controller
from pytest_aorta.plugin.compat import set_terminal_file, terminal_file
from pytest_aorta.plugin.run import CellName, current_run, trial_of_test
from pytest_aorta.plugin.trial_item import TrialItem
from pytest_aorta.triage.facts import COUNTED, FAILURES, OUTCOMES, Outcome

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import RenderableType
    from rich.live import Live
    from rich.progress import TaskID

    from pytest_aorta.launch.job import TrialJob
    from pytest_aorta.plugin.run import SessionRun
    from pytest_aorta.triage.facts import TrialFacts
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths

#: Most lines of the view, which also leaves half of the terminal free, and most letters of a trial's name.
_MOST_LINES, _MOST_LETTERS = 20, 46


def wanted_file(config: pytest.Config, environ: Mapping[str, str]) -> TextIO | None:
    """The terminal that pytest writes to, if a live view is to be shown on it."""
    file = terminal_file(config)
    if file is None or not file.isatty() or config.get_verbosity() < 0:
        return None
    # Some CI services give a terminal to what they run, and keep all that it writes in a log.
    if environ.get("TERM", "dumb") == "dumb" or environ.get("CI") or environ.get("BUILD_NUMBER"):
        return None
    # What tests print would come in between, and a debugger needs the terminal for itself.
    shares = config.getoption("capture", "no") in ("no", "tee-sys")
    return None if shares or any(config.getoption(name, False) for name in ("usepdb", "trace")) else file


class TrialLines:
    """The lines of the view: the run, its trials, and the cells that fail. Thread-safe.

    ``most``: limit of a search, which replaces the number of trials and the time left; ``None`` for a plan.
    """

    def __init__(self, most: int | None = None) -> None:
        from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Column

        line = Column(no_wrap=True)

        def text(template: str, style: str = "none") -> TextColumn:
            return TextColumn(template, style, markup=False, table_column=line)

        of_all = "/{task.total:.0f} done" if most is None else f" trials, {most:,} at most"
        done = text(f"aorta: {{task.completed:.0f}}{of_all}{{task.description}}")
        remaining = (text("eta"), TimeRemainingColumn(table_column=line)) if most is None else ()
        times = *remaining, text("elapsed"), TimeElapsedColumn(line)
        self._run = Progress(done, *times, speed_estimate_period=float("inf"))  # its only task has trials as steps
        self._run.add_task("", total=0)
        columns = text("  {task.fields[place]} "), text("{task.description} "), TimeElapsedColumn(line)
        self._trials = Progress(*columns, text(" {task.fields[step]}"))
        self._cells = Progress(text("  {task.description}: {task.completed:.0f} of {task.total:.0f} failed", "red"))
        self.running: dict[Hashable, TaskID] = {}
        self._outcomes: Counter[Outcome] = Counter()
        self._of_cells: dict[CellName, TaskID] = {}
        #: Node ids of the items whose trial has no result yet.
        self.expected: set[str] = set()
        self._lock = threading.RLock()

    def _change(self, *, done: int = 0, trials: int = 0) -> None:
        (run,) = self._run.tasks
        run.total = max(run.completed + done, (run.total or 0) + trials)  # Progress.update() would forget the speed
        self._run.advance(run.id, done)
        run.finished_time = None

    def expect(self, nodeids: Iterable[str]) -> None:
        with self._lock:
            if not self.expected:
                self._run.reset(self._run.task_ids[0])  # time and speed count from here
            before = len(self.expected)
            self.expected.update(nodeids)
            self._change(trials=len(self.expected) - before)

    def item_over(self, nodeid: str, *, ran: bool) -> None:
        """An item is over; unless it ``ran``, it has no trial."""
        with self._lock:
            if nodeid in self.expected:
                self.expected.discard(nodeid)
                self._change(trials=0 if ran else -1)

    def add(self, key: Hashable, name: str, place: str, folder: Path, is_over: Callable[[], bool]) -> None:
        """A trial starts. ``place``: its slot, host or xdist worker; ``folder``: where it writes its steps."""
        name = one_line(name)
        name = name if len(name) <= _MOST_LETTERS else f"...{name[3 - _MOST_LETTERS :]}"
        fields: dict[str, Any] = {"place": one_line(place)[:20], "step": "", "folder": folder, "is_over": is_over}
        with self._lock:
            self.remove(key)
            self.running[key] = self._trials.add_task(name, total=None, **fields)

    def remove(self, key: Hashable) -> None:
        with self._lock:
            if key in self.running:
                self._trials.remove_task(self.running.pop(key))

    def set_place(self, key: Hashable, place: str) -> None:
        with self._lock:
            if key in self.running:
                self._trials.update(self.running[key], place=place)

    def finish(self, key: Hashable, cell: CellName, outcome: Outcome) -> None:
        with self._lock:
            self.remove(key)
            self._outcomes[outcome] += 1
            self._change(done=1)
            failed = sum(self._outcomes[name] for name in FAILURES)
            others = [
                f", {self._outcomes[name]} {name}" for name in OUTCOMES if name not in COUNTED and self._outcomes[name]
            ]
            counts = "".join([f", {failed} failed" if failed else "", *others])
            self._run.update(self._run.task_ids[0], description=counts)
            if cell not in self._of_cells:
                self._of_cells[cell] = self._cells.add_task(one_line(" ".join(cell)), total=0, visible=False)
            (task,) = (task for task in self._cells.tasks if task.id == self._of_cells[cell])
            bad = task.completed + (outcome in FAILURES)
            self._cells.update(task.id, completed=bad, total=(task.total or 0) + (outcome in COUNTED), visible=bad > 0)

    def draw(self, height: int) -> list[RenderableType]:
        """The lines in a terminal with so many lines. Reads the steps, and removes trials that are over."""
        from rich.text import Text

        with self._lock:
            tasks = {task.id: task for task in self._trials.tasks}
            trials = {key: tasks[number] for key, number in self.running.items()}
        for key, trial in trials.items():
            if trial.fields["is_over"]():
                self.remove(key)
            elif (step := last_step(trial.fields["folder"])) is not None:
                trial.fields["step"] = f"step {step[0]}" + ("" if step[1] is None else f"/{step[1]}")
        room = min(_MOST_LINES, height // 2) - 1
        running = sorted(self._trials.tasks, key=lambda it: (len(it.fields["place"]), it.fields["place"], it.id))
        visible = running if len(running) <= room else running[: max(0, room - 1)]
        others = Text(f"  and {len(running) - len(visible)} more", no_wrap=True, overflow="crop")
        more = [others] if len(visible) < len(running) and room else []
        failing = [task for task in self._cells.tasks if task.visible][: max(0, room - len(visible) - len(more))]
        trials_table, cells_table = self._trials.make_tasks_table(visible), self._cells.make_tasks_table(failing)
        lines: list[Any] = [self._run, *[trials_table][: len(visible)], *more, *[cells_table][: len(failing)]]
        return lines if room >= 0 else []


def last_step(folder: Path) -> tuple[int, int | None] | None:
    from pytest_aorta.launch.child.rank_files import attempt_folder, last_attempt
    from pytest_aorta.trials.steps import read_steps, step_file

    step = read_steps(step_file(folder)) or read_steps(step_file(attempt_folder(folder, last_attempt(folder))))
    return None if step is None else (step["step"], step["total"])


class LinesBelow:
    """pytest's file, with lines below its last one, which come and go without a trace. Thread-safe.

    pytest writes a line dot by dot. While lines are shown below it, rich draws this line as well, as its first one.
    """

    def __init__(self, file: TextIO, draw: Callable[[int], Sequence[RenderableType]], has_colours: bool) -> None:
        from rich.console import Console

        self._file, self._draw = file, draw
        # Capture redirects the file's own descriptor while tests run.
        self._terminal = os.fdopen(os.dup(file.fileno()), "w", encoding=file.encoding or "utf-8", errors="replace")
        colours: Any = "standard" if has_colours else None
        self._console = Console(file=self._terminal, force_terminal=True, color_system=colours, highlight=False)
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._line = ""

    def _lines(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        size = self._console.size = os.get_terminal_size(self._terminal.fileno())
        return Group(Text.from_ansi(self._line, no_wrap=True, overflow="crop", end=""), "", *self._draw(size.lines))

    def show(self) -> None:
        """Show the lines, and draw them again several times per second, or now."""
        from rich.live import Live

        with self._lock, contextlib.suppress(OSError, ValueError):  # a terminal that has gone is no reason to fail
            if self._live is None:
                options: dict[str, Any] = {"redirect_stdout": False, "redirect_stderr": False, "transient": True}
                self._live = Live(console=self._console, get_renderable=self._lines, refresh_per_second=5, **options)
                self._file.flush()
                self._terminal.write("\r\x1b[K")
                self._live.start()
            self._live.refresh()

    def hide(self) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            live, self._live = self._live, None
            if live is not None:
                live.stop()
                self._terminal.write(self._line)
                self._terminal.flush()

    def write(self, text: str) -> int:
        with self._lock, contextlib.suppress(OSError, ValueError):
            if os.path.sameopenfile(self._file.fileno(), self._terminal.fileno()):  # else tests are captured
                complete, newline, self._line = (self._line + text).rpartition("\n")
                if self._live is not None:
                    if newline:
                        from rich.segment import Segment, Segments

                        self._live.console.print(Segments([Segment(complete + newline)]), soft_wrap=True, end="")
                    return len(text)
                self._line = self._line.rpartition("\r")[2]
        return self._file.write(text)

    def flush(self) -> None:
        if self._live is None:
            self._file.flush()

    def close(self) -> None:
        self.hide()
        with contextlib.suppress(OSError):
            self._terminal.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class LiveView:
    """Hooks that follow the trials of a run; ``find`` gives the trial of an item by its node id."""

    def __init__(
        self,
        config: pytest.Config,
        file: TextIO,
        find: Callable[[str], tuple[SessionRun, TrialSpec, TrialPaths] | None],
    ) -> None:
        self._config, self._file, self._find = config, file, find
        run = current_run(config)
        searches = run is not None and run.selection.searches
        self._lines = TrialLines(run.selection.max_trials if run is not None and searches else None)
        self._below: LinesBelow | None = LinesBelow(file, self._lines.draw, config.get_terminal_writer().hasmarkup)
        set_terminal_file(config, cast("TextIO", self._below))
        #: In an xdist controller: what runs the trial of an item, the trial, and its paths, by node id.
        self._known: dict[str, tuple[SessionRun, TrialSpec, TrialPaths]] = {}

    def trial_started(self, trial: TrialJob, file: Path, name: str, cell: CellName) -> None:
        self._lines.add(file, name, trial.place, trial.folder, trial.is_over)
        if (below := self._below) is not None:
            below.show()

    def trial_ended(self, file: Path) -> None:
        """The trial of a test is over: the terminal may be the test's now, or a debugger's."""
        self._lines.remove(file)
        self._hide_if_quiet()

    def _hide_if_quiet(self) -> None:
        if not self._lines.running and self._below is not None:
            self._below.hide()

    def trial_finished(self, facts: TrialFacts, file: Path, cell: CellName) -> None:
        self._lines.finish(file, cell, facts.outcome)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        if current_run(self._config) is not None and not is_controller(self._config):
            trials = (it for it in session.items if isinstance(it, TrialItem) or trial_of_test(it) is not None)
            self._lines.expect(item.nodeid for item in trials)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """In a controller: expect the trials that the first worker has collected."""
        if current_run(self._config) is not None and not self._known:
            trials = {nodeid: self._find(nodeid) for nodeid in ids}
            self._known = {nodeid: trial for nodeid, trial in trials.items() if trial is not None}
            self._lines.expect(self._known)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """In a controller, a trial starts with its item. Elsewhere, a test may fork if nothing runs beside it."""
        if nodeid in self._known:
            run, spec, paths = self._known[nodeid]
            file, folder = paths.file_in(run.results), paths.folder_in(run.results)
            self._lines.add(file, run.shown_name(spec), "", folder, lambda: False)
            if (below := self._below) is not None:
                below.show()
        elif not is_controller(self._config) and nodeid not in self._lines.expected:
            self._hide_if_quiet()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """See on which worker a trial runs, and that an item did not run one."""
        node = getattr(report, "node", None)
        if node is not None and report.when == "setup" and report.nodeid in self._known:
            run, _, paths = self._known[report.nodeid]
            self._lines.set_place(paths.file_in(run.results), node.gateway.id)
        if report.when == "teardown" or (report.when == "setup" and report.skipped):
            self._lines.item_over(report.nodeid, ran=report.when == "teardown")

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
        below, self._below = self._below, None
        if below is not None:
            below.close()
            set_terminal_file(self._config, self._file)
