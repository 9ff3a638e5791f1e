"""Reports of a process about itself and its children, for commands that may have ranks.

``sitecustomize`` beside this file loads it where a command is watched in ``full``, where a program makes a process
group or spawns processes, and where a process ends by an exception. What that says of imports holds here, too.
"""

from __future__ import annotations

import _posixsubprocess
import os
import signal
import sys
import time

TYPE_CHECKING = False  # without the import of ``typing``
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pytest_aorta.launch.child.bootstrap.sitecustomize import Hook

#: Of the flags in proc(5), as the kernel's sched.h has it.
_PF_EXITING = 0x4

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP, signal.SIGQUIT)

#: Characters of a message, and of a traceback, that are kept.
_LIMIT = 2**15

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


class RankWatch:
    """Adds events of ranks to the events of ``hook``.

    ``quietly`` calls a function, whose errors must not reach the program; ``hidden`` hides its frames in stacks;
    ``after_import`` calls it with a module once that is imported.
    """

    def __init__(
        self,
        hook: Hook,
        quietly: Callable[..., None],
        hidden: Callable[[Any], Any],
        after_import: Callable[[str, Callable[[Any], object]], None],
    ) -> None:
        self.hook, self.quietly, self.hidden, self.after_import = hook, quietly, hidden, after_import
        self.follows = False
        self.begin()

    def begin(self) -> None:
        """Begin to watch this process, or a fork of it."""
        self.asked: set[int] = set()  # pids that this process has asked to end
        self.forks_ranks = 0  # pid of a process that forks the ranks of this agent

    def raised(self, error: BaseException) -> None:
        """Note that an exception ends this process."""
        # Python ends itself by SIGINT after a KeyboardInterrupt, unless something is imported in between.
        if self.hook.has_raised or isinstance(error, (SystemExit, KeyboardInterrupt)):
            return
        self.hook.has_raised = True
        frames, message = self.tell(error)
        self.keep_collectives([self.hook.pid])
        late = "timed out" in message.lower() or "timeout" in message.lower()
        if late and any("/torch/distributed/" in frame.filename for frame in frames):
            self.mark_wait()

    def exits(self, status: object) -> None:
        """Note that it asks to exit, with a text or while it handles an exception. It may still go on."""
        error = sys.exc_info()[1]
        if status is None or (isinstance(status, int) and status == 0):
            return
        if error is not None and not isinstance(error, (SystemExit, KeyboardInterrupt)):
            self.tell(error, exits=True)
        elif not isinstance(status, int):
            said = str(status)[:_LIMIT]
            self.hook.say(raised=time.time(), type="SystemExit", message=said, traceback="", exits=True)

    def tell(self, error: BaseException, exits: bool = False) -> tuple[Any, str]:
        """Tell an exception: its frames and its message."""
        now = time.time()
        import traceback

        try:
            message = str(error)
        except BaseException as inner:
            message = "<" + type(error).__name__ + ".__str__ raised " + type(inner).__name__ + ">"
        frames = traceback.extract_tb(error.__traceback__)
        wait = wait_in([frame for frame, _ in traceback.walk_tb(error.__traceback__)])
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.hook.say(
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
        try:
            with open(os.path.join(self.hook.processes, "waited.events"), "ab"):
                pass
        except OSError:
            pass

    def tell_collectives(self) -> None:
        """Tell the collectives in torch's flight recorder, as a rank that ends in order."""
        if trace := last_collectives():
            with open(self.hook.path(self.hook.pid, "collectives.json"), "wb") as file:
                file.write(trace)

    def end_of_child(self) -> None:
        """Called at the end of a process of ``multiprocessing``, which swallows its exceptions afterwards."""
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            if error.code not in (None, 0) and error.__context__ is None:
                return
            error = None if error.code in (None, 0) else error.__context__
        if error is not None:
            self.raised(error)
        elif not self.hook.has_raised:
            self.hook.say(lived=time.time())

    # What this process sees of others.

    def has_running_child(self, pid: int) -> bool:
        try:
            with open("/proc/" + str(pid) + "/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return False
        # One that has begun to end, by another's signal or by itself, holds its id until all of its memory is gone.
        is_ending = int(fields[6]) & _PF_EXITING
        return int(fields[1]) in (self.hook.pid, self.forks_ranks) and not is_ending

    def is_armed(self, pid: int) -> bool:
        return os.path.exists(self.hook.path(pid, "events"))

    def ends(self, pid: int, number: int) -> None:
        """Note that this process is about to ask another one to end."""
        pid = abs(pid)
        if number not in _ENDING or pid in self.asked or not self.is_armed(pid) or not self.has_running_child(pid):
            return
        if not self.asked:
            self.ask()
            self.hook.say(stops=time.time())
        self.hook.say(asks=pid)
        self.asked.add(pid)

    def has_ended(self, pid: int, status: int) -> None:
        if not self.is_armed(pid):
            return
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if code == -signal.SIGABRT:  # perhaps by a watchdog of NCCL
            self.mark_wait()
        self.hook.say(of=pid, code=code, at=time.time())

    def ask(self) -> None:
        """Save the collectives of children before they are ended, and their stacks if one of them has waited."""
        names = (name.rpartition(".events")[0].rpartition(".")[2] for name in os.listdir(self.hook.processes))
        pids = [int(name) for name in names if name.isdigit()]
        pids = [pid for pid in pids if self.has_running_child(pid) and _listens(pid, self.hook.number)]
        self.keep_collectives(pids)
        if not os.path.exists(os.path.join(self.hook.processes, "waited.events")):
            return
        for pid in pids:  # a signal may wake one from a system call, and what it does then may wake others
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            os.kill(pid, self.hook.number)
            os.kill(pid, signal.SIGCONT)
            time.sleep(_TURN if pid != pids[-1] else _SETTLE)

    def keep_collectives(self, pids: list[int]) -> None:
        """Save the collectives from torch's flight recorders, which answer from threads of their own."""
        for pid in pids if self.hook.sockets else []:
            answer = ask_recorder(os.path.join(self.hook.sockets, str(pid)))
            if answer:
                try:
                    with open(self.hook.path(pid, "collectives.json"), "wb") as file:
                        file.write(answer)
                except OSError:
                    pass

    def follow_groups(self, dist: Any) -> None:
        """Get told by ``torch.distributed`` when a process group is made."""
        if not hasattr(dist, "_update_default_pg"):
            return
        set_default = dist._update_default_pg

        def update_default_pg(group: Any) -> None:
            set_default(group)
            if group is not None:
                self.quietly(self.in_group, dist)

        dist._update_default_pg = self.hidden(update_default_pg)

    def in_group(self, dist: Any) -> None:
        """Called once there is a process group: the process knows its rank, and torch can serve its flight recorder."""
        if not self.hook.has_place and not self.hook.below:
            self.hook.take_place(dist.get_rank(), str(dist.get_world_size()), os.environ.get("LOCAL_RANK", ""), 0, "")
        self.hook.watch_all()
        if self.hook.has_place and self.hook.sockets:
            serve_recorder(os.path.join(self.hook.sockets, str(self.hook.pid)))

    def follow(self) -> None:
        """Follow from now on what this process sees of its children, and what ends it."""
        if self.follows:
            return
        self.follows = True
        self._follow_children()
        before, leave = sys.excepthook, sys.exit

        def excepthook(kind: Any, error: Any, traceback: Any) -> None:
            self.quietly(self.raised, error)
            before(kind, error, traceback)

        def exit(status: Any = None, /) -> None:
            self.quietly(self.exits, status)
            leave(status)

        sys.excepthook, sys.exit = self.hidden(excepthook), self.hidden(exit)

        def in_child(watch: RankWatch) -> None:
            sys.modules["multiprocessing.util"].Finalize(None, watch.quietly, (watch.end_of_child,), exitpriority=0)

        def follow_ends(util: Any) -> None:
            in_child(self)  # a spawned child does not call what is registered for those that are forked
            util.register_after_fork(self, in_child)

        self.after_import("multiprocessing.util", follow_ends)

    def _follow_children(self) -> None:
        kill, killpg, waitpid, fork_exec = os.kill, os.killpg, os.waitpid, _posixsubprocess.fork_exec

        def wait(pid: int, options: int, /) -> tuple[int, int]:
            ended = waitpid(pid, options)
            if ended[0] and (os.WIFEXITED(ended[1]) or os.WIFSIGNALED(ended[1])):
                self.quietly(self.has_ended, *ended)
            return ended

        def ask(pid: int, number: int, /) -> None:
            self.quietly(self.ends, pid, number)
            kill(pid, number)

        def ask_group(group: int, number: int, /) -> None:
            self.quietly(self.ends, group, number)
            killpg(group, number)

        def start(*arguments: Any) -> Any:
            environ = arguments[5]
            if environ is not None and any(entry.startswith(b"AORTA_TRIAL_INDEX=") for entry in environ):
                given = next((os.fsdecode(entry[11:]) for entry in environ if entry.startswith(b"PYTHONPATH=")), None)
                own = {os.fsencode(name): os.fsencode(value) for name, value in self.hook.variables(given).items()}
                kept = [entry for entry in environ if entry.partition(b"=")[0] not in own]
                added = [name + b"=" + value for name, value in own.items()]
                arguments = (*arguments[:5], [*kept, *added], *arguments[6:])
            return fork_exec(*arguments)

        os.kill, os.killpg, os.waitpid = self.hidden(ask), self.hidden(ask_group), self.hidden(wait)
        _posixsubprocess.fork_exec = self.hidden(start)
        subprocess: Any = sys.modules.get("subprocess")
        if subprocess is not None:  # it has taken names from these modules
            subprocess._fork_exec = start
            poll = subprocess.Popen._internal_poll
            poll.__defaults__ = tuple(wait if each is waitpid else each for each in poll.__defaults__ or ())
            if hasattr(subprocess, "_del_safe"):
                subprocess._del_safe.waitpid = wait


def _listens(pid: int, number: int) -> bool:
    """Whether the process has a handler for a signal; one without would be ended by it."""
    try:
        with open("/proc/" + str(pid) + "/status") as file:
            caught = next(line.split()[1] for line in file if line.startswith("SigCgt"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught, 16) >> (number - 1) & 1)


def ask_recorder(path: str) -> bytes:
    """Content of the flight recorder of a rank of this host, as JSON; empty without an answer in time.

    torch serves it at a socket from a thread without the GIL, so it also answers while the rank is in a collective or
    in C code. Without such a server in torch, or a recorder in the backend, there is no answer.
    ``TORCH_FR_BUFFER_SIZE`` sets how many collectives are remembered.
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
    """The ranks for which a call of ``torch.distributed`` waits, from its frames, the innermost last.

    A ``send`` or ``recv`` waits for its peer, a collective for all other ranks of its group.
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
    """The last collectives in this process's flight recorder, as JSON in torch's format; empty if there are none."""
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
    if dump is None or "torch.distributed.distributed_c10d" not in sys.modules:
        return b""
    import json

    trace = json.loads(dump())
    entries = [{name: entry.get(name) for name in _COMPARED} for entry in trace.get("entries", ())[-_MOST_COLLECTIVES:]]
    return json.dumps({"entries": entries, "pg_config": trace.get("pg_config")}).encode() if entries else b""


def serve_recorder(path: str) -> None:
    """Serve the flight recorder of this process at a socket, if torch can; call it before a process group is made."""
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
