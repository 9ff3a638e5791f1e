"""Trials that are run again: the items of ``--aorta-replay``, and at the end of a run, those that have failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from pytest_aorta.common.texts import printable
from pytest_aorta.launch.launch_mode import EngineUnusable, LaunchModeError
from pytest_aorta.launch.nodes import is_multi_node
from pytest_aorta.plan import Plan
from pytest_aorta.plugin.compat import end_line
from pytest_aorta.plugin.failures import TrialFailed
from pytest_aorta.plugin.run import Run, end_in_order_when_terminated, reason_of
from pytest_aorta.plugin.trial_item import TrialItem, WorkloadModules, item_of
from pytest_aorta.replay import Replay, ReplayError, find_replays, read_record, spec_of
from pytest_aorta.triage.columns import counted
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.starts import facts_of_replay
from pytest_aorta.trial_runner import TrialRunner
from pytest_aorta.workspace.paths import REPLAY

if TYPE_CHECKING:
    from pytest_aorta.launch.engine import RunningTrial, SlotTrial
    from pytest_aorta.triage.verdicts import Triage
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths


def read_replays(config: pytest.Config, run: Run) -> dict[str, TrialSpec]:
    """Read the records; their trials by name."""
    __tracebackhide__ = True  # pytest would show the variables
    selection = run.selection
    try:
        run.replays = find_replays(selection.replays, selection.extra_env, selection.resources.hosts)
    except ReplayError as error:
        raise pytest.UsageError(f"--aorta-replay: {error}") from None
    secrets = {name for found in run.replays for name in found.secrets}
    if config.getoption("aorta_extra_env") and (unwanted := sorted(set(selection.extra_env) - secrets)):
        raise pytest.UsageError(
            f"--aorta-extra-env {unwanted[0]}=...: a replay has the variables of its record; only the values of "
            f"secrets, which are not in there, are to be given: {', '.join(sorted(secrets)) or 'these have none'}"
        )
    return {found.name: found.spec for found in run.replays}


def replay_items(run: Run, modules: WorkloadModules) -> Iterator[ReplayItem]:
    sibling: ReplayItem | None = None
    for found in run.replays:
        sibling = item_of(ReplayItem, modules.of(found.spec), found.name, found.spec, found.paths_of, sibling)
        sibling.replay = found
        yield sibling


class ReplayItem(TrialItem):
    """A trial that is run again. What its fixtures say of variables does not count: the record has them all."""

    replay: Replay

    def launch(self, run: Run, extra_env: Mapping[str, str]) -> RunningTrial:
        """Start the trial, on the resources that it had.

        Raises:
            TrialFailed: it cannot be started.
        """
        try:
            return _runner_of(run, self.spec).start(self.spec, self.paths)
        except (EngineUnusable, LaunchModeError) as error:
            self._keep_unstarted(run, error)
            raise TrialFailed(str(error)) from None

    def completed(self, record: TrialResult) -> TrialResult:
        """The record with what differs from the one that it is run from."""
        return self.replay.compared(record)


def _runner_of(run: Run, spec: TrialSpec) -> TrialRunner:
    runner = run.further_runners.get(_shared(spec))
    if runner is None:
        plan = Plan(tuple(found.spec for found in run.replays if _shared(found.spec) == _shared(spec)))
        runner = run.further_runners[_shared(spec)] = _runner_like(run, spec, [plan], run.trial_started)
    return runner


def _runner_like(
    run: Run, spec: TrialSpec, plans: Iterable[Plan], on_start: Callable[[SlotTrial, TrialPaths], object]
) -> TrialRunner:
    """On the resources, and with the limits, that a trial had."""
    selection = replace(run.selection, execution=spec.execution, limits=spec.limits, resources=spec.resources)
    selection = replace(selection, resume=False)
    before_use = partial(end_in_order_when_terminated, run.config)
    runner = TrialRunner(selection, run.results, run.runner.store.stamp, before_use, on_start)
    runner.plans += plans
    return runner


def _shared(spec: TrialSpec) -> Hashable:
    elastic = spec.execution.elastic
    return spec.resources, spec.limits.grace, elastic if is_multi_node(elastic) else None


class Again:
    """Trials of a run that has come to its end, run again from their records.

    Args:
        run: whose items are over.
        specs: of its trials, by workload, cell and index: they have the secrets that records do not have.
    """

    def __init__(self, run: Run, specs: Mapping[tuple[str, str, int], TrialSpec]) -> None:
        self.run = run
        self._specs = specs
        self._runners: dict[Hashable, TrialRunner] = {}
        #: How many replays each file has.
        self._files: Counter[PurePosixPath] = Counter()

    def replay(self, facts: TrialFacts, collect: tuple[str, ...], folder: str = "") -> Replay:
        """The replay of a trial with other collectors; ``folder``: below that of replays.

        Raises:
            ReplayError: it cannot be run again.
        """
        if self.run.runner.store.number is not None:
            raise ReplayError("several processes run each trial together")
        file, selection = self.run.results / facts.file, self.run.selection
        record = read_record(file)
        known = self._specs.get((facts.key.workload, facts.key.cell, facts.index))
        variables = {**({} if known is None else known.overlay), **selection.extra_env}
        spec = replace(spec_of(record, variables, selection.resources.hosts), collect=collect)
        found = Replay(file, record, spec, folder=f"{REPLAY}/{folder}")
        self._files[found.paths.file] += 1
        return replace(found, number=self._files[found.paths.file])

    def results(self, replays: Iterable[Replay]) -> Iterator[tuple[Replay, TrialResult]]:
        """Run the trials, as many at a time as they had slots, and write their records; in the order given."""
        started: list[tuple[Replay, RunningTrial]] = []
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

    def _runner(self, spec: TrialSpec) -> TrialRunner:
        if _shared(spec) not in self._runners:
            plans = self.run.runner.plans
            self._runners[_shared(spec)] = _runner_like(self.run, spec, plans, lambda trial, paths: None)
        return self._runners[_shared(spec)]

    def say(self, text: str) -> None:
        terminal = self.run.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and self.run.config.get_verbosity() >= 0:
            end_line(terminal)
            terminal.write_line(printable(f"aorta: {text}"))

    def close(self) -> None:
        for runner in self._runners.values():
            runner.close()


def replay_failures(again: Again, triage: Triage) -> Iterator[tuple[TrialFacts, TrialFacts] | str]:
    """Each failed trial beside its replay with collectors, or why there is none."""
    replays: list[Replay] = []
    failed: list[TrialFacts] = []
    for facts in (facts for cell in triage.cells for facts in cell.finished if facts.is_failure):
        try:
            replays.append(again.replay(facts, again.run.selection.collect))
            failed.append(facts)
        except ReplayError as error:
            yield f"{facts.file} is not run again: {error}"
    if replays:
        collectors = ", ".join(text.partition(":")[0] for text in again.run.selection.collect)
        again.say(f"{counted(len(replays), 'failed trial')} run again with {collectors}")
    rules = triage.settings.signatures
    for first, (replay, record) in zip(failed, again.results(replays), strict=True):
        yield first, facts_of_replay(record.to_dict(), str(replay.paths.file), rules)
