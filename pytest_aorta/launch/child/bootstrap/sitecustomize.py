"""Imported by every Python process of a command as it starts: notes what becomes of it, for the judge of the trial.

How much it watches (``--aorta-observe``) is said by whoever starts it: ``exits`` for the stacks of a crash or hang and
a note at the orderly end, ``full`` also for what a process sees of its children, as the judge of ranks needs it. Where
a program makes a process group or spawns processes, it may have ranks, and ``exits`` becomes ``full`` there.

Before the program begins, ``os.environ`` and ``sys.path`` are as they would be without this file, and a
``sitecustomize`` of the user is imported. The processes that it starts are armed as well: their variables are in the
environment of C, and are added to one that is handed to them. No imports from this package: it may be another
interpreter. None of modules that take time either: every program would pay for them.

A process appends to ``processes/HOST.PID.events`` in the folder of the trial, one literal of Python per line:
its start, its place among ranks, what it has raised, its orderly end, and how the armed children ended that it has
waited for. ``launch.child.rank_files`` reads it.
"""

from __future__ import annotations

import _posixsubprocess
import atexit
import os
import signal
import sys
import time

TYPE_CHECKING = False  # without the import of ``typing``
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping
    from typing import Any

VARIABLE = "AORTA_BOOTSTRAP"

#: Says that ``PYTHONHASHSEED`` was drawn for this process, and not set by the user: its children draw their own.
HASH_SEED = "AORTA_HASH_SEED"

#: Rank, world size and local rank, as launchers name them: torch and DeepSpeed, Open MPI, MPICH and Intel, SLURM.
PLACES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)

#: What else tells one start of the ranks from another one.
_STARTS = ("TORCHELASTIC_RESTART_COUNT", "MASTER_PORT", "SLURM_STEP_ID")

#: Of the flags in proc(5), as the kernel's sched.h has it.
_PF_EXITING = 0x4

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP, signal.SIGQUIT)

#: Characters of a message, and of a traceback, that are kept.
_LIMIT = 2**15

#: Modules that one process notes at most.
_MOST_MODULES = 2000

#: Collectives that a rank tells at its end, and what of each.
_MOST_COLLECTIVES = 256
_COMPARED = (
    "record_id", "is_p2p", "process_group", "collective_seq_id", "profiling_name", "time_created_ns",
    "input_dtypes", "input_sizes", "output_dtypes", "output_sizes",
)  # fmt: skip

#: Seconds that a process has for its stacks, and for what its flight recorder has.
_TURN, _SETTLE, _PATIENCE = 0.05, 0.2, 1.0

#: Names of the recorder in torch's server: of all backends, and what a torch has that knows that of NCCL only.
_HANDLERS = (b"fr_trace_json", b"dump_nccl_trace_json")


