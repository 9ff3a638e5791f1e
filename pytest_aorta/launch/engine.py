"""Runs trials on the runtime: one worker for the whole pytest run, with slots of this host or of several."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_aorta.launch.environment import EnvironmentUnusable, Inherited, zygote_spec
from pytest_aorta.launch.host.service import HostOptions
from pytest_aorta.launch.job_messages import TrialOrder, broken_cell
from pytest_aorta.launch.launch_mode import EngineUnusable, LaunchModeError
from pytest_aorta.launch.multinode import MultiNodeTrial, plan_nodes
from pytest_aorta.launch.nodes.addressing import endpoint, node_rank
from pytest_aorta.launch.submitted import SlotTrial
from pytest_aorta.launch.workload_info import PreparedCell
from pytest_aorta.runtime.endpoints.protocol import StartupError
from pytest_aorta.runtime.engine.tasks import Job, Preparation
from pytest_aorta.runtime.hosts.specs import without_values
from pytest_aorta.runtime.orchestrator import Orchestrator
from pytest_aorta.runtime.records import Outcome
from pytest_aorta.runtime.worker import Worker
from pytest_aorta.trials.config import ConfigError
from pytest_aorta.trials.elastic_options import ElasticOptions
from pytest_aorta.trials.execution import Resources
from pytest_aorta.trials.limits import GRACE
from pytest_aorta.trials.spec import TrialSpec

_RUN = "pytest_aorta.launch.host.service:run_trial"
_PREPARE = "pytest_aorta.launch.host.service:prepare_cell"
_SERVICE = "pytest_aorta.launch.host.service:HostService"


class TrialEngine:
    """Runs trials on the slots of a worker, in the order in which they are launched.

    Args:
        resources: slots, devices, cores and hosts of the run.
        identity: source files that have to be the same everywhere, by name, with their digests.
        grace: seconds between SIGTERM and SIGKILL.
        results: the folder that files of trials on this host are written to.
        elastic: options of trials that have several nodes: this one and others, or the hosts.
    """

    def __init__(
        self,
        *,
        resources: Resources,
        identity: Mapping[str, str] | None = None,
        grace: float = GRACE,
        results: Path | None = None,
        elastic: ElasticOptions | None = None,
    ) -> None:
        self._hosts = hosts = resources.hosts
        self._results = results
        self._nodes = plan_nodes(elastic, hosts)
        options = HostOptions(replace(resources, hosts=()), max(1, len(hosts)))
        if hosts:
            self._worker = Worker(4, grace=grace)
            self._worker.identity = identity or {}
            for number, host in enumerate(hosts):
                own = replace(options, node_store=self._nodes.endpoint if self._nodes and number == 0 else None)
                below = Worker(3, slots=resources.slots, service=_SERVICE, service_argument=own)
                self._worker.add_worker(below, host)
        else:
            self._worker = Worker(
                3,
                slots=resources.slots,
                service=_SERVICE,
                service_argument=replace(options, node_store=None if elastic is None else _node_store(elastic)),
                grace=grace,
            )
        self._variables: dict[str, str] = {}
        self._unusable: Exception | None = None
        self._cells: dict[str, PreparedCell] = {}

    @property
    def _session(self) -> Orchestrator:
        """Started with the first trial; an engine that cannot be started raises the same error every time."""
        if self._unusable is None:
            try:
                return self._worker.session
            except LaunchModeError as error:
                self._unusable = error
            except (StartupError, ValueError) as error:
                self._unusable = EngineUnusable(self._message(error))
        raise self._unusable

    def _message(self, error: Exception) -> str:
        """Why a host cannot be used, in terms of the options."""
        from pytest_aorta.runtime.hosts.connection import HostError

        if isinstance(error.__cause__, HostError):
            return str(error.__cause__)
        names = [without_values(host) for host in self._hosts]
        text = re.sub(r"^child_worker (\d+) level=3", lambda found: f"host {names[int(found[1])]}", str(error))
        # Written for a user, wherever it was raised; anything else keeps its traceback.
        return re.sub(r": LaunchModeError(: .*?)\nTraceback .*", r"\1", text, flags=re.DOTALL)

    def check(
        self, spec: TrialSpec, timeout: float | None = None, patience: float | None = None
    ) -> PreparedCell | None:
        """Prepare a cell, once, and find out what would prevent each of its trials.

        ``None`` where that is no mistake of the request: then every trial has it in its record.

        Args:
            spec: one of its trials.
            timeout: deadline in seconds that overrides the spec's.
            patience: seconds to wait, ``None`` for as long as it takes. After that, trials find it out as well.

        Raises:
            ConfigError: an option that the workload does not have, or a value that does not fit.
            LaunchModeError: the workload cannot be launched this way, or needs more devices than there are.
            EngineUnusable: no trial can be run.
        """
        preparation = self._preparation(self._order(spec, timeout=timeout))
        key = preparation.key
        if key not in self._cells:
            try:
                record = self._session.submit_preparation(preparation).wait(patience)
            except TimeoutError:
                return None
            broken = broken_cell(record)
            if broken is not None and broken["kind"] == "ConfigError":
                raise ConfigError(broken["message"])
            if broken is not None and broken["kind"] == "LaunchModeError":
                raise LaunchModeError(broken["message"])
            if record.outcome is not Outcome.SUCCESS:
                return None
            self._cells[key] = PreparedCell.from_plain(record.payload)
        return self._cells[key]

    def launch(
        self,
        spec: TrialSpec,
        folder: Path,
        timeout: float | None = None,
        *,
        urgent: bool = True,
        on_start: Callable[[SlotTrial], None] | None = None,
        on_packages: Callable[[dict[str, Any]], object] = lambda listing: None,
        make_room: Callable[[], bool] = lambda: True,
    ) -> SlotTrial:
        """Have a trial run as soon as there is a slot; raises only ``EngineUnusable``: its failures are in its record.

        Args:
            spec: what to run.
            folder: for its artifacts; created when it starts.
            timeout: deadline in seconds that overrides the spec's.
            urgent: before those that wait, because the caller waits for it.
            on_start: called just before it starts, with its ``place``.
            on_packages: called with a list of the installed distributions that is new in this run.
            make_room: called before anything is put into the folder of a trial that could not start; whether it may be.
        """
        nodes = self._nodes
        if nodes is None:
            single = SlotTrial(spec, folder)
            single.on_packages, single.make_room = on_packages, make_room
            return self._submit(single, timeout, urgent, on_start)
        trial = MultiNodeTrial(nodes.spec_for(spec, 0), folder)
        trial.make_room = make_room
        self._submit(trial, timeout, urgent, on_start, host=0)
        for node in range(1, nodes.count):
            other = SlotTrial(nodes.spec_for(spec, node), folder.with_name(f"{folder.name}.node_{node}"))
            trial.others.append(self._submit(other, timeout, urgent, None, host=node))
        return trial

    def _submit(
        self,
        trial: SlotTrial,
        timeout: float | None,
        urgent: bool,
        on_start: Callable[[SlotTrial], None] | None,
        host: int | None = None,
    ) -> SlotTrial:
        folder = Path(trial.folder.name) if self._hosts else trial.folder.absolute()
        order = self._order(trial.spec, folder, timeout)
        job = Job(
            _RUN,
            order,
            preparation=self._preparation(order),
            on_start=lambda endpoint: trial.begin(self._place(endpoint), on_start),
            on_event=trial.receive,
        )
        trial.follow(self._session.submit_job(job, urgent=urgent, worker=host), order)
        return trial

    def _place(self, endpoint: str) -> str:
        """An endpoint's name, in terms of the options."""
        found = re.match(r"child_worker (\d+)", endpoint)
        return without_values(self._hosts[int(found[1])]) if found and self._hosts else endpoint

    def _order(self, spec: TrialSpec, folder: Path = Path(), timeout: float | None = None) -> TrialOrder:
        if self._hosts:  # another host inherits from its worker
            return TrialOrder(spec, folder, timeout)
        now = Inherited.now(self._results, spec.origin)
        if self._variables != now.variables:  # one copy for all trials
            self._variables = dict(now.variables)
        return TrialOrder(spec, folder, timeout, replace(now, variables=self._variables))

    def _preparation(self, order: TrialOrder) -> Preparation:
        try:
            key = zygote_spec(order.spec, order.inherited or Inherited.now(origin=order.spec.origin)).key()
        except EnvironmentUnusable as error:
            key = str(error)  # and the preparation fails with it, on its host
        # How it is launched, and for how long it may be imported, is part of what can go wrong.
        limit = order.spec.limits.timeout if order.timeout is None else order.timeout
        return Preparation(f"{key} {order.spec.execution} {limit}", _PREPARE, replace(order, folder=Path()))

    def close(self) -> None:
        """End all processes; from any thread."""
        with self._worker:  # only the thread that enters it may close it
            pass


def _node_store(elastic: ElasticOptions) -> tuple[str, int] | None:
    """Where this node keeps the run's store; raises ``LaunchModeError`` where that is unknown."""
    at = endpoint(elastic)
    return at if node_rank(elastic) == 0 else None
