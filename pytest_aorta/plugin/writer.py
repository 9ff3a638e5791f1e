"""From reports to trial files, matrix, gates and report."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from pytest_aorta.common.texts import counted, duration_text, utc_now
from pytest_aorta.launch.launch_mode import is_command
from pytest_aorta.plugin import is_controller
from pytest_aorta.plugin.failures import FailedAlike
from pytest_aorta.plugin.next_step import next_steps
from pytest_aorta.plugin.run import WATCHER, RecordToWrite, ask_others, cell_of
from pytest_aorta.plugin.summary import TerminalSummary, understood
from pytest_aorta.plugin.workload_files import workload_facts
from pytest_aorta.triage.decisions import Decisions
from pytest_aorta.triage.facts import CellKey, facts_of
from pytest_aorta.triage.matrix import MATRIX_MD, EarlierMatrix, RunState, markdown, matrix_json
from pytest_aorta.triage.reading import MATRIX_JSON
from pytest_aorta.triage.verdicts import Triage
from pytest_aorta.trials.losses import is_in_doubt, settled, was_perhaps_ended
from pytest_aorta.trials.records import Failure
from pytest_aorta.workspace.atomic import remove_abandoned, write_json, write_text
from pytest_aorta.workspace.paths import HISTORY, REPLAY, TrialPaths

if TYPE_CHECKING:
    from pytest_aorta.plan import Plan
    from pytest_aorta.plugin.run import SessionRun
    from pytest_aorta.triage.facts import TrialFacts
    from pytest_aorta.triage.verdicts import Table
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.trial_store import TrialStore


def judge_gates(session: pytest.Session, writers: Collection[TrialWriter]) -> list[tuple[str, str]]:
    """Set the exit status of a finished run by its gates, which must all hold; return lines to print, with colours.

    With ``-q``, only gates that do not hold have a line.
    """
    from pytest_aorta.triage.gates import explain_gate

    begun = [writer for writer in writers if writer.gates and any(cell.trials for cell in writer.triage.cells)]
    if not begun:
        return []
    stopped = session.shouldfail or session.shouldstop
    if stopped or session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        why = stopped or "it did not come to its end"
        return [(f"gates are not judged, because the run is incomplete: {why}", "")]
    taken = {gate.text for writer in begun for gate in writer.gates}
    lines, hold, excused = [], True, 0
    verdicts, of_gates = dict[str, list[str]](), set[tuple[str, str]]()
    for writer in (*begun, *(writer for writer in writers if writer not in begun)):
        of = f"{writer.run.action}: " if writer.run.action else ""
        gates = writer.gates if writer in begun else [gate for gate in writer.gates if gate.text not in taken]
        if gates:
            table = writer.triage.table()
        for gate in gates:
            problems = list(explain_gate(gate, table))
            hold &= not problems
            verdicts[f"{of}{gate.text}"] = problems
            lines += [(f"does not hold: {of}{gate.text}: {problem}", "red") for problem in problems]
            if not problems and session.config.get_verbosity() >= 0:
                lines.append((f"holds: {of}{gate.text}", "green"))
        judged = {"failed", "timeout"} | ({"ok"} if writer.run.expects_failures else set())
        if any(gate.value == "infrastructure" for gate in gates):
            judged |= {"infrastructure", "did not run"}
        finished = (facts for cell in writer.triage.cells for facts in cell.finished)
        own = [(facts.key.workload, facts.trial_id) for facts in finished if facts.outcome in judged]
        excused += sum(writer.failed[each] for each in own)
        of_gates.update(own)
    others = session.testsfailed - excused
    if others > 0:
        lines.append(
            (f"{counted(others, 'failure')} that no gate judges: not of a trial, of its cleanup, or infrastructure", "")
        )
    elif excused and hold:
        lines.append((f"exit status 0: the gates judge {counted(excused, 'failed trial')}, and hold", ""))
    session.exitstatus = pytest.ExitCode.OK if hold and others <= 0 else pytest.ExitCode.TESTS_FAILED
    if file := session.config.getoption("xmlpath", None):  # written before, by pytest
        from pytest_aorta.plugin.junit import follow_gates

        try:
            follow_gates(session.config.invocation_params.dir / os.path.expanduser(file), verdicts, of_gates)
        except (OSError, ValueError, SyntaxError) as error:
            lines.append((f"{file} does not follow the gates: {error}", "red"))
    return lines


#: Least seconds between two writes; and the least multiple of the last write's duration.
_SHORTEST, _TIMES = 0.5, 99


class MatrixWriter:
    """Writes matrix.json and matrix.md in a ``folder`` of the results, repeatedly while trials run, and at the end.

    ``plans`` are those of the run; more may be added. ``clock`` gives seconds.
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
        self.folder = folder
        self._plans = plans
        self._clock = clock
        self._has_written = False
        self._started_at = utc_now()
        #: Time of the next write; the end of the first trial starts the clock.
        self._next: float | None = None
        #: Why the last write failed.
        self.error: str | None = None

    def trial_is_over(self) -> None:
        begun = self._clock()
        if self._next is None:
            self._next = begun + _SHORTEST
        if begun < self._next:
            return
        table = self._triage.table(running=True)
        if not self._has_written:
            begun = self._clock()  # what the statistics import, the table at the end needs as well
        self._write(table, complete=False)
        ended = self._clock()
        self._next = ended + max(_SHORTEST, _TIMES * (ended - begun))

    def finish(self, table: Table, interrupted: str | None) -> None:
        """Write for the last time; ``interrupted``: what ended the run early."""
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
            planned=planned_trials(self._plans),
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
            write_text(self.folder / MATRIX_JSON, matrix_json(table, state))
            write_text(self.folder / MATRIX_MD, text)
            self.error = None
        except OSError as error:
            self.error = f"{self.folder / MATRIX_JSON}: {error}"
        return text

    def _make_room(self) -> None:
        """Move the matrix of an earlier run to the history, if this run has moved trials there."""
        moved = self._store.results / HISTORY / self._store.stamp
        for name in (MATRIX_JSON, MATRIX_MD):
            for temporary in self.folder.glob(f".{name}.*.tmp"):
                remove_abandoned(temporary)
            file = self.folder / name
            target = moved / file.relative_to(self._store.results)
            if moved.is_dir() and file.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)