def identity(environ: Mapping[str, str]) -> str:
    """What a launcher has said of the place of a process; empty where none has."""
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
        self.watches_all = False
        self.processes = os.path.join(folder, "processes")
        self.has_place = self.has_raised = False
        self.asked: set[int] = set()  # pids that this process has asked to end
        self.forks_ranks = 0  # pid of a process that forks the ranks of this agent
        sys.path.extend(path for path in sys_path if path not in sys.path)
        # Python forgets the file of a script when it has run, and the program may change the words.
        script = getattr(sys, "argv", [""])[0]
        script = os.path.abspath(script) if os.path.isfile(script) else ""
        atexit.register(_try, _note_files, os.path.join(folder, "reads.events"), script)
        self.begin(stacks)

    def begin(self, stacks: str = "") -> None:
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

    def variables(self) -> dict[str, str]:
        """What a child needs, by which it is armed."""
        here = os.path.dirname(os.path.abspath(__file__))
        order = (self.folder, self.sockets, "", str(self.number), self.pythonpath, self.known, self.below, self.how)
        behind = [self.pythonpath[1:]] if self.pythonpath[1:] else []
        return {VARIABLE: "\x1f".join(order), "PYTHONPATH": os.pathsep.join([here, *behind])}

    # What becomes of this process.

    def raised(self, error: BaseException) -> None:
        """It ends by an exception."""
        # Python ends itself by SIGINT after a KeyboardInterrupt, unless something is imported in between.
        if self.has_raised or isinstance(error, (SystemExit, KeyboardInterrupt)):
            return
        self.has_raised = True
        frames, message = self.tell(error)
        self.keep_collectives([self.pid])
        late = "timed out" in message.lower() or "timeout" in message.lower()
        if late and any("/torch/distributed/" in frame.filename for frame in frames):
            self.mark_wait()

    def exits(self, status: object) -> None:
        """It asks for its end: with a text, or while it handles what was raised. It may still change its mind."""
        error = sys.exc_info()[1]
        if status is None or (isinstance(status, int) and status == 0):
            return
        if error is not None and not isinstance(error, (SystemExit, KeyboardInterrupt)):
            self.tell(error, exits=True)
        elif not isinstance(status, int):
            said = str(status)[:_LIMIT]
            self.say(raised=time.time(), type="SystemExit", message=said, traceback="", exits=True)

    def tell(self, error: BaseException, exits: bool = False) -> tuple[Any, str]:
        """Say what it is; its frames and its message."""
        now = time.time()
        import traceback

        try:
            message = str(error)
        except BaseException as inner:
            message = "<" + type(error).__name__ + ".__str__ raised " + type(inner).__name__ + ">"
        frames = traceback.extract_tb(error.__traceback__)
        wait = wait_in([frame for frame, _ in traceback.walk_tb(error.__traceback__)])
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.say(
            raised=now,
            type=type(error).__qualname__,
            message=message[:_LIMIT],
            traceback=text if len(text) <= _LIMIT else text[: _LIMIT // 2] + "\n[...]\n" + text[-_LIMIT // 2 :],
            exits=exits,
            wait=wait,
        )
        return frames, message

    def mark_wait(self) -> None:
        """Let the launcher ask the other ranks where they are before it ends them."""
        _append(os.path.join(self.processes, "waited.events"), b"")

    def end(self) -> None:
        last = getattr(sys, "last_value", None)  # of Python itself, where the program has replaced our excepthook
        if last is not None:
            self.raised(last)
        if not self.has_raised and not isinstance(last, KeyboardInterrupt):
            self.say(lived=time.time())
        if self.has_place and not self.has_raised and (trace := last_collectives()):
            with open(self.path(self.pid, "collectives.json"), "wb") as file:
                file.write(trace)

    def end_of_child(self) -> None:
        """At the end of a process of ``multiprocessing``, which swallows what it raises once this has returned."""
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            if error.code not in (None, 0) and error.__context__ is None:
                return
            error = None if error.code in (None, 0) else error.__context__
        if error is not None:
            self.raised(error)
        elif not self.has_raised:
            self.say(lived=time.time())

    # What this process sees of others.

    def has_running_child(self, pid: int) -> bool:
        try:
            with open("/proc/" + str(pid) + "/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return False
        # One that has begun to end, by another's signal or by itself, holds its id until all of its memory is gone.
        is_ending = int(fields[6]) & _PF_EXITING
        return int(fields[1]) in (self.pid, self.forks_ranks) and not is_ending

    def is_armed(self, pid: int) -> bool:
        return os.path.exists(self.path(pid, "events"))

    def ends(self, pid: int, number: int) -> None:
        """It is about to ask a process to end."""
        pid = abs(pid)
        if number not in _ENDING or pid in self.asked or not self.is_armed(pid) or not self.has_running_child(pid):
            return
        if not self.asked:
            self.ask()
            self.say(stops=time.time())
        self.say(asks=pid)
        self.asked.add(pid)

    def has_ended(self, pid: int, status: int) -> None:
        if not self.is_armed(pid):
            return
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if code == -signal.SIGABRT:  # perhaps by a watchdog of NCCL
            self.mark_wait()
        self.say(of=pid, code=code, at=time.time())

    def ask(self) -> None:
        """Have the children give their collectives before they are ended, and their stacks where one has waited."""
        names = (name.rpartition(".events")[0].rpartition(".")[2] for name in os.listdir(self.processes))
        pids = [int(name) for name in names if name.isdigit()]
        pids = [pid for pid in pids if self.has_running_child(pid) and _listens(pid, self.number)]
        self.keep_collectives(pids)
        if not os.path.exists(os.path.join(self.processes, "waited.events")):
            return
        for pid in pids:  # a signal may wake one from a system call, and what it does then may wake others
            _kill(pid, signal.SIGSTOP)
        for pid in pids:
            _kill(pid, self.number)
            _kill(pid, signal.SIGCONT)
            time.sleep(_TURN if pid != pids[-1] else _SETTLE)

    def keep_collectives(self, pids: list[int]) -> None:
        """Of the flight recorders of torch, which answer from threads of their own."""
        for pid in pids if self.sockets else []:
            answer = ask_recorder(os.path.join(self.sockets, str(pid)))
            if answer:
                try:
                    with open(self.path(pid, "collectives.json"), "wb") as file:
                        file.write(answer)
                except OSError:
                    pass

    def in_group(self, dist: Any) -> None:
        """A process group is there: the process knows its rank, and torch can serve what its recorder has."""
        if not self.has_place and not self.below:
            self.take_place(dist.get_rank(), str(dist.get_world_size()), os.environ.get("LOCAL_RANK", ""), 0, "")
        self.watch_all()
        if self.has_place and self.sockets:
            serve_recorder(os.path.join(self.sockets, str(self.pid)))

    def watch_all(self, module: Any = None) -> None:
        """Follow what this process sees of its children, and what ends it, from now on."""
        if self.watches_all:
            return
        self.watches_all, self.how = True, "full"
        for name, value in self.variables().items():
            os.putenv(name, value)
        _follow_children(self)
        before = sys.excepthook

        def excepthook(kind: Any, error: Any, traceback: Any) -> None:
            _try(self.raised, error)
            before(kind, error, traceback)

        sys.excepthook = _hidden(excepthook)
        leave = sys.exit

        def exit(status: Any = None, /) -> None:
            _try(self.exits, status)
            leave(status)

        sys.exit = _hidden(exit)

        def in_child(hook: Hook) -> None:
            sys.modules["multiprocessing.util"].Finalize(None, _try, (hook.end_of_child,), exitpriority=0)

        def follow_ends(util: Any) -> None:
            in_child(self)  # a spawned child does not call what is registered for those that are forked
            util.register_after_fork(self, in_child)

        _after_import("multiprocessing.util", follow_ends)


def _try(function: Callable[..., object], *arguments: Any) -> None:
    """What goes wrong here must not reach the program."""
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


_kill, _killpg, _waitpid, _fork_exec = os.kill, os.killpg, os.waitpid, _posixsubprocess.fork_exec


def _listens(pid: int, number: int) -> bool:
    """Whether the process has a handler for a signal; one without would be ended by it."""
    try:
        with open("/proc/" + str(pid) + "/status") as file:
            caught = next(line.split()[1] for line in file if line.startswith("SigCgt"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught, 16) >> (number - 1) & 1)


def ask_recorder(path: str) -> bytes:
    """What the flight recorder of a rank of this host has, as JSON; empty without an answer in time.

    torch serves it at a socket, from a thread without the GIL, which answers also in a collective and in C code. Where
    torch has no such server, or a backend no recorder, there is no answer. ``TORCH_FR_BUFFER_SIZE`` sets how many
    collectives are remembered.
    """
    import socket

    try:
        for handler in _HANDLERS:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_PATIENCE)
                connection.connect(path)
                connection.sendall(b"POST /handler/" + handler + b" HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
                head, _, body = b"".join(iter(lambda: connection.recv(2**16), b"")).partition(b"\r\n\r\n")
            if b" 404 " not in head.partition(b"\r\n")[0]:
                return body
    except OSError:
        pass
    return b""


def wait_in(frames: list[Any]) -> dict[str, Any] | None:
    """What a call of ``torch.distributed`` waits for, by its frames, the innermost last: the ranks, by their numbers.

    Of a ``send`` or ``recv`` that is its peer; of a collective, all other ranks of its group.
    """
    dist: Any = sys.modules.get("torch.distributed.distributed_c10d")
    for frame in frames if dist is not None else ():
        call, given = frame.f_code.co_name, frame.f_locals
        if frame.f_code.co_filename != dist.__file__ or call.startswith("_") or call == "wrapper":
            continue
        try:
            members = dist.get_process_group_ranks(given.get("group"))
            peers = [rank for rank in members if rank != dist.get_rank()]
            if "send" in call or "recv" in call:
                peer = next((given[name] for name in ("src", "dst") if given.get(name) is not None), None)
                in_group = next(
                    (given[name] for name in ("group_src", "group_dst") if given.get(name) is not None), None
                )
                if peer is None and in_group is not None:
                    peer = members[in_group]
                peers = peers if peer is None else [peer]  # else it takes from any
            return {"call": call, "peers": [int(peer) for peer in peers], "members": sorted(map(int, members))}
        except Exception:
            return None
    return None


def last_collectives() -> bytes:
    """The end of what torch's flight recorder has of this process, as JSON like its own; empty where it has nothing."""
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
    if dump is None or "torch.distributed.distributed_c10d" not in sys.modules:
        return b""
    import json

    trace = json.loads(dump())
    entries = [{name: entry.get(name) for name in _COMPARED} for entry in trace.get("entries", ())[-_MOST_COLLECTIVES:]]
    return json.dumps({"entries": entries, "pg_config": trace.get("pg_config")}).encode() if entries else b""


def serve_recorder(path: str) -> None:
    """Serve that of this process at a socket, where torch can; call before it makes a process group."""
    try:
        import ctypes

        from torch._C._distributed_c10d import _WorkerServer
    except ImportError:
        return
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)  # it would say where it listens
        server = _WorkerServer(path)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))  # its destructor would wait for its thread
    except RuntimeError:
        pass
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def _after_import(name: str, callback: Callable[[Any], object]) -> None:
    """Call with a module once it is imported."""
    if name in sys.modules:
        callback(sys.modules[name])
    else:
        _Imports.wanted[name] = callback


