"""The trials of one run, with pytest or without: what is refused before the first, started, or found from earlier."""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.interrupts import SIGINT_HELD
from pytest_aorta.launch.launch_mode import (
    check_step,
    check_tasks,
    is_command,
    is_multi_node,
    process_rank,
    under_launcher,
)
from pytest_aorta.plan import Plan, PlanError, Selection
from pytest_aorta.settings import RequestError
from pytest_aorta.trials.command_line import command_words, tells_what_it_reads
from pytest_aorta.trials.spec import IMPORTED_LATER, UNKNOWN, changed_files, differences, fingerprint, parts_of
from pytest_aorta.workspace.trial_store import TrialStore, stamp

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from pytest_aorta.launch.engine import SlotEngine
    from pytest_aorta.launch.environment import PreparedCell
    from pytest_aorta.launch.host.folders import TemporaryFolders
    from pytest_aorta.launch.job import TrialJob
    from pytest_aorta.trials.execution import Execution
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths

#: Spells an option and its value as the user has.
Spelling = Callable[[str, object], str]

#: Options that torchrun does not have; its ranks are fresh interpreters.
_NOT_OF_TORCHRUN = ("exit_barrier_timeout", "node_rank", "start_method")


class Runner:
    """Checks, finds and starts trials. Thread-safe.

    Args:
        run: its name in the history, a new one if not given.
        before_use: called whenever the engine is about to be used.
        on_start: called, on any thread, with each trial that a slot is about to start.
    """

    def __init__(
        self,
        selection: Selection,
        results: Path,
        run: str | None = None,
        before_use: Callable[[], None] = lambda: None,
        on_start: Callable[[TrialJob, TrialPaths], object] = lambda job, paths: None,
        on_result: Callable[[TrialJob, TrialResult], TrialResult] = lambda job, result: result,
    ) -> None:
        kind, number = process_rank(selection.execution.elastic, selection.resources.hosts)
        self.selection = selection
        self.store = TrialStore(results, run or stamp(), resume=selection.resume, number=number, kind=kind)
        self.plans: list[Plan] = []
        self._before_use = before_use
        self._on_start, self._on_result = on_start, on_result
        #: Trials that were started in this run: a plugin may run one again, and then no earlier result stands for it.
        self._started: set[TrialPaths] = set()
        self._lock = threading.Lock()
        self._engine: SlotEngine | None = None
        self._folders: TemporaryFolders | None = None

    def add_plan(self, plan: Plan) -> None:
        """Add a plan; raises ``PlanError`` if two workloads of one name would share a results folder."""
        known = {spec.workload.name: spec.workload for other in self.plans for spec in other.trials}
        for spec in plan.trials:
            other = known.get(spec.workload.name)
            if other is not None and other != spec.workload:
                raise PlanError(
                    f"two workloads are named {other.name!r}: {other.target} and {spec.workload.target}; "
                    "give one of the classes another name with a class attribute `name`"
                )
        if all(other.digest != plan.digest for other in self.plans):  # else its file was given twice
            self.plans.append(plan)

    @property
    def engine(self) -> SlotEngine:
        self._before_use()
        with self._lock:
            if self._engine is None:
                with SIGINT_HELD:
                    from pytest_aorta.launch.engine import SlotEngine

                elastic, resources = self.selection.execution.elastic, self.selection.resources
                self._engine = SlotEngine(
                    resources=resources,
                    grace=self.selection.limits.grace,
                    results=self.store.results,
                    elastic=elastic if is_multi_node(elastic) else None,
                    run=self.store.stamp,
                    identity=_code_identity(self.plans) if resources.hosts else None,
                )
            return self._engine

    def check(
        self, spec: TrialSpec, timeout: float | None = None, patience: float | None = None
    ) -> PreparedCell | None:
        """Prepare a cell; returns ``None`` if it cannot be prepared, which each trial then records.

        ``timeout`` and ``patience``: as for ``SlotEngine.check``.

        Raises:
            ConfigError, LaunchModeError, EngineUnusable: what would prevent every trial, as ``SlotEngine.check``.
        """
        if spec.execution.isolation == "none":
            from pytest_aorta.launch.inprocess import check_here

            return check_here(spec)
        return self.engine.check(spec, timeout, patience)

    def find(self, spec: TrialSpec, paths: TrialPaths, timeout: float | None = None) -> TrialJob | None:
        """With ``--aorta-resume``, the trial with its earlier result, if that is of the same request; else ``None``.

        ``timeout``: as of ``check``.
        """
        if not self.selection.resume or paths in self._started:
            return None
        from pytest_aorta.launch.job import TrialJob

        since = self.selection.since

        def changes(record: TrialResult) -> list[str]:
            return [_OLD] if (record.started_at or "") < since else self._changes(spec, paths, record, timeout)

        record = self.store.kept(paths, changes)
        if record is not None:
            _log.info("%s: the earlier result is kept", spec.item_name)
        elif why := self.store.not_kept.get(paths):
            _log.info("%s: the earlier result is not kept: %s", spec.item_name, "; ".join(why))
        return None if record is None else TrialJob.of_earlier_run(spec, self.store.artifacts(paths), record)

    def _changes(self, spec: TrialSpec, paths: TrialPaths, record: TrialResult, timeout: float | None) -> list[str]:
        try:
            cell = self.check(spec, timeout)
        except Exception:
            cell = None
        if cell is None:  # the trial's record will explain it
            return ["its cell cannot be prepared now"]
        request, earlier = cell.request(spec), parts_of(record)

        def installed(digest: str) -> Mapping[str, str] | None:
            listing = cell.info.packages or {}
            versions: Mapping[str, str] = listing.get("versions", {})
            return versions if listing.get("digest") == digest else self.store.packages(digest)

        def concerning(changed: Collection[str]) -> Collection[str]:
            """The changed distributions that the trials of the cell have imported."""
            from pytest_aorta.trials.installed import concerned, site_packages

            modules, venv = self.store.imported_modules(paths), spec.environment.venv
            is_here = spec.environment.docker is None and bool(modules)
            own = "" if is_command(spec.workload.target) else spec.workload.source_package.partition(" ")[0]
            return concerned(changed, modules, site_packages(venv), own) if is_here else changed

        if fingerprint(request) != record.request_fingerprint:
            if changed := differences(earlier, request, installed, concerning):
                return changed
            same = {**request, **{name: earlier.get(name) for name in ("packages",) if name in request}}
            if fingerprint(same) != record.request_fingerprint:
                return [UNKNOWN]
        if unknown := _cannot_be_known(spec, cell.info.config, earlier):
            return [unknown]
        return changed_files(later := earlier.get(IMPORTED_LATER, {}), cell.info.digests_now(later))

    def start(
        self, spec: TrialSpec, paths: TrialPaths, deadline: float | None = None, *, urgent: bool = True
    ) -> TrialJob:
        """Start a trial; an ``urgent`` one comes before those that wait for a slot. An earlier result is retired."""
        self._started.add(paths)
        if spec.execution.isolation == "none":
            from pytest_aorta.launch.inprocess import JobInProcess

            self.store.retire(paths)
            folder, workers = self.store.artifacts(paths), self.selection.resources.workers
            here = JobInProcess(spec, folder, self._temporary(), workers)
            here.on_result = self._on_result
            return here

        def begin(job: TrialJob) -> None:
            self.store.retire(paths)
            self._on_start(job, paths)

        return self.engine.launch(
            spec,
            self.store.artifacts(paths),
            deadline,
            urgent=urgent,
            on_start=begin,
            on_result=self._on_result,
            on_packages=self.store.write_packages,
            make_room=lambda: self._make_room(paths),
        )

    def _temporary(self) -> TemporaryFolders:
        if self._folders is None:
            from pytest_aorta.launch.host.folders import TemporaryFolders

            self._folders = TemporaryFolders()
        return self._folders

    def _make_room(self, paths: TrialPaths) -> bool:
        if self.store.is_writer:
            return self.store.make_room(paths)
        if not self.store.resume:
            self.store.retire(paths)
        return not self.store.resume

    def close(self) -> None:
        """End all processes, and remove their temporary files."""
        if self._folders is not None:
            self._folders.close()
        if self._engine is not None:
            self._engine.close()


