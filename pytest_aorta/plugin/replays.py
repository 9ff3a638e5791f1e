"""``--aorta-replay``: items whose trials are run again from their records."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_aorta.launch.launch_mode import EngineUnusable, LaunchModeError
from pytest_aorta.launch.nodes import is_multi_node
from pytest_aorta.plan import Plan
from pytest_aorta.plugin.failures import TrialFailed
from pytest_aorta.plugin.run import Run, end_in_order_when_terminated
from pytest_aorta.plugin.trial_item import TrialItem, WorkloadModules, item_of
from pytest_aorta.replay import Replay, ReplayError, find_replays
from pytest_aorta.trial_runner import TrialRunner

if TYPE_CHECKING:
    from pytest_aorta.launch.engine import RunningTrial
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.trials.spec import TrialSpec


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
        selection = replace(run.selection, execution=spec.execution, limits=spec.limits, resources=spec.resources)
        before_use = partial(end_in_order_when_terminated, run.config)
        runner = TrialRunner(selection, run.results, run.runner.store.stamp, before_use, run.trial_started)
        runner.plans.append(Plan(tuple(found.spec for found in run.replays if _shared(found.spec) == _shared(spec))))
        run.further_runners[_shared(spec)] = runner
    return runner


def _shared(spec: TrialSpec) -> Hashable:
    elastic = spec.execution.elastic
    return spec.resources, spec.limits.grace, elastic if is_multi_node(elastic) else None