class _Imports:
    """Stands in ``sys.meta_path``, and looks out for modules."""

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
        hook.asked, hook.forks_ranks = set(), 0
        _try(hook.begin)

    os.register_at_fork(after_in_child=begin_again)
    _after_import("torch.distributed.distributed_c10d", lambda dist: _follow_groups(hook, dist))
    if hook.how == "full":
        hook.watch_all()
    else:
        _after_import("multiprocessing.popen_spawn_posix", hook.watch_all)
    sys.meta_path.insert(0, _Imports)
    if COLLECT in environ:
        _try(start_collectors)


_hook: Hook | None = None

#: Says what collectors there are, as ``collectors.contract.variable`` does.
COLLECT = "AORTA_COLLECT"


def start_collectors(rank: int | None = None) -> Any:
    """Start those of this trial once torch is imported; ``rank`` where no launcher says it. What runs them."""
    if COLLECT not in os.environ:
        return None
    own = identity(os.environ).split("/")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    path = os.path.join(root, "collectors", "in_process", "start.py")
    starter = type(sys)("aorta_collect_start")
    starter.__file__ = path
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec", dont_inherit=True), starter.__dict__)
    if _Imports not in sys.meta_path:
        sys.meta_path.insert(0, _Imports)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    rank = int(own[0]) if own[0] else rank
    starter.begin(os.environ[COLLECT], _after_import, rank, int(attempt) if attempt.isdigit() else 0)
    return starter