#: Why a result is not kept if the user asks for a new run.
_OLD = "it is of an earlier run"


def _cannot_be_known(spec: TrialSpec, config: Mapping[str, Any], earlier: Mapping[str, Any]) -> str:
    """Why it is not known on which files the result of a command depends; empty if it is known."""
    if not is_command(spec.workload.target) or config.get("depends") or earlier.get(IMPORTED_LATER):
        return ""
    words = command_words(config["command"])
    if tells_what_it_reads(words):
        return ""
    return f"what {words[0]!r} reads is not known; --aorta-depends PATH says which files its result depends on"


def _code_identity(plans: list[Plan]) -> Mapping[str, str]:
    from pytest_aorta.runtime.hosts import code_identity, package_files

    files: dict[str, Path] = package_files("pytest_aorta")
    for target in {spec.workload.target for plan in plans for spec in plan.trials}:
        where = target.rpartition(":")[0]
        if where.endswith(".py"):
            files[str(Path(where).absolute())] = Path(where).absolute()
            continue
        top = where.partition(".")[0]
        module = importlib.util.find_spec(top)
        if module is not None and module.submodule_search_locations:
            files |= package_files(top)
        elif module is not None and module.origin:
            files[str(module.origin)] = Path(module.origin)
    return code_identity(files)


