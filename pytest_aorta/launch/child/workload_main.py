"""Preparing a workload, and running one trial of it, in the process of that trial or rank."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.launch.child.bootstrap import sitecustomize
from pytest_aorta.launch.child.learned_imports import LearnedImports, import_in_advance
from pytest_aorta.probe.collect import (
    StaticEnv,
    collect_end,
    collect_env,
    collect_static,
    refreshed,
    surroundings,
)
from pytest_aorta.probe.loaded import Children, Watch, children_now, had_children_since
from pytest_aorta.probe.software import package_list
from pytest_aorta.probe.variables import recorded_variables, settings
from pytest_aorta.runtime import process_tree
from pytest_aorta.trials.command_line import COMMAND_TARGET
from pytest_aorta.trials.execution import NAMES, note_tmp
from pytest_aorta.trials.lifecycle import Lifecycle
from pytest_aorta.trials.loading import (
    TrialIsolation,
    added_options,
    describe,
    imported_later,
    load_class,
    resolve_config,
    set_arguments,
    supports_process,
    with_added,
)
from pytest_aorta.trials.records import Send
from pytest_aorta.trials.seeding import ProcessSeeds, random_seed

if TYPE_CHECKING:
    from pytest_aorta.launch.launch_mode import PrepareArgument, TrialPayload, WorkloadArgument


def join_group(cls: type[Any], config: Any) -> None:
    distributed = getattr(cls, "launch_mode", None) == "distributed" and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not distributed or not supports_process(cls) or not hasattr(cls, "isolated_distributed_backend"):
        return
    import torch
    import torch.distributed as dist

    backend = cls.isolated_distributed_backend(config)
    if backend == "auto":
        default = "nccl" if torch.cuda.is_available() else "gloo"
        backend = {"cpu": "gloo", "cuda": "nccl"}.get(config.get("device", "auto"), default)
    if not dist.is_initialized():
        dist.init_process_group(backend)


def leave_group(cls: type[Any]) -> None:
    dist = sys.modules.get("torch.distributed")
    if dist is not None and supports_process(cls):
        with contextlib.suppress(Exception):  # the other ranks may have gone
            if dist.is_available() and dist.is_initialized():
                dist.destroy_process_group()


def launcher_variables(base: int | None, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of this process whose values differ from those of ``base``, the process that started the launcher.

    Of those that a trial file may hold, without those of the trial's place. Empty when there is no such process, or it
    may not be read.
    """
    if base is None:
        return {}
    try:
        content = Path(f"/proc/{base}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in content.split(b"\0"))
    before = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return recorded_variables(
        {name: value for name, value in environ.items() if before.get(name) != value and name not in NAMES}
    )


_static: StaticEnv | None = None
_seeds: ProcessSeeds | None = None
#: Those that the workload's import has found.
_variables: dict[str, str] = {}
#: Digests of the source files that were imported when the workload was prepared.
_sources: Mapping[str, str] = {}
#: Digests of those that were imported in advance, for the trials that are forked afterwards.
_sources_in_advance: Mapping[str, str] = {}
_class: type[Any] | None = None
#: Names of the variables that the workload wants to have at its start.
_startup: tuple[str, ...] = ()
#: Reports what the trial of this process imports.
learner: LearnedImports | None = None
#: Whether what was imported for the trials has started other programs.
_had_children = False


def load(argument: WorkloadArgument, seed: int | None = None, modules: Iterable[str] = ()) -> None:
    """Import ``modules`` and the workload, whose generators get this seed."""
    global _seeds, _variables
    _variables = settings(os.environ)
    _seeds = ProcessSeeds(random_seed() if seed is None else seed)
    _seeds.start()
    note_tmp()
    set_arguments(argument["target"])
    before = children_now()
    try:
        import_in_advance(modules)
    except ImportError as error:
        raise ImportError(f"--aorta-preload {error}") from error
    load_class(argument["target"])
    _note_children(before)


def seeds() -> ProcessSeeds:
    """Those of this process, once it has loaded a workload."""
    assert _seeds is not None
    return _seeds


def _note_children(before: Children) -> None:
    global _had_children
    _had_children = _had_children or had_children_since(before)


def prepare(argument: WorkloadArgument) -> dict[str, Any]:
    """Describe the workload that was loaded; take the snapshot of what will not change."""
    global _static, _sources, _startup, _class
    _class = load_class(argument["target"])
    description = describe(_class, argument["overrides"], argument["steps"])
    assert _seeds is not None
    _seeds.note_kept()
    source = description["source"]
    _static = collect_static(Path(source) if source else None)
    description["packages"] = package_list(_static.installed)
    description["surroundings"] = surroundings(_static, _variables)
    _sources = description["sources"]
    _startup = tuple(description["startup_variables"])
    return description


def import_learned(argument: PrepareArgument) -> None:
    """Import what a trial has imported, for those that will be forked from this process; raises ``ImportError``."""
    global _static, _sources_in_advance
    before = children_now()
    import_in_advance(argument["learned"], argument["cores"])
    _note_children(before)
    if reasons := _reasons_against_learning():
        raise ImportError(", ".join(reasons))
    if _static is not None and _class is not None:
        _sources_in_advance = imported_later(_class, _static.modules, _sources)
        _static = refreshed(_static)


def _reasons_against_learning() -> list[str]:
    if children := process_tree.children_of_self():
        return [f"started {process_tree.describe(pid)}" for pid in children]
    if (pid := os.fork()) == 0:
        os._exit(0)
    if (code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) != 0:
        return [f"has left a handler at whose hands a forked process ends with status {code}"]
    return []


def use_seed(seed: int) -> None:
    """Seed the generators of this process, unless it has imported the workload with this very seed."""
    if _seeds is not None and _seeds.seed != seed:
        _seeds.restart(seed)


def run_workload(
    payload: TrialPayload, send: Send, steps: Path, on_error: Callable[[BaseException], object] = lambda error: None
) -> bool:
    """Take the environment snapshot, then run all phases; whether setup and run succeeded.

    The last step is kept in the file ``steps``. ``on_error`` takes what setup or run has raised, before the cleanup.
    """
    global learner
    began = time.monotonic()
    env = collect_env(_static, [*payload["watched"], *NAMES, *_startup]).to_dict()
    # Of the ranks of a node, the first is the one whose snapshot can become the trial's.
    is_first = payload["mode"] == "single" or os.environ.get("LOCAL_RANK", "0") == "0"
    watch = Watch(payload["watched"], _had_children) if payload["watched"] and is_first else None
    assert _seeds is not None
    variables = launcher_variables(payload["base_pid"])
    send({"type": "env", "env": env, "launcher_variables": variables, "seeds": _seeds.record()})
    cls = load_class(payload["target"])
    isolation: TrialIsolation = "process" if supports_process(cls) else "in_process"
    added = added_options(
        payload["trial_id"], payload["environment"], payload["overlay"], payload["collect"], isolation
    )
    config = with_added(cls, resolve_config(cls, payload["overrides"], payload["steps"]).value, added)
    if payload["watch_imports"] and _static is not None:
        learner = LearnedImports(_seeds, send)

    def after_run() -> None:
        if learner is not None:
            learner.end()
        if watch is not None:
            watch.limit(payload["timeout"], payload["stall_timeout"], spent=time.monotonic() - began)
        later = imported_later(cls, None if _static is None else _static.modules, _sources)
        later = {**_sources_in_advance, **later}
        send({"type": "env_end", "end": collect_end(watch=watch).to_dict(), "sources": later})

    collecting = None
    if payload["collect"] and payload["target"] != COMMAND_TARGET:  # its processes collect for themselves
        with contextlib.suppress(Exception):
            collecting = sitecustomize.start_collectors(rank=0)
    lifecycle = Lifecycle(cls, config, send, steps, before_setup=lambda: join_group(cls, config))
    if collecting is not None:
        lifecycle.clock.also_tell = collecting.report
    try:
        succeeded = lifecycle.run_all(on_error, after_run)
    finally:
        if collecting is not None:
            collecting.stop()
    leave_group(cls)
    send({"type": "lived", "at": time.time()})
    with contextlib.suppress(OSError, ValueError):  # closed by the workload, or the disk is full
        sys.stdout.flush()
    return succeeded
