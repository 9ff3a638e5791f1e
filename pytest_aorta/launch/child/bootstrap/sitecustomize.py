"""Every Python process of a command imports this as it starts: it notes what becomes of the process, for the judge.

How much it watches (``--aorta-observe``) is said by whoever starts it: ``exits`` for the stacks of a crash or hang and
a note at the orderly end, ``full`` also for what a process sees of its children, as the judge of ranks needs it
(``ranks.py``). Where a program makes a process group or spawns processes, ``exits`` becomes ``full`` there.

Before the program begins, ``os.environ`` and ``sys.path`` are as they would be without this file, and a
``sitecustomize`` of the user is imported. The processes that it starts are armed as well: their variables are in the
environment of C, and are added to one that is handed to them. No imports from this package: it may be another
interpreter. None of modules that take time either: every program would pay for them.

A process appends to ``processes/HOST.PID.events`` in the folder of the trial, one literal of Python per line:
its start, its place among ranks, what it has raised, its orderly end, and how the armed children ended that it has
waited for. ``launch.child.rank_files`` reads it.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

TYPE_CHECKING = False  # without the import of ``typing``
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping
    from typing import Any

VARIABLE = "AORTA_BOOTSTRAP"

_HERE = os.path.dirname(os.path.abspath(__file__))

#: Says that ``PYTHONHASHSEED`` was drawn for this process, and not set by the user: its children draw their own.
HASH_SEED = "AORTA_HASH_SEED"

#: Rank, world size and local rank, as launchers name them: torch and DeepSpeed, Open MPI, MPICH and Intel, SLURM.
PLACES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)

#: Other variables that differ between two starts of the ranks.
_STARTS = ("TORCHELASTIC_RESTART_COUNT", "MASTER_PORT", "SLURM_STEP_ID")

#: Largest number of modules that one process notes.
_MOST_MODULES = 2000


def identity(environ: Mapping[str, str]) -> str:
    """The place of a process among ranks, as its launcher has said; empty without a launcher."""
    for names in PLACES:
        if environ.get(names[0], "").isdigit():
            return "/".join(environ.get(name, "") for name in (*names, *_STARTS))
    return ""


class Hook:
    """What this process tells of itself.

    ``known``: the identity of the process that has started it, and ``below`` whether that was a rank: a helper of a
    rank has the variables of the rank. ``stacks``: the file for them; empty below the first program. ``how``:
    ``exits`` or ``full``.
    """

    def __init__(
        self,
        folder: str,
        sockets: str,
        stacks: str,
        number: str,
        pythonpath: str,
        known: str,
        below: str,
        how: str,
        *sys_path: str,
    ) -> None:
        self.folder, self.sockets, self.number = folder, sockets, int(number)
        self.pythonpath, self.known, self.below, self.how = pythonpath, known, below, how
        self.processes = os.path.join(folder, "processes")
        self.has_place = self.has_raised = False
        self._watch: Any = None
        sys.path.extend(path for path in sys_path if path not in sys.path)
        # Python forgets the file of a script when it has run, and the program may change the words.
        script = getattr(sys, "argv", [""])[0]
        script = os.path.abspath(script) if os.path.isfile(script) else ""
        atexit.register(_try, _note_files, os.path.join(folder, "reads.events"), script)
        self.begin(stacks)

    def begin(self, stacks: str = "") -> None:
        if self._watch is not None:
            self._watch.begin()
        self.host, self.pid = os.uname().nodename, os.getpid()
        self.say(start=time.time(), pid=self.pid, parent=os.getppid(), host=self.host)
        own = identity(os.environ)
        if own and own != self.known:
            self.known = own
            rank, world, local, attempt, port, step = own.split("/")
            at = os.environ.get("MASTER_ADDR", "") + ":" + port if port else step
            self.take_place(int(rank), world, local, int(attempt or 0), at)
            stacks = os.path.join(self.folder, "attempt_" + (attempt or "0"), "rank_" + rank + ".stacks.log")
            os.makedirs(os.path.dirname(stacks), exist_ok=True)
        try:
            import faulthandler

            faulthandler.enable(file=2)
            path = stacks or self.path(self.pid, "stacks.log")
            self.stacks = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            faulthandler.register(self.number, file=self.stacks, all_threads=True)
        except (OSError, ValueError):  # then there will be no stacks; the program runs all the same
            pass

    def path(self, pid: int, name: str) -> str:
        return os.path.join(self.processes, self.host + "." + str(pid) + "." + name)

    def say(self, **entry: object) -> None:
        _append(self.path(self.pid, "events"), repr(entry).encode(errors="replace") + b"\n")

    def take_place(self, rank: int, world: str, local: str, attempt: int, group: str) -> None:
        self.has_place, self.below = True, "1"
        size, own = (int(text) if text.isdigit() else None for text in (world, local))
        self.say(rank=rank, world=size, local=own, attempt=attempt, group=group)

    def variables(self, pythonpath: str | None = None) -> dict[str, str]:
        """The variables that arm a child; ``pythonpath``: its own ``PYTHONPATH``."""
        own = self.pythonpath if pythonpath in (None, self.pythonpath[1:]) else "+" + str(pythonpath)
        order = (self.folder, self.sockets, "", str(self.number), own, self.known, self.below, self.how)
        return {VARIABLE: "\x1f".join(order), "PYTHONPATH": os.pathsep.join([_HERE, own[1:]] if own[1:] else [_HERE])}

    # What becomes of this process.

    def end(self) -> None:
        last = getattr(sys, "last_value", None)  # of Python itself, where the program has replaced our excepthook
        if last is not None:
            self.watch.raised(last)
        if not self.has_raised and not isinstance(last, KeyboardInterrupt):
            self.say(lived=time.time())
        if self.has_place and not self.has_raised:
            self.watch.tell_collectives()

    @property
    def watch(self) -> Any:
        """The watcher of ranks, in a file of its own that is loaded when it is first needed."""
        if self._watch is None:
            self._watch = _load(os.path.join(_HERE, "ranks.py")).RankWatch(self, _try, _hidden, _after_import)
        return self._watch

    def watch_all(self) -> None:
        """Follow what this process sees of its children, and what ends it, from now on."""
        self.how = "full"
        for name, value in self.variables().items():
            os.putenv(name, value)
        self.watch.follow()


def _try(function: Callable[..., object], *arguments: Any) -> None:
    """Call a function; its errors must not reach the program."""
    try:
        function(*arguments)
    except Exception:
        pass


def _append(path: str, data: bytes) -> None:
    try:  # anew each time: programs close descriptors that they do not know
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
    except OSError:
        pass


def _note_files(file: str, script: str) -> None:
    """Append to ``file`` a line per module that is not installed, and per open device: ``r`` or ``d``, and its path.

    Per installed package, ``m`` and its name.
    ``launch.host.trial_files`` reads it, so that a later run can tell whether one of the modules has changed.
    """
    installed = tuple(prefix + os.sep for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix})
    lines = []
    if script and not script.startswith(installed):
        lines.append("r" + script + "\n")
    for module in list(sys.modules.values())[-_MOST_MODULES:]:
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or "\n" in path:
            continue
        packages = path.replace("/dist-packages/", "/site-packages/").rpartition("/site-packages/")[2]
        if packages != path:
            lines.append("m" + packages.split("/")[0].split(".")[0] + "\n")
        elif not path.startswith(installed):
            lines.append("r" + os.path.abspath(path) + "\n")
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink("/proc/self/fd/" + number)
        except OSError:  # that of the listing
            continue
        # Not nvidiactl, nvidia-uvm and nvidia-caps/nvidia-cap1, which are no GPUs.
        if path.replace("/dev/nvidia", "", 1).isdigit() or path.startswith("/dev/dri/render"):
            lines.append("d" + path + "\n")
    _append(file, os.fsencode("".join(sorted(set(lines)))))


def _after_import(name: str, callback: Callable[[Any], object]) -> None:
    """Call with a module once it is imported."""
    if name in sys.modules:
        callback(sys.modules[name])
    else:
        _Imports.wanted[name] = callback


class _Imports:
    """A finder in ``sys.meta_path`` that waits for modules."""

    wanted: dict[str, Callable[[Any], object]] = {}

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        callback = cls.wanted.pop(name, None)
        if callback is None:
            return None
        finders = [finder for finder in sys.meta_path if finder is not cls and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        loader: Any = None if spec is None else spec.loader
        if hasattr(loader, "exec_module"):
            execute = loader.exec_module  # perhaps that of another finder, which looks out as well

            def exec_module(module: Any) -> None:
                loader.exec_module = execute
                loader.exec_module(module)
                callback(module)

            loader.exec_module = _hidden(exec_module)
        return spec


def _hidden(function: Any) -> Any:
    """A function whose frames name the file ``<aorta>`` in stacks and tracebacks, so that no line is shown of it."""
    function.__code__ = function.__code__.replace(co_filename="<aorta>")
    return function


def arm(environ: MutableMapping[str, str] = os.environ) -> None:
    """Arm this process as its variables say; what they hide is hidden from the program, and not from its children."""
    text = environ.pop(VARIABLE, None)
    if environ.pop(HASH_SEED, None) is not None:
        environ.pop("PYTHONHASHSEED", None)
    if text is None:
        return
    global _hook
    _hook = hook = Hook(*text.split("\x1f"))
    if hook.pythonpath == "-":
        environ.pop("PYTHONPATH", None)
    else:
        environ["PYTHONPATH"] = hook.pythonpath[1:]
    for name, value in hook.variables().items():
        os.putenv(name, value)
    atexit.register(_try, hook.end)

    def begin_again() -> None:
        hook.has_place = hook.has_raised = False
        _try(hook.begin)

    os.register_at_fork(after_in_child=begin_again)
    _after_import("torch.distributed.distributed_c10d", lambda dist: _try(lambda: hook.watch.follow_groups(dist)))
    if hook.how == "full":
        _try(hook.watch_all)
    else:
        _after_import("multiprocessing.popen_spawn_posix", lambda module: _try(hook.watch_all))
    sys.meta_path.insert(0, _Imports)
    if COLLECT in environ:
        _try(start_collectors)


_hook: Hook | None = None

#: Says what collectors there are, as ``collectors.contract.variable`` does.
COLLECT = "AORTA_COLLECT"


def start_collectors(rank: int | None = None) -> Any:
    """Start the trial's collectors once torch is imported; ``rank``: if no launcher says it. Returns what runs them."""
    if COLLECT not in os.environ:
        return None
    own = identity(os.environ).split("/")
    root = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
    starter = _load(os.path.join(root, "collectors", "in_process", "start.py"))
    if _Imports not in sys.meta_path:
        sys.meta_path.insert(0, _Imports)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    rank = int(own[0]) if own[0] else rank
    starter.begin(os.environ[COLLECT], _after_import, rank, int(attempt) if attempt.isdigit() else 0)
    return starter


def note_ranks_of(pid: int) -> None:
    """Count the children of another process as this one's own."""
    if _hook is not None:
        _hook.watch.forks_ranks = pid


def rearm() -> None:
    """In a fork that has got the variables of a rank: take its place."""
    if _hook is not None:
        _hook.begin()
        _try(start_collectors)


def _load(path: str) -> Any:
    """The module of a file that is on no path of the program; what was compiled of it is kept as for other modules."""
    module = type(sys)("aorta_" + os.path.basename(path)[:-3])
    module.__file__ = path
    loader = sys.modules["_frozen_importlib_external"].SourceFileLoader(module.__name__, path)
    exec(loader.get_code(module.__name__), module.__dict__)
    return module


def _import_hidden_module() -> None:
    """Import what Python would have imported in place of this file."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
    own = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own  # Python looks for it once this import is done


if __name__ == "sitecustomize":
    arm()
    _import_hidden_module()
