"""A trial in pytest's process, for debugging with ``--pdb``: no isolation, no deadline, no logs."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from pytest_aorta.launch.environment import PreparedCell, WorkloadInfo
from pytest_aorta.launch.host.folders import PrivateFolders, TemporaryFolders, clear_place, make_place
from pytest_aorta.launch.job import TrialJob
from pytest_aorta.launch.launch_mode import LaunchModeError, LaunchPlan, is_command, resolve_launch
from pytest_aorta.launch.record import build_record, check_claims, request_of, warning_of
from pytest_aorta.probe.collect import StaticEnv, collect_end, collect_env, collect_static, surroundings
from pytest_aorta.probe.loaded import Watch
from pytest_aorta.probe.variables import settings
from pytest_aorta.runtime.resources.devices import threads_of
from pytest_aorta.trials.execution import NAMES, enter, leave, note_tmp, take_place
from pytest_aorta.trials.installed import imported_modules
from pytest_aorta.trials.lifecycle import Lifecycle
from pytest_aorta.trials.loading import (
    ConfigError,
    describe,
    imported_later,
    load_class,
    own_arguments,
    resolve_config,
    with_added,
)
from pytest_aorta.trials.outcome import Observation, conclude, interruption
from pytest_aorta.trials.result import Request, SideBySide, TrialResult
from pytest_aorta.trials.seeding import ProcessSeeds, random_seed
from pytest_aorta.trials.spec import TrialSpec

#: Libraries that read variables when they are imported, and not later.
_READS_VARIABLES = ("numpy", "torch")

#: Source files and surroundings of each class at its first preparation; later trials import more into this process.
_FIRST: WeakKeyDictionary[type[Any], tuple[tuple[str, ...], dict[str, Any]]] = WeakKeyDictionary()

#: Seeds of this process after the import of each workload, by its target.
_SEEDS: dict[str, ProcessSeeds] = {}

#: pytest changes it while a trial runs.
_NOT_RESTORED = "PYTEST_CURRENT_TEST"


def check_here(spec: TrialSpec) -> PreparedCell:
    """Raise ``ConfigError`` or ``LaunchModeError`` for what would prevent every trial of a cell."""
    environment = spec.environment
    needs = (
        ("is to be entered", environment.enter),
        ("has a venv", environment.venv),
        ("has a launcher", environment.launcher),
        ("has a program beside it", environment.beside),
    )
    for what, given in needs:
        if given:
            raise LaunchModeError(
                f"environment {environment.name!r} ({environment.source_package}) {what}, but with "
                "--aorta-isolation none a trial runs in this process; use fork or spawn"
            )
    if spec.collect:
        raise LaunchModeError(
            f"--aorta-collect {','.join(spec.collect)}: with --aorta-isolation none a trial runs in this process, "
            "and collectors look into processes of their own; use fork or spawn"
        )
    if spec.execution.cwd == "copy":
        raise LaunchModeError(
            "--aorta-cwd copy: with --aorta-isolation none a trial runs in this process, whose modules are not "
            "those of a copy; use fork or spawn"
        )
    with own_arguments(spec.workload.target):
        cell = _prepare(spec)
    if cell.info.requires_process:
        raise LaunchModeError(
            f"workload {spec.workload.name} requires a process per trial (trial_isolation_required), but with "
            "--aorta-isolation none a trial runs in this process; use fork or spawn"
        )
    if cell.info.config_error is not None:
        raise ConfigError(cell.info.config_error)
    resolve_launch(spec, cell.info.launch_mode, cell.info.min_world_size)
    return cell


def _prepare(spec: TrialSpec) -> PreparedCell:
    variables = settings(os.environ)
    target = spec.workload.target
    if target not in _SEEDS:
        _SEEDS[target] = ProcessSeeds(random_seed())
        load_class(target)
        _SEEDS[target].note_kept()
    cls = load_class(target)
    description = describe(cls, dict(spec.overrides), spec.steps)
    if cls not in _FIRST:
        _FIRST[cls] = tuple(description["sources"]), surroundings(collect_static(), variables)
    files, around = _FIRST[cls]
    info = WorkloadInfo.model_validate({**description, "surroundings": around})
    info = info.model_copy(update={"sources": info.digests_now(files)})
    return PreparedCell(info, LaunchPlan("single"))  # also of a rank, whose record is of this process alone


class JobInProcess(TrialJob):
    """A trial in this process: ``wait`` runs its phases, and raises the workload's own exceptions.

    From ``setup`` to ``finish``, this process has the trial's variables, ``sys.argv`` and folder for temporary files.
    ``workers`` processes run trials side by side.
    """

    def __init__(self, spec: TrialSpec, folder: Path, temporary: TemporaryFolders, workers: int = 1) -> None:
        super().__init__(spec, folder)
        self.started = True
        self._temporary = temporary
        self._place: PrivateFolders | None = None
        self._undo = contextlib.ExitStack()
        self._side_by_side = SideBySide(
            workers=workers,
            cores=threads_of(os.sched_getaffinity(0)),
            slot=spec.resources.worker,
            job=os.environ.get("SLURM_JOB_ID"),
        )
        self._seen = Observation()
        self._lifecycle: Lifecycle | None = None
        self._start = time.monotonic()
        self._prepared: PreparedCell | None = None
        self._static: StaticEnv | None = None
        self._watch: Watch | None = None
        self._request: Request | None = None
        self._warned = False
        self._seed = random_seed() if spec.given_seed is None else spec.given_seed

    def wait(self, phase: str) -> bool:
        """Run ``setup`` or ``run``; re-raises what the workload raises, with the trial's status attached."""
        try:
            self._run_phase(phase)
        except BaseException as error:
            with contextlib.suppress(Exception):  # an exception that takes no attributes
                error.aorta_exit_status = conclude(self._seen)[0]  # type: ignore[attr-defined]
            raise
        return not self._seen.failed_in(phase)

    def got_through(self, phase: str) -> bool:
        return phase in self._seen.phases_sec and not self._seen.failed_in(phase)

    def failed(self) -> bool:
        """Whether it has failed already, or ended."""
        return bool(self._seen.failures) or self._seen.over() or self._seen.result is not None

    def take_warnings(self) -> list[str]:
        """Warn once if it does not run in its environment, and of options that may have no effect."""
        if self._seen.env is None or self._warned:
            return []
        self._warned = True
        environment = self.spec.environment
        warning = warning_of(environment, check_claims(environment, self._seen.env))
        options = [] if self._prepared is None else self._prepared.info.config_warnings
        return [*([] if warning is None else [warning]), *options]

    def _run_phase(self, phase: str) -> None:
        if phase == "setup":
            request = request_of(self.spec, self.inherited)
            self._request = request.model_copy(update={"seed": self._seed})
            self._enter()
            self._prepared = _prepare(self.spec)
            self._seen.notes += [{"note": text} for text in self._prepared.info.config_warnings]
            startup = self._prepared.info.startup_variables
            os.environ.update({name: value for name, value in startup.items() if name not in os.environ})
            variables = sorted({*self.spec.overlay, *startup})
            if variables and (loaded := [name for name in _READS_VARIABLES if name in sys.modules]):
                note = f"without isolation, {', '.join(variables)} came after the import of {', '.join(loaded)}"
                self._seen.notes.append({"note": f"{note}, which may not read it again"})
            cls = load_class(self.spec.workload.target)
            source = self._prepared.info.source
            self._static = collect_static(Path(source) if source else None)
            recorded = [*self.spec.all_watched, *NAMES, *startup]
            self._seen.see({"type": "env", "env": collect_env(self._static, recorded).to_dict()})
            self._watch = Watch(self.spec.all_watched) if self.spec.all_watched else None
            seeds = _SEEDS[self.spec.workload.target]
            seeds.restart(self._seed)
            self._seen.seeds = seeds.record()
            spec = self.spec
            options = resolve_config(cls, spec.overrides, spec.steps).value
            of_trial = spec.trial_id, spec.environment_data, spec.overlay, list(spec.collect)
            options = with_added(options, cls, "in_process", *of_trial)
            self._lifecycle = Lifecycle(cls, options, self._seen.see)
            self._lifecycle.do("setup", reraise=True)
        elif phase == "run" and self._lifecycle is not None and self._prepared is not None:
            try:
                self._lifecycle.do("run", reraise=True)
            finally:
                later = imported_later(self._lifecycle.cls, None, self._prepared.info.sources)
                end = collect_end(watch=self._watch)
                self._seen.see({"type": "env_end", "end": end, "sources": later, "modules": imported_modules()})

    def _enter(self) -> None:
        undo = self._undo
        note_tmp()
        undo.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
        before = {name: value for name, value in os.environ.items() if name != _NOT_RESTORED}

        def restore() -> None:
            for name in os.environ.keys() - before.keys() - {_NOT_RESTORED}:
                del os.environ[name]
            os.environ.update(before)

        undo.callback(restore)
        if self.spec.origin is not None:
            undo.callback(os.chdir, os.getcwd())
            os.chdir(self.spec.origin.cwd)
            sys.path += [path for path in self.spec.origin.sys_path if path not in sys.path]
        with contextlib.suppress(OSError):  # where results cannot be written, as the record will show
            self.folder.mkdir(parents=True, exist_ok=True)
            self._place = make_place(self.spec.trial_index, self.folder, self._temporary, os.environ)
            command = is_command(self.spec.workload.target)
            take_place(self._place.variables(self.spec.overlay, self.spec.limits, self._seed if command else None))
            if self.spec.execution.cwd == "fresh":
                undo.callback(leave)
                enter(str(self._place.files))
        os.environ.update(self.spec.overlay)
        undo.enter_context(own_arguments(self.spec.workload.target))

    def interrupt(self, why: str) -> None:
        self._seen.lost = interruption(self._seen.phase, why)

    def finish(self) -> TrialResult:
        if self._result is None:
            if self._lifecycle is not None and self._lifecycle.workload is not None:
                self._lifecycle.do("cleanup")
            self._undo.close()
            self._seen.see({"type": "lived"})
            self._seen.returncode = 0
            artifacts: dict[str, str] = {}
            if self._place is not None:
                failed = conclude(self._seen)[1] is not None
                artifacts = clear_place(self._place, self._temporary, failed=failed)
                with contextlib.suppress(OSError):  # where the workload has left something
                    self.folder.rmdir()
            record = build_record(
                self.spec,
                self._seen,
                self._prepared,
                started_at=self._queued_at,
                wall=time.monotonic() - self._start,
                request=self._request,
                side_by_side=self._side_by_side,
                artifacts=artifacts,
            )
            self._result = self.on_result(self, record)
        return self._result
