"""From reports to trial files, matrix, gates and report."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from pytest_aorta.common.texts import printable, utc_now
from pytest_aorta.launch.launch_mode import is_command
from pytest_aorta.plugin.folded_summary import AlikeFailures
from pytest_aorta.plugin.run import FinishedTrial, trials_in
from pytest_aorta.plugin.stopping import cell_of
from pytest_aorta.plugin.summary import Summary, duration_text, understood
from pytest_aorta.registry import one_line_of
from pytest_aorta.settings import RequestError
from pytest_aorta.triage.columns import counted
from pytest_aorta.triage.facts import CellKey, facts_of
from pytest_aorta.triage.matrix import MATRIX_MD, EarlierMatrix, RunState, markdown, matrix_json
from pytest_aorta.triage.reading import MATRIX_JSON
from pytest_aorta.triage.verdicts import Decisions, Triage
from pytest_aorta.workspace.atomic import remove_abandoned, write_json, write_text
from pytest_aorta.workspace.paths import HISTORY, TrialPaths

if TYPE_CHECKING:
    from pytest_aorta.plan import Plan
    from pytest_aorta.plugin.replays import Again
    from pytest_aorta.plugin.run import Run
    from pytest_aorta.triage import TriageSettings
    from pytest_aorta.triage.facts import Outcome, TrialFacts
    from pytest_aorta.triage.gates import Gate, GateResult
    from pytest_aorta.triage.verdicts import Table
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.trial_store import TrialStore


class JudgedTrials:
    def __init__(self, gates: Sequence[Gate], triage: Triage, action: str = "", expects_failures: bool = False) -> None:
        self.gates = gates
        self.triage = triage
        self.action = action
        self._expects_failures = expects_failures
        #: How many failed reports the items of trials have, by the ids of the trials.
        self._failed: Counter[tuple[str, str]] = Counter()
        self.results: list[GateResult] = []

    def see(self, report: pytest.TestReport) -> None:
        """Remember a failed report of a trial, which by itself makes the run no failure."""
        properties = dict(report.user_properties)
        if report.failed and report.when != "teardown" and "aorta_trial_id" in properties:
            self._failed[str(properties["aorta_workload"]), str(properties["aorta_trial_id"])] += 1

    @property
    def has_begun(self) -> bool:
        """Whether there are gates, and trials that they are about."""
        return bool(self.gates) and any(cell.trials for cell in self.triage.cells)

    def judge(self) -> int:
        """Judge each gate; how many failed reports are of trials that they judge."""
        from pytest_aorta.triage.gates import judge

        self.results = judge(self.gates, self.triage.table())
        judged: set[Outcome] = {"failed", "timeout"}
        if self._expects_failures:
            judged.add("ok")
        if any(gate.value == "infrastructure" for gate in self.gates):
            judged |= {"infrastructure", "did not run"}
        return sum(
            self._failed[facts.key.workload, facts.trial_id]
            for cell in self.triage.cells
            for facts in cell.finished
            if facts.outcome in judged
        )


def _without(group: JudgedTrials, others: Sequence[JudgedTrials]) -> JudgedTrials:
    taken = {gate.text for other in others for gate in other.gates}
    return JudgedTrials([gate for gate in group.gates if gate.text not in taken], group.triage, group.action)


class Gating:
    """Of one run: all gates together decide."""

    def __init__(self) -> None:
        self._judged: list[JudgedTrials] = []
        self._notes: list[str] = []

    def conclude(self, session: pytest.Session, groups: Sequence[JudgedTrials]) -> None:
        """Set the exit status of a run that has come to its end; any other is left as it is."""
        found = [group for group in groups if group.has_begun]
        if not found:
            return
        found += [rest for group in groups if group not in found and (rest := _without(group, found)).gates]
        stopped = session.shouldfail or session.shouldstop
        if stopped or session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            why = stopped or "it did not come to its end"
            self._notes.append(f"gates are not judged, because the run is incomplete: {why}")
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return
        self._judged = found
        excused = sum(group.judge() for group in found)
        others = session.testsfailed - excused
        if others > 0:
            self._notes.append(f"{counted(others, 'failure')} that no gate judges: not of a trial, or infrastructure")
        elif excused and self.hold:
            self._notes.append(f"exit status 0: the gates judge {counted(excused, 'failed trial')}, and hold")
        succeeds = self.hold and others <= 0
        session.exitstatus = pytest.ExitCode.OK if succeeds else pytest.ExitCode.TESTS_FAILED

    @property
    def hold(self) -> bool:
        """Whether all do."""
        return all(result.holds for group in self._judged for result in group.results)

    def print(self, terminal: pytest.TerminalReporter) -> None:
        """Print what became of each gate; with ``-q`` only of those that do not hold."""
        quiet = terminal.verbosity < 0
        if not (self._judged or self._notes) or (quiet and self.hold and not self._notes):
            return
        terminal.write_sep("=", "gates")
        for group in self._judged:
            of = f"{group.action}: " if group.action else ""
            for result in group.results:
                for problem in result.problems:
                    line = f"does not hold: {of}{result.gate.text}: {problem}"
                    terminal.write_line(printable(line), red=True)
                if result.holds and not quiet:
                    terminal.write_line(printable(f"holds: {of}{result.gate.text}"), green=True)
        for note in self._notes:
            terminal.write_line(printable(note))


#: Shortest time between two writes in seconds; and how many times as long as the last one took.
_SHORTEST, _TIMES = 0.5, 99


class MatrixWriter:
    """matrix.json and matrix.md in the results directory: written again while trials go on, and at the end.

    Args:
        triage: is asked for the table.
        store: of the results.
        folder: where the matrix goes, the results directory or one below it.
        plans: of the run; more may be added.
        clock: seconds.
    """

    def __init__(
        self,
        triage: Triage,
        store: TrialStore,
        folder: Path,
        plans: Sequence[Plan],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._triage = triage
        self._store = store
        self._folder = folder
        self._plans = plans
        self._planned: dict[CellKey, int] = {}
        self._plans_counted = 0
        self._clock = clock
        self._has_written = False
        self._started_at = utc_now()
        self._next = clock() + _SHORTEST
        #: Why the files could not be written, the last time.
        self.error: str | None = None

    def trial_is_over(self) -> None:
        if self._clock() < self._next:
            return
        begun = self._clock()
        table = self._triage.table(running=True)
        if not self._has_written:
            begun = self._clock()  # what the statistics import, the table at the end needs as well
        self._write(table, complete=False)
        ended = self._clock()
        self._next = ended + max(_SHORTEST, _TIMES * (ended - begun))

    def finish(self, table: Table, interrupted: str | None) -> None:
        """Write for the last time; ``interrupted`` is what has ended the run before its time."""
        text = self._write(table, complete=interrupted is None, interrupted=interrupted)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            try:
                with open(summary, "a", encoding="utf-8", errors="replace") as file:
                    file.write(f"\n{text}")
            except OSError as error:
                self.error = f"GITHUB_STEP_SUMMARY: {error}"

    def _write(self, table: Table, *, complete: bool, interrupted: str | None = None) -> str:
        state = RunState(
            plan=", ".join(plan.digest for plan in self._plans) or None,
            planned=self._count_planned(),
            started_at=self._started_at,
            written_at=utc_now(),
            complete=complete,
            interrupted=interrupted,
        )
        text = markdown(table, state)
        try:
            if not self._has_written:
                self._has_written = True
                self._make_room()
            write_text(self._folder / MATRIX_JSON, matrix_json(table, state))
            write_text(self._folder / MATRIX_MD, text)
            self.error = None
        except OSError as error:
            self.error = f"{self._folder / MATRIX_JSON}: {error}"
        return text

    def _make_room(self) -> None:
        """Move the matrix of an earlier run to the history, where this one has moved trials."""
        moved = self._store.results / HISTORY / self._store.stamp
        for name in (MATRIX_JSON, MATRIX_MD):
            for temporary in self._folder.glob(f".{name}.*.tmp"):
                remove_abandoned(temporary)
            file = self._folder / name
            target = moved / file.relative_to(self._store.results)
            if moved.is_dir() and file.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)

    def _count_planned(self) -> dict[CellKey, int]:
        if self._plans_counted != len(self._plans):
            self._plans_counted = len(self._plans)
            self._planned = planned_trials(self._plans)
        return self._planned


def planned_trials(plans: Iterable[Plan]) -> dict[CellKey, int]:
    return Counter(CellKey(spec.workload.name, spec.cell) for plan in plans for spec in plan.trials)


class TrialWriter:
    """The single writer of trial files, in the process that owns the reports."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.store = run.runner.store
        self.summary = Summary(run)
        #: Those of this process, and those of files that only xdist's workers have made.
        self.plans = list(run.runner.plans)
        self.triage = Triage(_settings(run, self.plans))
        self.decisions = None
        if run.selection.stop.ends_cells:
            before = run.stopping.decided_before()
            self.decisions = Decisions(self.triage, run.selection.stop, before)
        self.judged = JudgedTrials(run.selection.gates, self.triage, run.action or "", run.expects_failures)
        #: Lines for the summary, of items that conclude from several trials.
        self.notes: list[str] = []
        #: How many trials were skipped because their cells were decided.
        self.skipped = 0
        #: Trials of the plans by name, by what is before it in their node ids.
        self._specs: dict[str, dict[str, tuple[TrialSpec, TrialPaths]]] = {}
        self._declare(self.plans)
        self.matrix = MatrixWriter(self.triage, self.store, self._folder(), self.plans)
        #: Commands whose first trial is over.
        self._understood: set[str] = set()
        #: As it is shown at the end.
        self.table: Table | None = None
        #: Which items have failed alike.
        self.alike = AlikeFailures()
        #: What could not be written, and why.
        self.errors: list[str] = []

    def _declare(self, plans: Iterable[Plan]) -> None:
        """Cells are shown in the order of the plan, whichever has the first trial."""
        for plan in plans:
            for spec in plan.trials:
                self.triage.declare(cell_of(spec), spec.environment.name, spec.mitigations)

    def _folder(self) -> Path:
        if not self.run.replays:
            return self.store.results
        from pytest_aorta.workspace.paths import REPLAY

        return self.store.results / REPLAY

    def begin(self, nodeid: str) -> None:
        """The item of a trial has begun."""
        found = self.find(nodeid)
        if found is not None:
            spec = found[0]
            self.triage.declare(cell_of(spec), spec.environment.name, spec.mitigations)
            self.triage.begin(cell_of(spec), spec.trial_index)

    def write_report(self, report: pytest.TestReport) -> None:
        """Write the trials that a report brings."""
        if report.when == "teardown":
            self.notes += json.loads(report.aorta["notes"])
        found = trials_in(report.aorta)
        if not found and report.when == "teardown" and not hasattr(report, "node"):
            found = list(self.run.unreported)  # of this process, whose items run one after the other
        for trial in found:
            facts = self.write(trial)
            if "aorta_trial_id" in dict(report.user_properties):  # a test that starts trials fails for its own reasons
                self.alike.add(report.nodeid, facts, self.run.shown_cell(facts.key.workload, facts.key.cell))

    def write(self, trial: FinishedTrial) -> TrialFacts:
        """Write one trial; one that cannot be written is kept elsewhere, and the run goes on."""
        paths = TrialPaths(PurePosixPath(trial.path))
        try:
            self.store.write(paths, trial.result, resumed=trial.resumed)
            self.run.on_record(trial.result)
        except OSError as error:
            self.errors.append(f"{paths.file_in(self.store.results)}: {error}{self._write_elsewhere(trial)}")
        if trial in self.run.unreported:
            self.run.unreported.remove(trial)
        self._say_what_was_understood(trial)
        facts = facts_of(trial.result, trial.path, self.triage.settings.signatures)
        self.summary.add(trial, facts.key)
        if paths.repeat:  # not counted: it has the seeds of the trial, or was run because of how that has ended
            return facts
        self._decide([facts])
        if self.run.watcher is not None:
            cell = self.run.shown_cell(facts.key.workload, facts.key.cell)
            self.run.watcher.trial_finished(facts, paths.file_in(self.store.results), cell)
        self.matrix.trial_is_over()
        return facts

    def _say_what_was_understood(self, trial: FinishedTrial) -> None:
        name, request = trial.result["workload"], trial.result.get("request") or {}
        target = (request.get("workload") or {}).get("target", "")
        if trial.resumed or name in self._understood or not is_command(target) or not trial.result["config"]:
            return
        self._understood.add(name)
        terminal = self.run.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and self.run.config.get_verbosity() >= 0 and self.run.selection.trials > 1:
            terminal.ensure_newline()
            terminal.write_line(understood(trial.result))

    def _decide(self, new: Iterable[TrialFacts] = ()) -> None:
        """Take in trials that are over, in this job and in others, and look which cells need no more."""
        has_stopped = False
        for facts in (*new, *self._of_other_jobs()):
            self.triage.add(facts)
            has_stopped |= self.decisions is not None and self.decisions.update(facts.key)
        if self.decisions is not None and has_stopped:
            stopping = self.run.stopping
            stopping.publish(self.decisions.stopped)
            self.run.prefetcher.withdraw(lambda spec: stopping.decided(cell_of(spec)) is None)

    def _of_other_jobs(self) -> list[TrialFacts]:
        news = list(self.run.others()) if self.run.others is not None else []
        for spec, _ in news:  # also those that still run: what comes after them has to wait
            self.triage.begin(cell_of(spec), spec.trial_index)
        return [facts for _, facts in news if facts is not None]

    def count_skip(self, report: pytest.TestReport) -> None:
        """Count a trial that was not needed."""
        if self.decisions is not None and isinstance(report.longrepr, tuple):
            self.skipped += report.longrepr[2].removeprefix("Skipped: ") in self.decisions.stopped.values()

    def select(self, nodeids: Iterable[str]) -> None:
        """Only the cells of these items have trials in this run, and are compared; in a job, those of all jobs."""
        if self.run.others is not None:
            self._decide()
            return
        found = [self.find(nodeid) for nodeid in nodeids]
        self.triage.keep({cell_of(trial[0]) for trial in found if trial is not None})

    def _write_elsewhere(self, trial: FinishedTrial) -> str:
        path = Path(tempfile.gettempdir()) / f"pytest-aorta-{self.store.stamp}" / trial.path
        try:
            write_json(path, trial.result)
        except OSError:
            return ""
        return f"; kept in {path}"

    def write_lost(self, nodeid: str, why: str) -> tuple[TrialSpec, TrialPaths] | None:
        """Record an item whose process died before it could report; its trial, ``None`` where it is none."""
        found = self.find(nodeid)
        if found is None:
            return None
        from pytest_aorta.launch.record import logs_in, lost_record
        from pytest_aorta.trials.records import Failure

        spec, paths = found
        self.store.make_room(paths)
        logs = logs_in(paths.folder_in(self.store.results))
        record = lost_record(spec, Failure("launch", "signal", why), logs)
        self.write(FinishedTrial(str(paths.file), record.to_dict()))
        return spec, paths

    def find(self, nodeid: str) -> tuple[TrialSpec, TrialPaths] | None:
        from pytest_aorta.plugin.collection import plans_of

        base, _, name = nodeid.rpartition("::")
        if nodeid in self.run.tests:
            return self.run.tests[nodeid]
        if self.run.recipe_trials is not None:
            spec = self.run.recipe_trials().get(name)
            return None if spec is None else (spec, self.run.plan.paths(spec))
        for replay in self.run.replays:
            if replay.nodeid == nodeid:
                return replay.spec, replay.paths
        if base not in self._specs:
            plans = plans_of(self.run, base)
            known = {plan.digest for plan in self.plans}
            new = [plan for plan in plans if plan.digest not in known]
            self.plans += new
            self._declare(new)
            self._specs[base] = {spec.item_name: (spec, plan.paths(spec)) for plan in plans for spec in plan.trials}
        return self._specs[base].get(name)

    def finish(self, unfinished: Iterable[str], stopped: str | None = None) -> None:
        """Write what no report has brought, retire what a complete run no longer holds, and conclude.

        Args:
            unfinished: node ids of items that have begun only.
            stopped: what has ended the run before its time, so that its length may depend on what was seen.
        """
        for trial in list(self.run.unreported):
            self.write(trial)
        for nodeid in unfinished:
            found = self.find(nodeid)
            if found is not None and found[1].file not in self.store.written:
                why = self.run.interrupted or "the run ended before the trial"
                self.write_lost(nodeid, f"interrupted: {why}")
        plans = self.run.runner.plans
        self.store.retire_unplanned({plan.paths(spec) for plan in plans for spec in plan.trials})
        if self.decisions is not None:
            self.run.on_decided({key.cell: why for key, why in self.decisions.stopped.items()})
        self.table = self.triage.table(running=stopped is not None)
        self._run_again(may_run=stopped is None)
        seen, planned = sum(row.cell.total for row in self.table.rows), sum(planned_trials(self.plans).values())
        if self.run.config.getoption("lf", False) and seen < planned:
            only = f"{seen} of {counted(planned, 'trial')}: those that had failed (--lf)"
            text = f"the table has {only}, so that its rates say nothing about how often the workload fails"
            self.table = replace(self.table, warnings=(*self.table.warnings, text))
        if any(row.cell.total for row in self.table.rows):
            self.matrix.finish(self.table, stopped)
        self.summary.pruned = self.store.prune(self.run.selection.history)

    def _run_again(self, *, may_run: bool) -> None:
        """What collectors ask for when all trials are over: replays of those that failed, or of one that differs."""
        selection = self.run.selection
        compares = any(text.partition(":")[0] == "divergence" for text in selection.collect)
        if not (compares or selection.collect_on_failure):
            return
        from pytest_aorta.plugin.replays import Again

        planned = [(spec, spec.workload.name) for plan in self.plans for spec in plan.trials]
        again = Again(self.run, {(name, spec.cell, spec.trial_index): spec for spec, name in planned})
        try:
            if compares:
                self._compare_what_was_computed(again, may_run=may_run)
            else:
                self._replay_failures(again, may_run=may_run)
        finally:
            again.close()

    def _compare_what_was_computed(self, again: Again, *, may_run: bool) -> None:
        """With the collector ``divergence``: which trials differ, and where first."""
        from pytest_aorta.plugin.zoom import Zoom

        zoom = Zoom(again, self.triage)
        problems = []
        try:
            zoom.compare(may_run=may_run)
        except (Exception, KeyboardInterrupt) as error:
            problems.append(f"which trials differ: the comparison has ended early: {one_line_of(error)}")
        assert self.table is not None
        self.table = replace(self.table, divergence=tuple(zoom.found), warnings=(*self.table.warnings, *problems))

    def _replay_failures(self, again: Again, *, may_run: bool) -> None:
        from pytest_aorta.plugin.replays import replay_failures
        from pytest_aorta.triage.observer import Replayed, replay_effects

        replayed: dict[CellKey, list[Replayed]] = {}
        problems = [] if may_run else ["failed trials are not run again: the run has ended early"]
        try:
            for found in replay_failures(again, self.triage) if may_run else ():
                if isinstance(found, str):
                    problems.append(found)
                else:
                    replayed.setdefault(found[0].key, []).append(found)
        except (Exception, KeyboardInterrupt) as error:
            problems.append(f"not all failed trials were run again: {one_line_of(error)}")
        assert self.table is not None
        effects = replay_effects(replayed, self.triage.cells, self.triage.settings.speed_margin)
        self.table = replace(self.table, warnings=(*self.table.warnings, *problems)).observed(effects)

    @property
    def settings_used(self) -> TriageSettings:
        """Of the last table, which is sequential where the run has ended before its time."""
        rows = () if self.table is None else self.table.rows
        methods = {row.comparison.method for row in rows if row.comparison is not None}
        return replace(self.triage.settings, sequential="sequential" in methods)

    def stopping_lines(self) -> Iterator[str]:
        """For each option that may have ended trials, what it has done."""
        selection = self.run.selection
        of = "" if self.run.action is None else f"{self.run.action}: "
        if selection.stop.failures is not None and self.decisions is not None and not selection.stop.decided:
            ended_cells = counted(len(self.decisions.stopped), "cell")
            goal = f"--aorta-stop=failures={selection.stop.failures}"
            yield f"{of}{ended_cells} ended by failures, {counted(self.skipped, 'trial')} saved ({goal})"
        elif self.decisions is not None:
            compared = set(self.triage.baselines().of)
            ended = [why.startswith("dropped") for key, why in self.decisions.decided.items() if key in compared]
            found = f"{ended.count(False)} of {counted(len(compared), 'cell')} decided"
            found += f", {ended.count(True)} dropped" if any(ended) else ""
            stop = selection.stop
            goals = {"first-fix": stop.first_fix, "equivalence": stop.equivalence, "speed": stop.speed}
            goal = next((name for name, is_set in goals.items() if is_set), "decided")
            yield f"{of}{found}, {counted(self.skipped, 'trial')} saved (--aorta-stop={goal})"
        if selection.stop.seconds is not None:
            rounds = max((trials.statistics.total for trials in self.triage.cells), default=0)
            line = f"{of}{counted(rounds, 'round')} within {duration_text(selection.stop.seconds)} (--aorta-stop)"
            if rounds >= selection.trials:
                line += "; there were no more: --aorta-trials gives more"
            yield line

    def print_summary(self, terminal: pytest.TerminalReporter) -> None:
        """Print the table, once the run is over."""
        if self.table is not None:
            errors = [*self.errors, *([self.matrix.error] if self.matrix.error else [])]
            self.summary.print(terminal, self.table, errors)


def _settings(run: Run, plans: Sequence[Plan]) -> TriageSettings:
    settings = run.selection.triage
    added = run.selection.resume and EarlierMatrix(run.results).was_looked_at(planned_trials(plans))
    return replace(settings, sequential=True) if added else settings


def check_report(run: Run) -> None:
    """Refuse, before hours of trials, what would keep their report from being written."""
    if run.selection.report is None:
        return
    from pytest_aorta.triage.report import check_output

    try:
        check_output(run.config.invocation_params.dir / run.selection.report)
    except RequestError as error:
        raise RequestError(f"--aorta-report {run.selection.report}: {error}") from None


def write_run_report(run: Run, output: Path, settings: TriageSettings) -> str:
    """Write the report on all trials in the results directory; why that has failed, empty where it has not.

    Whatever goes wrong here, the results are there.
    """
    try:
        from pytest_aorta.triage.report import write_report

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries, which -W error would make errors
            write_report(run.results, output, settings=settings)
    except RequestError as error:
        return f"report {output}: {error}"
    except Exception as error:
        again = shlex.join(["pytest-aorta", "report", str(run.results), "-o", str(output)])
        return f"report {output}: {type(error).__name__}: {error}; try again with: {again}"
    return ""