def check_elastic(execution: Execution, spell: Spelling) -> None:
    options = execution.elastic
    given = options.given()

    def refuse(name: str, value: object, why: str) -> None:
        text = ":".join(map(str, value)) if isinstance(value, tuple) else value
        raise RequestError(f"{spell('elastic', f'{name}={text}')}: {why}")

    if execution.launcher == "external" or (execution.launcher == "auto" and under_launcher()):
        why = "pytest is a rank, and the launcher that has started it is the agent; give the option to that launcher"
        for name, value in given.items():
            refuse(name, value, why)
    if execution.launcher == "torchrun":
        for name in (name for name in _NOT_OF_TORCHRUN if name in given):
            why = f"torchrun has no such option, or does nothing with it; use {spell('launcher', 'auto')}"
            refuse(name, given[name], why)
        for name in ("master_addr", "master_port"):
            if name in given and options.rdzv_backend != "static":
                refuse(name, given[name], "torchrun uses it with rdzv_backend=static only")
    least, most = options.nnodes
    if is_multi_node(options) and options.node_rank is not None and options.node_rank >= most:
        refuse("node_rank", options.node_rank, f"of {most} nodes, the last one is {most - 1}")
    if is_multi_node(options) and options.rdzv_backend == "static" and least != most:
        refuse("nnodes", options.nnodes, "with rdzv_backend=static the number of nodes is fixed")


def check_resources(selection: Selection, spell: Spelling, *, parallel: bool = False) -> None:
    """Refuse devices that do not exist or cannot be leased, and options for parallel trials that exclude each other.

    ``spell``: spells options in messages. ``parallel``: whether several processes start trials, as with ``-n``.
    """
    from pytest_aorta.runtime.resources.devices import choose_devices, devices_text, find_devices
    from pytest_aorta.runtime.resources.leases import LeaseError, Leases

    check_elastic(selection.execution, spell)
    resources, in_pytest = selection.resources, selection.execution.isolation == "none"
    if resources.own_cores and in_pytest:
        raise RequestError(
            f"{spell('slots', 'own-cores')} and {spell('isolation', 'none')}: "
            "a trial in pytest's own process has that process's cores"
        )
    if resources.total_slots > 1 or resources.hosts:
        option = spell("host", "").rstrip(" =") if resources.hosts else spell("slots", resources.slots)
        if parallel:
            raise RequestError(f"{option} and -n both run trials side by side; use one of them")
        if under_launcher():
            raise RequestError(f"{option}: pytest is a rank of an outer launcher, and runs one trial at a time")
    if (devices := resources.devices) is not None:
        option = spell("devices", devices_text(devices))
        if in_pytest:
            raise RequestError(
                f"{option} and {spell('isolation', 'none')}: a trial in pytest's own process has that process's devices"
            )
        if devices and under_launcher():
            raise RequestError(f"{option}: pytest is a rank of an outer launcher, which gives out the devices")
        if devices and not resources.hosts:
            try:
                Leases(choose_devices(devices, find_devices()))
            except (ValueError, LeaseError, OSError) as error:
                raise RequestError(f"{option}: {error}") from None
    if is_multi_node(selection.execution.elastic):
        if not resources.hosts:
            check_step(selection.execution.elastic)
        for given, option in ((parallel, "-n"), (resources.slots > 1, spell("slots", "").rstrip(" ="))):
            if given:
                raise RequestError(
                    f"{spell('elastic', 'nnodes')}: trials of several nodes run one at a time, without {option}"
                )


def check_results(selection: Selection, results: Path, source: str) -> None:
    """Make the results directory; ``source``: where the user has named it.

    Raises ``RequestError`` if it cannot be used, or if other tasks of SLURM write the same trials there.
    """
    check_tasks(selection.results_dir, selection.execution.elastic)
    try:
        results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results):
            pass
    except OSError as error:
        raise RequestError(f"{source}: cannot write there: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise RequestError(f"{source}: {error}") from None