def planned_trials(plans: Iterable[Plan]) -> Counter[CellKey]:
    return Counter(cell_of(spec) for plan in plans for spec in plan.trials)


class TrialWriter:
    def __init__(self, run: SessionRun) -> None:
        self.run = run
        self.store = run.runner.store
        self.summary = TerminalSummary(run)
        #: The plans of this process, and plans of files that only xdist workers have collected.
        self.plans = list(run.runner.plans)
        settings = run.selection.triage
        if run.selection.resume and EarlierMatrix(run.results).was_looked_at(planned_trials(self.plans)):
            settings = replace(settings, sequential=True)
        self.triage = Triage(settings)
        self.decisions = None
        if run.stopping.may_end_early and run.selection.stop.ends_cells:
            before = run.stopping.decided_before()
            self.decisions = Decisions(self.triage, run.selection.stop, before)
        self.gates = run.selection.gates
        #: How many failed reports the items of trials have, which by themselves make the run no failure, by workload
        #: and id of the trial.
        self.failed: Counter[tuple[str, str]] = Counter()
        #: Lines for the summary from items that run several trials.
        self.notes: list[str] = []
        #: Number of trials that were skipped because their cells were decided.
        self.skipped = 0
        #: Node ids of collectors of xdist workers whose plans were made here.
        self._looked_for: set[str] = set()
        self._declare(self.plans)
        folder = self.store.results / REPLAY if run.replays else self.store.results
        self.matrix = MatrixWriter(self.triage, self.store, folder, self.plans)
        #: Commands whose first trial has ended.
        self._understood: set[str] = set()
        #: The table at the end; and what ended the run early.
        self.table: Table | None = None
        self._stopped: str | None = None
        #: How the trial of each item failed, by node id.
        self.alike: dict[str, FailedAlike] = {}
        #: Messages on what could not be written.
        self.errors: list[str] = []
        #: Trials that may have been killed with the whole run, with the time of ``time.monotonic()``.
        self._doubtful: list[tuple[float, RecordToWrite]] = []

    def _declare(self, plans: Iterable[Plan]) -> None:
        """Declare all cells in the order of the plan, which is the order of the table."""
        for plan in plans:
            for spec in plan.trials:
                self.triage.declare(cell_of(spec), spec.environment.name, spec.mitigations)

    def begin(self, nodeid: str) -> None:
        trial = self.find(nodeid)
        if trial is not None:
            spec = trial[0]
            self.triage.declare(cell_of(spec), spec.environment.name, spec.mitigations, spec.trial_index)

    def write_report(self, report: pytest.TestReport) -> None:
        payload, properties = report.aorta, dict(report.user_properties)
        trials = []
        for record in json.loads(payload["records"]):
            trials.append(RecordToWrite(**record))
        if report.when != "call":  # which the teardown's repeats
            self.notes += json.loads(payload["notes"])
        if report.when == "teardown" and not trials and not hasattr(report, "node"):
            trials = list(self.run.unreported)  # of this process, whose items run one after the other
        is_of_trial = "aorta_trial_id" in properties  # a test that starts trials fails for its own reasons
        for trial in trials:
            facts = self.write(trial)
            if is_of_trial and facts.signature is not None:
                cell = self.run.shown_cell(facts.key.workload, facts.key.cell)
                self.alike[report.nodeid] = FailedAlike((facts.outcome, facts.signature), *cell, facts.index)
        if is_of_trial and report.failed and report.when != "teardown":
            self.failed[str(properties["aorta_workload"]), str(properties["aorta_trial_id"])] += 1

    def write(self, trial: RecordToWrite) -> TrialFacts:
        """Write one trial; if that fails, keep it elsewhere, and go on."""
        self._settle()
        return self._write(trial)

    def _settle(self, *, at_end: bool = False) -> None:
        """Find out whether the end of the whole run killed trials that failed by a signal.

        If so, pytest gets the signal as well, within the notice that batch systems give; if not, the trials failed by
        themselves. Trials of a recipe's job that ended just before pytest are settled with the job.
        """
        doubtful, self._doubtful = self._doubtful, []
        if not doubtful:
            return
        from pytest_aorta.workflow import slurm
        from pytest_aorta.workflow.jobs import JOB_VARIABLE

        now, job = time.monotonic(), os.environ.get("SLURM_JOB_ID")
        for at, trial in doubtful:
            why = None
            if self.run.interrupted_at - at <= self._notice:
                why = self.run.interrupted
            elif now - at <= self._notice:
                if not at_end:
                    self._doubtful.append((at, trial))
                    continue
                if job is not None and JOB_VARIABLE in os.environ:
                    continue
                why = None if job is None else slurm.end_of(job)
            if why is not None or is_in_doubt(trial.result):
                self._write(replace(trial, result=settled(trial.result, why)), settles=True)

    @cached_property
    def _notice(self) -> float:
        """Seconds from the first signal for all processes to the last."""
        if "SLURM_JOB_ID" not in os.environ:
            return self.run.selection.limits.grace
        from pytest_aorta.workflow import slurm

        return slurm.setting("KillWait", 30)

    def _write(self, trial: RecordToWrite, *, settles: bool = False) -> TrialFacts:
        paths = TrialPaths(PurePosixPath(trial.path))
        try:
            if settles:
                self.store.settle(paths, trial.result)
            else:
                self.store.write(paths, trial.result, resumed=trial.resumed)
            if self.run.on_record is not None:
                self.run.on_record(trial.result)
        except OSError as error:
            self.errors.append(f"{paths.file_in(self.store.results)}: {error}")
            elsewhere = Path(tempfile.gettempdir()) / f"pytest-aorta-{self.store.stamp}" / trial.path
            with contextlib.suppress(OSError):
                write_json(elsewhere, trial.result)
                self.errors[-1] += f"; kept in {elsewhere}"
        if trial in self.run.unreported:
            self.run.unreported.remove(trial)
        status, failure = trial.result["exit_status"], trial.result.get("failure")
        if failure and not (settles or trial.resumed) and was_perhaps_ended(status, Failure(**failure)):
            self._doubtful.append((time.monotonic(), trial))
        if not trial.resumed and trial.result["workload"] not in self._understood:
            target = ((trial.result.get("request") or {}).get("workload") or {}).get("target", "")
            terminal = self.run.config.pluginmanager.get_plugin("terminalreporter")
            if is_command(target) and trial.result["config"]:
                self._understood.add(trial.result["workload"])
                if terminal and self.run.config.get_verbosity() >= 0 and self.run.selection.trials > 1:
                    terminal.ensure_newline()
                    terminal.write_line(understood(trial.result))
        facts = facts_of(trial.result, trial.path, self.triage.settings.signatures)
        if not settles:
            self.summary.add(trial, facts.key)
        if paths.repeat:  # not counted: it has the seeds of the trial, or was run because of how that has ended
            return facts
        self._decide(facts)
        if (watcher := self.run.config.stash.get(WATCHER, None)) is not None and not settles:
            cell = self.run.shown_cell(facts.key.workload, facts.key.cell)
            watcher.trial_finished(facts, paths.file_in(self.store.results), cell)
        self.matrix.trial_is_over()
        return facts

    def _decide(self, *new: TrialFacts) -> None:
        """Count finished trials of this job and of others, and find cells that need no more."""
        all_facts = list(new)
        for spec, facts in self.run.others() if self.run.others is not None else ():
            # Also of those that still run: what comes after them has to wait.
            self.triage.declare(cell_of(spec), spec.environment.name, spec.mitigations, spec.trial_index)
            if facts is not None:
                all_facts.append(facts)
        has_stopped = False
        for facts in all_facts:
            self.triage.add(facts)
            has_stopped |= self.decisions is not None and self.decisions.update(facts.key)
        if self.decisions is not None and has_stopped:
            stopping = self.run.stopping
            stopping.publish(self.decisions.stopped)
            if self.run.prefetcher is not None:
                self.run.prefetcher.withdraw(lambda spec: stopping.decided(cell_of(spec)) is None)

    def count_skip(self, report: pytest.TestReport) -> None:
        if self.decisions is not None and isinstance(report.longrepr, tuple):
            self.skipped += report.longrepr[2].removeprefix("Skipped: ") in self.decisions.stopped.values()

    def select(self, nodeids: Iterable[str]) -> None:
        """Compare only cells that have items in this run; in a job, cells of all jobs."""
        if self.run.others is not None:
            self._decide()
        else:
            kept = set()
            for trial in filter(None, map(self.find, nodeids)):
                kept.add(cell_of(trial[0]))
            self.triage.keep(kept)

    def write_lost(self, nodeid: str, why: str) -> tuple[TrialSpec, TrialPaths] | None:
        """Record a trial whose process died before it reported; return the trial, or ``None`` if the item has none."""
        trial = self.find(nodeid)
        if trial is None:
            return None
        from pytest_aorta.launch.record import logs_in, lost_record

        spec, paths = trial
        self.store.make_room(paths)
        logs = logs_in(paths.folder_in(self.store.results))
        record = lost_record(spec, Failure("launch", "signal", why), logs)
        self.write(RecordToWrite(str(paths.file), record.to_dict()))
        return spec, paths

    def find(self, nodeid: str) -> tuple[TrialSpec, TrialPaths] | None:
        run = self.run
        if nodeid not in run.trials and is_controller(run.config):
            self._look_for_trials(nodeid.rpartition("::")[0])
        if nodeid not in run.trials:
            return None
        spec, paths_of = run.trials[nodeid]
        return spec, paths_of(spec)

    def _look_for_trials(self, base: str) -> None:
        """On the xdist controller, rebuild a plan that only the workers have collected."""
        if base in self._looked_for:
            return
        self._looked_for.add(base)
        from pytest_aorta.plugin.collection import ROOT, plan_of_file

        run, path = self.run, self.run.config.rootpath / base
        if run.action is not None or base == ROOT:
            plan = run.plan
        elif workload_facts(path).workloads:
            plan = plan_of_file(path, run.selection, run.registry)
        else:
            return
        if all(plan.digest != known.digest for known in self.plans):
            self.plans.append(plan)
            self._declare([plan])
        run.trials.update({f"{base}::{run.shown_name(spec)}": (spec, plan.paths) for spec in plan.trials})

    def finish(self, unfinished: Iterable[str], stopped: str | None = None) -> None:
        """Write unreported trials, retire trials that a complete run no longer holds, and conclude.

        ``unfinished``: node ids of items without a last report. ``stopped``: what ended the run early; then its length
        may depend on the outcomes.
        """
        for trial in list(self.run.unreported):
            self.write(trial)
        for nodeid in unfinished:
            begun = self.find(nodeid)
            if begun is not None and begun[1].file not in self.store.written:
                why = self.run.interrupted or "the run ended before the trial"
                self.write_lost(nodeid, f"interrupted: {why}")
        self._settle(at_end=True)
        plans = self.run.runner.plans
        self.store.retire_unplanned({plan.paths(spec) for plan in plans for spec in plan.trials})
        if self.decisions is not None and self.run.on_decided is not None:
            self.run.on_decided({key.cell: why for key, why in self.decisions.stopped.items()})
        self.table, self._stopped = self.triage.table(running=stopped is not None), stopped
        selection = self.run.selection
        if selection.collect_on_failure or any(text.partition(":")[0] == "divergence" for text in selection.collect):
            from pytest_aorta.plugin.run_again import observed_again

            self.table = observed_again(self.run, self.plans, self.triage, self.table, may_run=stopped is None)
        seen, planned = sum(row.cell.total for row in self.table.rows), sum(planned_trials(self.plans).values())
        if self.run.config.getoption("lf", False) and seen < planned:
            only = f"{seen} of {counted(planned, 'trial')}: those that had failed (--lf)"
            text = f"the table has {only}, so that its rates say nothing about how often the workload fails"
            self.table = replace(self.table, warnings=(*self.table.warnings, text))
        if any(row.cell.total for row in self.table.rows):
            self.matrix.finish(self.table, stopped)
            config = self.run.config
            if config.hook.pytest_aorta_verdict.get_hookimpls() and self.matrix.error is None:
                written = json.loads((self.matrix.folder / MATRIX_JSON).read_bytes())
                ask_others(config, "verdict", self.errors.append, matrix=written)
        self.summary.pruned = self.store.prune(selection.history)

    def next_steps(self) -> Iterator[str]:
        return iter(()) if self.table is None else next_steps(self.run, self.table, self._stopped)

    def stopping_lines(self) -> Iterator[str]:
        """A line for each option that may have ended trials, on what it has ended."""
        selection = self.run.selection
        of = "" if self.run.action is None else f"{self.run.action}: "
        if selection.stop.failures is not None and self.decisions is not None and not selection.stop.decided:
            ended_cells = counted(len(self.decisions.stopped), "cell")
            goal = f"--aorta-stop=failures={selection.stop.failures}"
            yield f"{of}{ended_cells} ended by failures, {counted(self.skipped, 'trial')} saved ({goal})"
        elif self.decisions is not None:
            compared = set(self.triage.baselines().of)
            ended = [why.startswith("no cure?") for key, why in self.decisions.decided.items() if key in compared]
            decided = f"{ended.count(False)} of {counted(len(compared), 'cell')} decided"
            decided += f", {ended.count(True)} given up" if any(ended) else ""
            stop = selection.stop
            goals = {"first-fix": stop.first_fix, "equivalence": stop.equivalence, "speed": stop.speed}
            goal = next((name for name, is_set in goals.items() if is_set), "decided")
            yield f"{of}{decided}, {counted(self.skipped, 'trial')} saved (--aorta-stop={goal})"
        if selection.stop.seconds is not None:
            rounds = max((trials.statistics.total for trials in self.triage.cells), default=0)
            line = f"{of}{counted(rounds, 'round')} within {duration_text(selection.stop.seconds)} (--aorta-stop)"
            if rounds >= selection.trials:
                line += "; there were no more: --aorta-trials gives more"
            yield line
