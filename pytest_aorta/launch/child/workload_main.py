"""Preparing a workload, and running one trial of it, in the process of that trial or rank."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.launch.child.bootstrap import sitecustomize
from pytest_aorta.launch.launch_mode import COMMAND_RANKS_TARGET, SCRIPT, SCRIPT_TARGET
from pytest_aorta.probe.collect import (
    StaticEnv,
    collect_end,
    collect_env,
    collect_static,
    of_interpreter,
    refreshed,
    surroundings,
)
from pytest_aorta.probe.loaded import Watch, children_now
from pytest_aorta.probe.software import package_list
from pytest_aorta.probe.variables import recorded_variables, settings
from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime.process_tree import open_gpu_devices, reasons_against_forking
from pytest_aorta.trials.command_line import COMMAND_TARGET, command_words, takes_hash_seed
from pytest_aorta.trials.execution import HASH_SEED, NAMES, note_tmp
from pytest_aorta.trials.installed import WatchedImports, imported_modules
from pytest_aorta.trials.lifecycle import Lifecycle
from pytest_aorta.trials.loading import (
    INSTALLED,
    ReadBelow,
    TrialIsolation,
    describe,
    imported_later,
    load_class,
    resolve_config,
    set_arguments,
    source_root,
    with_added,
)
from pytest_aorta.trials.records import Send
from pytest_aorta.trials.seeding import GENERATORS, ProcessSeeds, generator_state, random_seed

if TYPE_CHECKING:
    from pytest_aorta.launch.launch_mode import ChildArgument, WorkloadArgument

_static: StaticEnv | None = None
#: Seeds of this process, once it has loaded a workload.
seeds: ProcessSeeds | None = None
#: ``PYTHONHASHSEED`` of this process.
hash_seed: int | None = None
#: Reasons against forking after the workload's import.
_variables: dict[str, str] = {}
#: Digests of the source files that were imported when the workload was prepared.
_sources: Mapping[str, str] = {}
#: Digests of files that were imported in advance for the trials that are forked afterwards.
_sources_in_advance: Mapping[str, str] = {}
_class: type[Any] | None = None
#: Names of the variables that the workload needs at its start.
_startup: tuple[str, ...] = ()
#: Reports what the trial of this process imports.
learner: LearnedImports | None = None
#: Whether imports for the trials have started other programs.
_had_children = False


def load(argument: WorkloadArgument, seed: int | None = None) -> None:
    """Import the modules to preload, then the workload under this seed; ranks import a script themselves."""
    global seeds, hash_seed, _variables, _had_children
    hash_seed = _own_hash_seed()
    if argument.get("hash_seed") is not None:
        os.environ.pop("PYTHONHASHSEED", None)  # a process that a trial starts draws its own
    _variables = settings(os.environ)
    note_tmp()
    if argument["target"] in (SCRIPT_TARGET, COMMAND_RANKS_TARGET):
        return
    seed = argument.get("import_seed") if seed is None else seed
    seeds = ProcessSeeds(random_seed() if seed is None else seed)
    set_arguments(argument["target"])
    before = children_now()
    if modules := argument.get("preload"):
        try:
            import_in_advance(modules)
        except ImportError as error:
            raise ImportError(f"--aorta-preload {error}") from error
    load_class(argument["target"])
    _had_children = children_now() != before


def _own_hash_seed() -> int | None:
    """``PYTHONHASHSEED`` as this interpreter read it at its start; ``None`` if the interpreter drew a secret seed."""
    with contextlib.suppress(OSError):
        for entry in Path("/proc/self/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == b"PYTHONHASHSEED" and value.isdigit():
                return int(value)
    return None


def prepare_workload(argument: WorkloadArgument) -> dict[str, Any]:
    """Describe the loaded workload, script or command, and take the part of the snapshot that will not change."""
    global _static, _sources, _startup, _class
    target = argument["target"]
    if target == SCRIPT_TARGET:
        options = dict(argument["overrides"])
        digest, source = options.pop("digest"), options.pop("source")
        description: dict[str, Any] = {
            "min_world_size": 1,
            "result_scope": "global",
            "timeout_sec": None,
            "source": source,
            "sources": {} if source is None else {Path(source).name: digest or ""},
            "config": options,
        }
    else:
        _class = load_class(COMMAND_TARGET if target == COMMAND_RANKS_TARGET else target)
        description = describe(_class, argument["overrides"], argument["steps"])
    if target in (SCRIPT_TARGET, COMMAND_RANKS_TARGET):
        description["launch_mode"] = SCRIPT
    if seeds is not None:
        seeds.note_kept()
    source = description["source"]
    python = description.pop("interpreter", None) or argument.get("interpreter")
    if (static := argument.get("static")) is not None:
        _static = StaticEnv.of_this_process(static)
    else:
        _static = collect_static(Path(source) if source else None)
        if python is not None:  # that of the command, or of its environment
            _static = of_interpreter(_static, python)
        description["static"] = _static.to_plain()
    description["packages"] = package_list(_static.installed)
    description["surroundings"] = surroundings(_static, _variables)
    _sources = description["sources"]
    _startup = tuple(description.get("startup_variables", ()))
    return description


def import_learned(modules: Sequence[str], cores: Sequence[int] | None) -> None:
    """Import what a trial has imported, for the trials forked from this process later; raises ``ImportError``."""
    global _static, _sources_in_advance, _had_children
    before = children_now()
    import_in_advance(modules, cores)
    _had_children = _had_children or children_now() != before
    if children := process_tree.children_of_self():
        raise ImportError(", ".join(f"started {process_tree.describe(pid)}" for pid in children))
    if (pid := os.fork()) == 0:
        os._exit(0)
    if (code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) != 0:
        raise ImportError(f"has left a handler at whose hands a forked process ends with status {code}")
    if _static is not None and _class is not None:
        _sources_in_advance = imported_later(_class, _static.modules, _sources)
        _static = refreshed(_static)


class _Empty:
    def __init__(self, config: Any) -> None: ...

    def setup(self) -> None: ...

    def run(self) -> dict[str, bool]:
        return {"passed": True}


def rehearse() -> None:
    """Do once what every trial does, so that a process that is forked ahead already owns the pages for it."""

    def send(event: Any) -> None:
        json.dumps(event, default=asdict)

    send({"env": snapshot(()), "seeds": seeds and seeds.record()})
    Lifecycle(_Empty, {}, send).run_all(after_run=lambda: send({"end": collect_end(over=False)}))


def use_seed(seed: int) -> None:
    """Seed the generators of this process, unless it imported the workload with this very seed."""
    if seeds is not None and seeds.seed != seed:
        seeds.restart(seed)


def snapshot(watched: Iterable[str]) -> dict[str, Any]:
    """Snapshot of the environment of this process, with ``variables`` besides the ones that are always recorded."""
    return collect_env(_static, [*watched, *NAMES, *_startup]).to_dict()


def launcher_variables(base: int) -> dict[str, str]:
    """Variables whose values differ between this process and ``base``, the process that started the launcher.

    Only variables that a trial file may hold, except the trial's folders. Empty if ``base`` may not be read.
    """
    try:
        before = set(Path(f"/proc/{base}/environ").read_bytes().split(b"\0"))
    except OSError:
        return {}
    variables = {}
    for name, value in os.environ.items():
        if name not in NAMES and os.fsencode(f"{name}={value}") not in before:
            variables[name] = value
    return recorded_variables(variables)


def run_workload(
    payload: ChildArgument, send: Send, steps: Path, on_error: Callable[[BaseException], object] | None = None
) -> bool:
    """Take the environment snapshot, then run all phases; returns whether setup and run succeeded.

    ``steps``: file for the last step. ``on_error`` gets the exception of setup or run, before the cleanup.
    """
    global learner
    began = time.monotonic()
    env = snapshot(payload["watched"])
    # Of the ranks of a node, the first is the one whose snapshot can become the trial's.
    is_first = payload["mode"] == "single" or os.environ.get("LOCAL_RANK", "0") == "0"
    watch = Watch(payload["watched"], _had_children) if payload["watched"] and is_first else None
    assert seeds is not None
    base = payload["base_pid"]
    variables = {} if base is None else launcher_variables(base)
    cls = load_class(payload["target"])
    config = resolve_config(cls, payload["overrides"], payload["steps"]).value
    own_hashes = hash_seed
    if HASH_SEED in os.environ and own_hashes is None and config.observe != "none":
        own_hashes = int(os.environ[HASH_SEED]) if takes_hash_seed(command_words(config.command)) else None
    drawn = replace(seeds.record(), hash=own_hashes)
    send({"type": "env", "env": env, "launcher_variables": variables, "seeds": drawn})
    supported = getattr(cls, "trial_isolation_supported", ())
    isolation: TrialIsolation = "process" if "process" in supported else "in_process"
    of_trial = payload["trial_id"], payload["environment"], payload["overlay"], payload["collect"]
    config = with_added(config, cls, isolation, *of_trial)
    if payload["watch_imports"] and _static is not None:
        learner = LearnedImports(seeds, send)
    timed = TimedImports() if payload["mode"] != "single" and is_first else None

    reads = None
    if payload["target"] not in (COMMAND_TARGET, COMMAND_RANKS_TARGET, SCRIPT_TARGET) and is_first:
        reads = ReadBelow(source_root(cls), *([] if payload["cwd"] else [Path.cwd()]))

    def before_setup() -> None:
        if getattr(cls, "launch_mode", None) != "distributed" or int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return
        import torch
        import torch.distributed as dist

        backend = cls.isolated_distributed_backend(config)
        if backend == "auto":
            default = "nccl" if torch.cuda.is_available() else "gloo"
            backend = {"cpu": "gloo", "cuda": "nccl"}.get(config.get("device", "auto"), default)
        if not dist.is_initialized():
            dist.init_process_group(backend)
            if backend == "gloo":
                dist.barrier()  # connecting fails in the other ranks if one has left by then

    def after_run() -> None:
        if learner is not None:
            learner.end()
        if timed is not None and (imports := timed.end()):
            send({"type": "imports_sec", "imports": imports})
        if watch is not None:
            watch.limit(payload["timeout"], payload["stall_timeout"], spent=time.monotonic() - began)
        later = imported_later(cls, None if _static is None else _static.modules, _sources)
        later = {**_sources_in_advance, **later}
        # Those of the process that only starts a command are not the command's.
        modules = [] if payload["target"] == COMMAND_TARGET else imported_modules()
        noted = [] if reads is None else reads.paths()
        end = collect_end(watch=watch)
        send({"type": "env_end", "end": end, "sources": later, "modules": modules, "reads": noted})

    collecting = None
    if payload["collect"] and payload["target"] != COMMAND_TARGET:  # its processes collect for themselves
        with contextlib.suppress(Exception):
            collecting = sitecustomize.start_collectors(rank=0)
    joins = isolation == "process" and hasattr(cls, "isolated_distributed_backend")  # as AORTA's runner does it
    lifecycle = Lifecycle(cls, config, send, steps, before_setup=before_setup if joins else None)
    if collecting is not None:
        lifecycle.clock.also_tell = collecting.report
    try:
        succeeded = lifecycle.run_all(on_error, after_run)
    finally:
        if collecting is not None:
            collecting.stop()
    dist = sys.modules.get("torch.distributed")
    if dist is not None and isolation == "process":
        with contextlib.suppress(Exception):  # the other ranks may have gone
            if dist.is_available() and dist.is_initialized():
                dist.destroy_process_group()
    send({"type": "lived", "at": time.time()})
    with contextlib.suppress(OSError, ValueError):  # closed by the workload, or the disk is full
        sys.stdout.flush()
    return succeeded


# Learn what a trial imports from installed packages, and import it once in the zygote for later trials.

#: Variable in which torch keeps a folder below TMPDIR, which differs per trial; torch computes it again if it is unset.
_MEMO = "TORCHINDUCTOR_CACHE_DIR"


def import_in_advance(modules: Iterable[str], cores: Sequence[int] | None = None) -> None:
    """Import modules in order, on the ``cores`` that the trials will have: libraries count cores when they are loaded.

    Raises:
        ImportError: an import failed, printed, or made forks unsafe; the message starts with the name of the module.
    """
    before, had_memo = os.sched_getaffinity(0), _MEMO in os.environ
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        for name in modules:
            said = _output()
            try:
                importlib.import_module(name)
            except BaseException as error:
                described = describe_exception(error)
                why = f"raises {described['type']}: {described['message']}"
                raise ImportError(f"{name}: its import in advance {why}") from error
            if why := ", ".join(reasons_against_forking()) or ("prints" if _output() != said else ""):
                raise ImportError(f"{name}: its import in advance {why}")
    finally:
        os.sched_setaffinity(0, before)
        if not had_memo:
            os.environ.pop(_MEMO, None)


class _InstalledImports(WatchedImports):
    """Watches modules of distributions that run code, and none of the standard library."""

    def wants(self, name: str) -> bool:
        return name.partition(".")[0] not in sys.stdlib_module_names

    def concerns(self, spec: importlib.machinery.ModuleSpec) -> bool:
        has_code = spec.origin is not None and super().concerns(spec)
        return has_code and any(folder in INSTALLED for folder in str(spec.origin).split(os.sep))


class LearnedImports(_InstalledImports):
    """Reports each import from site-packages that is not part of another one, in order.

    It stops at the first import that would have another effect before the trial, or at the end of ``run()``. Imports of
    the standard library and of the workload's own files are left to the trial.
    """

    def __init__(self, seeds: ProcessSeeds, send: Send) -> None:
        self._seeds = seeds
        self._send = send
        self._over = self._importing = False
        super().__init__()
        self.move_here()

    def move_here(self) -> None:
        """Watch this process, which may be a fork of the one in which this was made."""
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._expected = _state()

    def end(self, note: str | None = None) -> None:
        """Stop watching; ``note`` says why."""
        if not self._over:
            self._over = True
            with contextlib.suppress(OSError):  # the workload has closed the channel
                self._send({"type": "imports_over", "note": note})

    def wants(self, name: str) -> bool:
        elsewhere = threading.get_ident() != self._thread
        over = self._over or os.getpid() != self._process or (self._importing and not elsewhere)
        return not over and super().wants(name)

    def concerns(self, spec: importlib.machinery.ModuleSpec) -> bool:
        if not super().concerns(spec):
            return False
        if threading.get_ident() != self._thread:
            self.end(f"{spec.name}: a thread imported it")
            return False
        return True

    def execute(self, name: str, execute: Callable[[ModuleType], object], module: ModuleType) -> None:
        before = _state(name)
        own = {it: value for it, value in self._expected.items() if not it.startswith(("random", "the output"))}
        if not (self._over or self._importing) and (changed := _difference(own, before)) is not None:
            self.end(f"{name}: {changed} had been changed before it was imported")
        if self._over or self._importing:
            execute(module)
            return
        missing = [it for it in GENERATORS if it not in sys.modules or it == name]
        self._importing = True
        try:
            execute(module)
        except BaseException as error:
            self.end(f"{name}: its import raised {type(error).__name__}")
            raise
        finally:
            self._importing = False
        self._expected = _state()
        drawn = (it for it in missing if it in sys.modules and not self._seeds.is_fresh(it))
        left = _difference(before, self._expected) or next((f"random numbers of {it}" for it in drawn), None)
        if left is not None:
            self.end(f"{name}: its import changes {left}")
        else:
            with contextlib.suppress(OSError):
                self._send({"type": "imported", "module": name})


class TimedImports(_InstalledImports):
    """Times each import from site-packages that is not part of another one, in the thread that makes this."""

    def __init__(self) -> None:
        self._sec: dict[str, float] = {}
        self._thread, self._importing = threading.get_ident(), False
        super().__init__()

    def end(self) -> dict[str, float]:
        """Stop watching; returns seconds by module, without quick imports."""
        with contextlib.suppress(ValueError):  # the workload has taken it out
            sys.meta_path.remove(self)
        return {name: sec for name, sec in self._sec.items() if sec >= _SLOW_IMPORT}

    def wants(self, name: str) -> bool:
        return not self._importing and threading.get_ident() == self._thread and super().wants(name)

    def execute(self, name: str, execute: Callable[[ModuleType], object], module: ModuleType) -> None:
        if self._importing:
            execute(module)
            return
        self._importing, began = True, time.monotonic()
        try:
            execute(module)
        finally:
            self._importing, self._sec[name] = False, time.monotonic() - began


#: Seconds below which an import is quick.
_SLOW_IMPORT = 0.05


def _state(importing: str | None = None) -> dict[str, Any]:
    """State that an import could see and change, named for messages, without the module ``importing`` now."""
    environ = dict(os.environ)
    environ.pop(_MEMO, None)
    logging = sys.modules.get("logging")
    state: dict[str, Any] = {
        "os.environ": environ,
        "sys.path": list(sys.path),
        "sys.argv": sys.argv[1:],  # ``python -m`` changes the first one when it has found the module
        "the working directory": None,
        "the limit of recursion": sys.getrecursionlimit(),
        "the handlers of signals": list(map(signal.getsignal, sorted(signal.valid_signals()))),
        "the handlers of logging": [30, 0],  # as its import leaves it
        "the open devices": open_gpu_devices(),
        "the output": _output(),
    }
    with contextlib.suppress(Exception):  # whatever the workload has done to it
        state["the working directory"] = os.getcwd()
    if logging is not None:
        root = logging.root
        state["the handlers of logging"] = [root.level, root.manager.disable, *root.handlers]
    for name in GENERATORS:
        if name in sys.modules and name != importing:
            state[f"random numbers of {name}"] = generator_state(name)
    if importing != "torch" and (torch := sys.modules.get("torch")) is not None:
        names = ("get_default_dtype", "is_grad_enabled", "are_deterministic_algorithms_enabled")
        state["settings of torch"] = None
        with contextlib.suppress(Exception):
            state["settings of torch"] = [getattr(torch, name)() for name in names]
    return state


def _output() -> Any:
    """Bytes in the files of standard output and standard error; ``None`` for pipes."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # replaced or closed by the workload
            stream.flush()
    with contextlib.suppress(OSError):
        return os.fstat(1).st_size, os.fstat(2).st_size
    return None


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """The first name whose values differ; names in only one of the states do not count."""
    return next((name for name, value in before.items() if after.get(name, value) != value), None)
