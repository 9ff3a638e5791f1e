"""The run of a pytest process that has trials: what was selected, the dispatcher, and what has been reported."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.plan import Plan, Selection, make_plan, trials_of
from pytest_aorta.plugin.deadlines import deadline_of
from pytest_aorta.plugin.options import read_selection
from pytest_aorta.plugin.prefetch import Prefetcher, QueuedTrial
from pytest_aorta.plugin.repeats import Occurrences
from pytest_aorta.plugin.replay_options import replay_selection
from pytest_aorta.plugin.report_payload import PAYLOAD, FinishedTrial, ReportPayload, RowKey
from pytest_aorta.plugin.sigterm import end_in_order_when_terminated
from pytest_aorta.plugin.stopping.decided_cells import cell_of
from pytest_aorta.plugin.stopping.early_end import Stopping, round_name, round_of, where_of
from pytest_aorta.plugin.trial_watcher import WATCHER, TrialWatcher
from pytest_aorta.plugin.xdist_roles import STAMP, decisions_of_controller, is_worker
from pytest_aorta.registry import Registry, WorkloadEntry
from pytest_aorta.settings import OptionError
from pytest_aorta.trial_runner import TrialRunner

if TYPE_CHECKING:
    from pytest_aorta.launch.slot_trial import RunningTrial, SlotTrial
    from pytest_aorta.replay import Replay
    from pytest_aorta.triage.facts import CellKey
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths

#: Property of a report: how the item's trial has ended; of several trials, the last one.
EXIT_STATUS = "aorta_exit_status"

RUN = pytest.StashKey["Run"]()

#: Stands for the workloads that a file or a test has.
_ANY = WorkloadEntry("any", "", "")

#: Names of which the registry needs not be asked.
_NO_AXES = (Selection().environments, Selection().mitigations)


class Run:
    """One per pytest process."""

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
        self.runner = TrialRunner(selection, self.results, stamp, before_use, self.trial_started)
        self.stopping = Stopping(config, selection, stopping_folder)
        self.prefetcher = Prefetcher(
            self.runner.find,
            partial(self.runner.start, urgent=False),
            self.results,
            ahead=2 * selection.resources.total_slots if selection.may_end_early else None,
            wanted=self._is_needed,
        )
        #: Names of trials on the command line, empty for all; ``None`` where none of ``--aorta-workload`` is collected.
        self.chosen: set[str] | None = None
        #: The trials of ``--aorta-replay``, and what runs them where that is not ``runner``.
        self.replays: list[Replay] = []
        self.further_runners: dict[Hashable, TrialRunner] = {}
        #: Name of the action of a recipe whose run this is, as its items have it.
        self.action: str | None = None
        #: Of an action of a recipe: gives its trials by the names of their items; most processes never ask.
        self.recipe_trials: Callable[[], Mapping[str, TrialSpec]] | None = None
        #: Whether trials that fail are what is asked for.
        self.expects_failures = False
        #: Called at the end with the cells that need no more trials, and why.
        self.on_decided: Callable[[Mapping[str, str]], object] = lambda cells: None
        #: Called with each record that was written.
        self.on_record: Callable[[Mapping[str, Any]], object] = lambda record: None
        self.occurrences = Occurrences(config)
        #: Fixtures and hooks that keep trials from being prefetched, with an item that has each.
        self.held_by: dict[str, str] = {}
        #: Trials that are over, and that no report has brought to the writer yet.
        self.unreported: list[FinishedTrial] = []
        #: What has interrupted pytest itself, between two phases of an item as well as in one.
        self.interrupted: str | None = None

    @cached_property
    def registry(self) -> Registry:
        """Built-ins, plugins and the files of ``--aorta-registry-file``."""
        return Registry.load(self.selection.registry_files)

    def check_names(self) -> None:
        """Look up the names that the options give, which otherwise only a file or a test would, or nothing at all.

        Raises:
            RequestError: one is unknown, or is there twice.
        """
        given = self.selection
        if given.registry_files or given.collect or (given.environments, given.mitigations) != _NO_AXES:
            trials_of([_ANY], replace(given, trials=1), self.registry)

    @cached_property
    def plan(self) -> Plan:
        """The trials of ``--aorta-workload``."""
        plan = make_plan(self.selection, self.registry)
        self.runner.add_plan(plan)
        return plan

    @property
    def watcher(self) -> TrialWatcher | None:
        """What shows the trials that run, if that is wanted."""
        return self.config.stash.get(WATCHER, None)

    def trial_started(self, trial: SlotTrial, paths: TrialPaths) -> None:
        """A slot is about to start a trial; called on its thread."""
        if self.watcher is not None:
            spec = trial.spec
            cell = self.shown_cell(spec.workload.name, spec.cell)
            self.watcher.trial_started(trial, paths.file_in(self.results), self.shown_name(spec), cell)

    def shown_cell(self, workload: str, cell: str) -> tuple[str, str]:
        """How a cell is shown: actions of a recipe may have the same ones."""
        return self.action or workload, cell

    def shown_name(self, spec: TrialSpec) -> str:
        """The name of a trial's item."""
        return spec.item_name if self.action is None else f"{self.action}[{spec.item_name.partition('[')[2]}"

    def end_processes(self, why: str) -> None:
        """End all processes after the last item, before the session ends; ``why`` is for trials without an item."""
        self.unreported += self.prefetcher.close(why)
        for runner in (self.runner, *self.further_runners.values()):
            runner.close()

    def close(self) -> None:
        """End all processes."""
        for runner in (self.runner, *self.further_runners.values()):
            runner.close()
        self.stopping.close()

    def _is_needed(self, trial: QueuedTrial) -> bool:
        """Whether a trial is to be started ahead of its item."""
        name = round_name(where_of(trial.nodeid), trial.spec.trial_index)
        return self.stopping.reason(cell_of(trial.spec), name) is None

    def has_result(self, item: pytest.Item) -> bool:
        """Whether an item's trial has, with ``--aorta-resume``, a file that may stand for it."""
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
    ) -> RunningTrial:
        """Start the trial of an item, unless it was prefetched or, with ``--aorta-resume``, has a result.

        ``again``: whether the item has run before in this run; then nothing that is there stands for it.

        Raises:
            pytest.skip.Exception: no more trials of the cell ``key`` are needed.
        """
        running = self.prefetcher.take(item.nodeid) if not extra_env and not paths.repeat else None
        if running is not None:
            return running
        spec = replace(spec, overlay={**spec.overlay, **extra_env})
        deadline = deadline_of(item, spec)
        earlier = self.runner.find(spec, paths, deadline) if not again else None
        if earlier is not None:
            return earlier
        if key is not None:
            self.stopping.check(key, round_of(item) or "")
        return self.runner.start(spec, paths, deadline)

    def keep(
        self,
        item: pytest.Item,
        paths: TrialPaths,
        record: TrialResult,
        resumed: bool = False,
        row: RowKey | None = None,
    ) -> None:
        """Have the item's last report bring this record to the process that writes."""
        not_kept = self.runner.store.not_kept.pop(paths, ())
        trial = FinishedTrial.of(paths, record, resumed, not_kept, row)
        payload = item.stash.setdefault(PAYLOAD, ReportPayload())
        payload.exit_status = record.exit_status
        payload.trials.append(trial)
        item.user_properties = [*without_exit_status(item), (EXIT_STATUS, record.exit_status)]
        if not is_worker(self.config):  # a worker's last report may be lost, and then so is its process
            self.unreported.append(trial)

    def interrupt(self, why: str) -> None:
        """Start nothing more: pytest itself was interrupted."""
        self.interrupted = why
        self.prefetcher.interrupt(why)


def without_exit_status(item: pytest.Item) -> list[tuple[str, object]]:
    """The properties of an item but those of its trials, which may be of an earlier time that it ran."""
    return [(name, value) for name, value in item.user_properties if name != EXIT_STATUS]


def warn(item: pytest.Item, texts: Iterable[str]) -> None:
    """Show what the user should know about a trial; raises what the user has turned into an error."""
    for text in texts:
        item.warn(pytest.PytestWarning(text))


def run_of(config: pytest.Config) -> Run:
    """The run of a config, made when it is first asked for.

    Raises:
        pytest.UsageError: an option has a value that it cannot take.
    """
    if RUN not in config.stash:
        try:
            selection = read_selection(config)
            if selection.replays:
                selection = replay_selection(config, selection)
        except OptionError as error:
            raise pytest.UsageError(str(error)) from None
        stamp: str | None = decisions_of_controller(config).get("stamp", config.stash.get(STAMP, None))
        config.stash[RUN] = Run(config, selection, stamp)
    return config.stash[RUN]
