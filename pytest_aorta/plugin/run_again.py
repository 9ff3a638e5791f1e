"""Replays: the items of ``--aorta-replay``; and, at the end of a run, failed trials with collectors, or trials that
differ, to find the operator that makes the difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.collectors.contract import FOLDER, load, step_name
from pytest_aorta.collectors.divergence import (
    FirstDifference,
    compare_operators,
    compare_trials,
    described,
    read_operators,
    read_trial,
    trace_file,
)
from pytest_aorta.common.texts import counted, printable
from pytest_aorta.launch.launch_mode import EngineUnusable, LaunchModeError, is_multi_node
from pytest_aorta.plan import Plan
from pytest_aorta.plugin.compat import end_line
from pytest_aorta.plugin.failures import TrialFailed
from pytest_aorta.plugin.run import SessionRun, end_in_order_when_terminated, reason_of
from pytest_aorta.plugin.trial_item import ModuleOf, TrialItem, item_of
from pytest_aorta.registry import one_line_of
from pytest_aorta.replay import Replay, ReplayError, find_replays, read_record, spec_of
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.replays import Replayed, replayed_cells
from pytest_aorta.triage.starts import divergences, read_replay_facts
from pytest_aorta.trial_runner import Runner
from pytest_aorta.workspace.atomic import write_json
from pytest_aorta.workspace.paths import REPLAY

if TYPE_CHECKING:
    from pytest_aorta.launch.job import TrialJob
    from pytest_aorta.triage.starts import Traced
    from pytest_aorta.triage.verdicts import Table, Triage
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths


def read_replays(config: pytest.Config, run: SessionRun) -> dict[str, TrialSpec]:
    __tracebackhide__ = True  # pytest would show the variables
    selection = run.selection
    try:
        run.replays = find_replays(selection.replays, selection.extra_env, selection.resources.hosts)
    except ReplayError as error:
        raise pytest.UsageError(f"--aorta-replay: {error}") from None
    secrets = {name for replay in run.replays for name in replay.secrets}
    if config.getoption("aorta_extra_env") and (unwanted := sorted(set(selection.extra_env) - secrets)):
        raise pytest.UsageError(
            f"--aorta-extra-env {unwanted[0]}=...: a replay has the variables of its record; only the values of "
            f"secrets, which are not in there, are to be given: {', '.join(sorted(secrets)) or 'these have none'}"
        )
    run.trials.update({replay.nodeid: (replay.spec, replay.paths_of) for replay in run.replays})
    return {replay.name: replay.spec for replay in run.replays}


def replay_items(run: SessionRun, module_of: ModuleOf) -> Iterator[ReplayItem]:
    sibling: ReplayItem | None = None
    for replay in run.replays:
        sibling = item_of(ReplayItem, module_of(replay.spec), replay.name, run, replay.spec, replay.paths_of, sibling)
        sibling.replay = replay
        yield sibling


class ReplayItem(TrialItem):
    """Runs a recorded trial again. Its variables come from the record, and not from fixtures."""

    replay: Replay

    def launch(self, extra_env: Mapping[str, str]) -> TrialJob:
        run, shared = self.trial_run, _shared(self.spec)
        if shared not in run.further_runners:
            plan = Plan(tuple(replay.spec for replay in run.replays if _shared(replay.spec) == shared))
            run.further_runners[shared] = _runner_like(run, self.spec, [plan], run.trial_started)
        try:
            return run.further_runners[shared].start(self.spec, self.paths)
        except (EngineUnusable, LaunchModeError) as error:
            self._keep_unstarted(error)
            raise TrialFailed(str(error)) from None

    def completed(self, record: TrialResult) -> TrialResult:
        return self.replay.compared(record)


def _runner_like(
    run: SessionRun, spec: TrialSpec, plans: Iterable[Plan], on_start: Callable[[TrialJob, TrialPaths], object]
) -> Runner:
    """A runner with the resources and limits of a trial."""
    limits, resources = spec.limits, spec.resources
    selection = replace(run.selection, execution=spec.execution, limits=limits, resources=resources, resume=False)
    before_use = partial(end_in_order_when_terminated, run.config)
    runner = Runner(selection, run.results, run.runner.store.stamp, before_use, on_start)
    runner.plans += plans
    return runner


def _shared(spec: TrialSpec) -> Hashable:
    elastic = spec.execution.elastic
    return spec.resources, spec.limits.grace, elastic if is_multi_node(elastic) else None


class Reruns:
    """Runs trials of a finished run again, from their records."""

    def __init__(self, run: SessionRun, plans: Iterable[Plan]) -> None:
        self.run = run
        #: The trials of the run, which have the secrets that records lack.
        self._specs = {
            (spec.workload.name, spec.cell, spec.trial_index): spec for plan in plans for spec in plan.trials
        }
        self._runners: dict[Hashable, Runner] = {}
        #: Number of replays of each file; and number of replays that looked at a place.
        self._files: Counter[PurePosixPath] = Counter()
        self._looks = 0

    def replay(self, facts: TrialFacts, collect: tuple[str, ...], folder: str = "") -> Replay:
        """Make the replay of a trial with other collectors, in a ``folder`` of replays. Raises ``ReplayError``."""
        if self.run.runner.store.number is not None:
            raise ReplayError("several processes run each trial together")
        file, selection = self.run.results / facts.file, self.run.selection
        record = read_record(file)
        known = self._specs.get((facts.key.workload, facts.key.cell, facts.index))
        variables = {**({} if known is None else known.overlay), **selection.extra_env}
        spec = replace(spec_of(record, variables, selection.resources.hosts), collect=collect)
        replay = Replay(file, record, spec, folder=f"{REPLAY}/{folder}")
        self._files[replay.paths.file] += 1
        return replace(replay, number=self._files[replay.paths.file])

    def results(self, replays: Iterable[Replay]) -> Iterator[tuple[Replay, TrialResult]]:
        """Run replays, as many at a time as they had slots, and write their records; yield these in the same order."""
        started: list[tuple[Replay, TrialJob]] = []
        try:
            for replay in replays:
                started.append((replay, self._runner(replay.spec).start(replay.spec, replay.paths)))
            while started:
                replay, trial = started[0]
                record = replay.compared(trial.finish())
                started.pop(0)
                self._runner(replay.spec).store.write(replay.paths, record.to_dict())
                yield replay, record
        except BaseException as error:
            for _, trial in started:
                trial.interrupt(reason_of(error))
            for _, trial in started:
                trial.finish()
            raise

    def _runner(self, spec: TrialSpec) -> Runner:
        shared = _shared(spec)
        if shared not in self._runners:
            self._runners[shared] = _runner_like(self.run, spec, self.run.runner.plans, lambda trial, paths: None)
        return self._runners[shared]

    def at_place(self, traced: Traced, at: Mapping[str, Any]) -> Path:
        """Run a trial again and record its operators at a place; return the folder of the recording."""
        results = self.run.results
        self._looks += 1
        file = (results / REPLAY / "divergence" / f"at_{self._looks}.json").absolute()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, dict(at))
        replay = self.replay(traced.facts, (f"divergence:at={file}",), "divergence")
        list(self.results([replay]))
        return replay.paths.folder_in(results) / FOLDER / "divergence"

    def say(self, text: str) -> None:
        terminal = self.run.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and self.run.config.get_verbosity() >= 0:
            end_line(terminal)
            terminal.write_line(printable(f"aorta: {text}"))

    def close(self) -> None:
        for runner in self._runners.values():
            runner.close()


def observed_again(run: SessionRun, plans: Iterable[Plan], triage: Triage, table: Table, *, may_run: bool) -> Table:
    """Add to the table what collectors ask for after the last trial: replays of failed or of differing trials.

    ``may_run``: whether trials may be run again.
    """
    again = Reruns(run, plans)
    problems: list[str] = []
    try:
        if any(text.partition(":")[0] == "divergence" for text in run.selection.collect):
            differing: list[dict[str, Any]] = []
            try:
                _compare(again, triage, differing, may_run=may_run)
            except (Exception, KeyboardInterrupt) as error:
                problems.append(f"which trials differ: the comparison has ended early: {one_line_of(error)}")
            return replace(table, divergence=tuple(differing), warnings=(*table.warnings, *problems))
        replayed: dict[CellKey, list[Replayed]] = {}
        try:
            if may_run:
                _replay_failures(again, triage, replayed, problems)
            else:
                problems.append("failed trials are not run again: the run has ended early")
        except (Exception, KeyboardInterrupt) as error:
            problems.append(f"not all failed trials were run again: {one_line_of(error)}")
        cells = replayed_cells(replayed, triage.cells)
        return replace(table, warnings=(*table.warnings, *problems)).with_replays(cells)
    finally:
        again.close()


def _replay_failures(
    again: Reruns, triage: Triage, replayed: dict[CellKey, list[Replayed]], problems: list[str]
) -> None:
    """Replay failed trials with collectors; add trial and replay to ``replayed``, or the reason to ``problems``."""
    replays: list[Replay] = []
    failed: list[TrialFacts] = []
    for facts in (facts for cell in triage.cells for facts in cell.finished if facts.is_failure):
        try:
            replays.append(again.replay(facts, again.run.selection.collect))
            failed.append(facts)
        except ReplayError as error:
            problems.append(f"{facts.file} is not run again: {error}")
    if replays:
        collectors = ", ".join(text.partition(":")[0] for text in again.run.selection.collect)
        again.say(f"{counted(len(replays), 'failed trial')} run again with {collectors}")
    for first, (replay, record) in zip(failed, again.results(replays), strict=True):
        second = read_replay_facts(record.to_dict(), str(replay.paths.file), triage.settings.signatures)
        replayed.setdefault(first.key, []).append((first, second))


def _compare(again: Reruns, triage: Triage, differing: list[dict[str, Any]], *, may_run: bool) -> None:
    """Add the trials that differ to ``differing``, with sentences.

    Find the operator that makes the first difference, once within a cell and once between two.
    """
    run = again.run
    trials = int(load(run.selection.collect, run.registry)["divergence"].given["zoom"])
    cells = [(cell.key, cell.finished) for cell in triage.cells]
    zoomed: set[bool] = set()
    for divergence in divergences(cells, run.results, triage.baselines().of):
        plain = divergence.to_plain()
        differing.append(plain)
        is_between = divergence.of is not None
        if may_run and trials and divergence.first is not None and is_between not in zoomed:
            zoomed.add(is_between)
            try:
                sentence, data = _zoom(again, *divergence.first, trials)
            except ReplayError as error:
                sentence, data = f"the operator was not looked for: {error}", {}
            plain["lines"].append(f"  {sentence}")
            plain["zoom"] = {"sentence": sentence, **data}


def _zoom(
    again: Reruns, reference: Traced, other: Traced, place: FirstDifference, trials: int
) -> tuple[str, Mapping[str, Any]]:
    results = str(again.run.results.absolute())
    hindrances = {
        "that takes mode=hash": reference.trial.tolerance is not None,
        "the parameters differ before the first step, so that the seed does not decide on them": (
            place.event.startswith("initial:")
        ),
        "that takes trials of this host": bool(again.run.selection.resources.hosts),
        "the path of the results has a colon or comma": ":" in results or "," in results,
    }
    for why_not, holds in hindrances.items():
        if holds:
            return f"the operator was not looked for: {why_not}", {}
    again.say(f"{other.facts.key.cell}, trial {other.facts.index}: looking for the operator in {place.text(2)}")
    trace = trace_file(reference.folder, place.rank)
    for attempt in range(1, trials + 1):
        at = {"rank": place.rank, "after": place.after, "until": place.event}
        folder = again.at_place(other, {**at, "reference": str(trace)})
        seen = read_operators(folder)
        if seen is None:  # it may have differed elsewhere: then that is looked at
            compared = compare_trials({"": reference.trial, "again": read_trial(folder)})
            place = compared.places.get("again", place)
            continue
        for _ in range(trials):
            folder = again.at_place(reference, {**at, "ordinal": seen.ordinal})
            control, repeated = read_operators(folder), read_trial(folder)
            known = {"": reference.trial, "again": repeated.up_to(seen.ordinal)}
            if control is not None and not compare_trials(known).places:
                break
        else:
            return f"the operator was not found: no trial like {reference.facts.index} was seen again", {}
        finding = compare_operators(control, seen, place.after)
        data = {"rank": place.rank, "step": seen.ordinal + 1, "until": place.event, "after": place.after}
        where = f"run again, in {step_name(seen.ordinal + 1, place.first_step)}, {described(place.event)}"
        return f"{where}: {finding.sentence}", {**data, **finding.data, "trials": attempt + 1}
    return (
        f"the operator was not found: {counted(trials, 'trial')} run again did not differ where they were "
        f"looked at; divergence:zoom={4 * trials} tries more",
        {"trials": trials},
    )