def note_ranks_of(pid: int) -> None:
    """Take the children of a process for this one's own."""
    if _hook is not None:
        _hook.forks_ranks = pid


def rearm() -> None:
    """In a fork that has got the variables of a rank: take its place."""
    if _hook is not None:
        _hook.begin()
        _try(start_collectors)


def _follow_groups(hook: Hook, dist: Any) -> None:
    if not hasattr(dist, "_update_default_pg"):
        return
    set_default = dist._update_default_pg

    def update_default_pg(group: Any) -> None:
        set_default(group)
        if group is not None:
            _try(hook.in_group, dist)

    dist._update_default_pg = _hidden(update_default_pg)


def _follow_children(hook: Hook) -> None:
    def waitpid(pid: int, options: int, /) -> tuple[int, int]:
        found = _waitpid(pid, options)
        if found[0] and (os.WIFEXITED(found[1]) or os.WIFSIGNALED(found[1])):
            _try(hook.has_ended, *found)
        return found

    def kill(pid: int, number: int, /) -> None:
        _try(hook.ends, pid, number)
        _kill(pid, number)

    def killpg(group: int, number: int, /) -> None:
        _try(hook.ends, group, number)
        _killpg(group, number)

    def fork_exec(*arguments: Any) -> Any:
        environ = arguments[5]
        if environ is not None and any(entry.startswith(b"AORTA_TRIAL_INDEX=") for entry in environ):
            given = next((entry[11:] for entry in environ if entry.startswith(b"PYTHONPATH=")), None)
            own = hook.variables()
            if given is not None and os.fsdecode(given) != hook.pythonpath[1:]:
                before = os.path.dirname(os.path.abspath(__file__))
                text = os.fsdecode(given)
                own = {
                    VARIABLE: own[VARIABLE].replace("\x1f" + hook.pythonpath + "\x1f", "\x1f+" + text + "\x1f", 1),
                    "PYTHONPATH": before + os.pathsep + text if text else before,
                }
            kept = [entry for entry in environ if not entry.startswith((b"PYTHONPATH=", VARIABLE.encode() + b"="))]
            added = [os.fsencode(name + "=" + value) for name, value in own.items()]
            arguments = (*arguments[:5], [*kept, *added], *arguments[6:])
        return _fork_exec(*arguments)

    os.kill, os.killpg, os.waitpid = _hidden(kill), _hidden(killpg), _hidden(waitpid)
    _posixsubprocess.fork_exec = _hidden(fork_exec)
    subprocess: Any = sys.modules.get("subprocess")
    if subprocess is not None:  # it has taken names from these modules
        subprocess._fork_exec = fork_exec
        poll = subprocess.Popen._internal_poll
        poll.__defaults__ = tuple(waitpid if each is _waitpid else each for each in poll.__defaults__ or ())
        if hasattr(subprocess, "_del_safe"):
            subprocess._del_safe.waitpid = waitpid


def _import_hidden_module() -> None:
    """Import what Python would have imported in place of this file."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
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
