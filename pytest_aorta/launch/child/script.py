"""Runs Python programs of a command in forks of a process that has imported their modules.

A program sees its process as in a fresh interpreter, except for what all forks of a process share: the hashes of texts,
the layout of the address space, and modules of this package in ``sys.modules``.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import gc
import importlib.machinery
import io
import os
import pickle
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import IO, Any, NoReturn, cast

from pytest_aorta.launch.child import workload_main
from pytest_aorta.launch.child.bootstrap import sitecustomize
from pytest_aorta.runtime import process_tree, zygote_main
from pytest_aorta.trials.command_line import PythonLine, line_of, module_path, python_line
from pytest_aorta.trials.seeding import rank_seed

_LONGEST_MESSAGE = 2**20


def hidden_modules(folder: str) -> list[str]:
    """Modules in a ``folder`` that a fresh interpreter would import, but this one has, or may have, from elsewhere."""
    hidden = []
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    for entry in entries:
        name, _, suffix = entry.name.partition(".")
        if suffix in ("py", "pyc") or suffix.endswith("so") or os.path.isfile(os.path.join(entry.path, "__init__.py")):
            file = getattr(sys.modules.get(name), "__file__", None)
            elsewhere = name in sys.modules and not (file or "").startswith(os.path.join(folder, ""))
            if elsewhere or name in sys.stdlib_module_names:
                hidden.append(name)
    return hidden


# In the process from which all programs are forked


@dataclass(frozen=True)
class _Fresh:
    """What a fresh interpreter has and this process changes."""

    encoding: str
    errors: str
    path: list[str]
    threads: str | None


_fresh: _Fresh | None = None


def prepare_script(command: str) -> None:
    """Prepare this process to fork trials of a command, if that is possible.

    Call before its streams or its search path are changed further.
    """
    global _fresh
    line = line_of(command, os.environ.get("PATH", os.defpath))
    if line is None or sys.flags.inspect or sys.flags.verbose or hidden_modules(line.first_folder()):
        return
    _fresh = _Fresh(
        sys.stdout.encoding,
        sys.stdout.errors or "strict",
        list(zygote_main.own_path),
        os.environ.get("OMP_NUM_THREADS"),
    )
    _become(line)


def _become(line: PythonLine) -> None:
    assert _fresh is not None
    sys.argv = [line.name, *line.arguments]
    sys.orig_argv = list(line.words)
    sys.executable = os.path.abspath(line.python)
    sys.path[:] = [*([] if getattr(sys.flags, "safe_path", False) else [line.first_folder()]), *_fresh.path]


# In the process of a trial


class ForkedProgram(process_tree.Fork):
    """A program that runs in a fork."""

    def __init__(self, pid: int, stdout: IO[bytes] | None = None, stderr: IO[bytes] | None = None) -> None:
        super().__init__(pid)
        self.stdout, self.stderr = stdout, stderr

    def wait(self, timeout: float | None = None) -> int:
        if timeout is None and type(self) is ForkedProgram and self.returncode is None:
            self.returncode = process_tree.exit_code(self.pid, 0)  # at once
        return super().wait(timeout)


def start(words: Sequence[str], environ: Mapping[str, str]) -> ForkedProgram | None:
    """Run a command in a fork of this process, with pipes for its output; ``None`` if it has to run as typed."""
    if _fresh is None:
        return None
    line = python_line(words, environ.get("PATH", os.defpath))
    if line is None or module_path(words, os.environ):  # which only a start reads
        return None
    if hidden_modules(line.first_folder()) or process_tree.reasons_against_forking():
        return None
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            _take_streams(os.open(os.devnull, os.O_RDONLY), out_end, err_end)
            _run(line, environ, workload_main.learner)
        finally:
            _give_up()
    os.close(out_end)
    os.close(err_end)
    return ForkedProgram(pid, open(out, "rb", 0), open(err, "rb", 0))


# In the fork


def _give_up() -> NoReturn:
    traceback.print_exc()  # only reached when this module is broken
    os._exit(70)


def _take_streams(*descriptors: int | None) -> None:
    for target, descriptor in enumerate(descriptors):
        if descriptor is not None and descriptor != target:
            os.dup2(descriptor, target)
            os.close(descriptor)


def _run(line: PythonLine, environ: Mapping[str, str], watch: workload_main.LearnedImports | None = None) -> NoReturn:
    """Run the line to its end, as a fresh interpreter would."""
    os.environ.clear()
    os.environ.update(environ)
    _become(line)
    _open_streams(line.unbuffered or bool(os.environ.get("PYTHONUNBUFFERED")))
    _adjust_libraries()
    if sitecustomize.VARIABLE in os.environ:
        sitecustomize.arm()
    else:  # a rank, whose agent is armed
        sitecustomize.rearm()
    if line.is_agent and "torch" in sys.modules:
        _fork_ranks()
    # Those of libraries that were imported before the fork are not this process's, and torch's take 50 ms.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=builtins)
    known = set(sys.modules)
    if watch is not None:
        watch.move_here()
    interrupted = False
    try:
        code = 0
        if line.is_module:
            sys.argv[0] = "-m"
            runpy._run_module_as_main(line.name)  # type: ignore[attr-defined]  # what ``python -m`` calls
        else:
            path = line.name if os.path.isabs(line.name) else os.path.join(os.getcwd(), line.name.removeprefix("./"))
            loader = importlib.machinery.SourceFileLoader("__main__", path)
            main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
            with open(path, "rb") as file:
                source = file.read()
            exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            code = (stop.code or 0) & 0xFF
        else:
            print(stop.code, file=sys.stderr)
            code = 1
    except BaseException as error:
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
        _print(error)
    if watch is not None:
        watch.end()
    del main
    _finish(code, known, interrupted=interrupted)


def _open_streams(unbuffered: bool) -> None:
    """Open the standard streams as Python does at its start."""
    assert _fresh is not None
    for target, name in enumerate(("stdin", "stdout", "stderr")):
        writes = target > 0
        raw = io.FileIO(target, "wb" if writes else "rb", closefd=False)
        raw.name = f"<{name}>"
        direct = unbuffered and writes
        binary: Any = raw if direct else io.BufferedWriter(raw) if writes else io.BufferedReader(raw)
        stream = io.TextIOWrapper(
            binary,
            encoding=_fresh.encoding,
            errors="backslashreplace" if target == 2 else _fresh.errors,
            newline="\n" if writes else None,
            line_buffering=not unbuffered and (target == 2 or raw.isatty()),
            write_through=unbuffered,
        )
        stream.mode = "w" if writes else "r"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _adjust_libraries() -> None:
    """Correct what libraries have read from the process when they were imported."""
    assert _fresh is not None
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        setattr(process, "ORIGINAL_DIR", os.getcwd())  # noqa: B010
    if (spawn := sys.modules.get("multiprocessing.spawn")) is not None:
        spawn.set_executable(sys.executable)
    threads, torch = os.environ.get("OMP_NUM_THREADS", ""), sys.modules.get("torch")
    if torch is not None and threads != _fresh.threads and threads.isdecimal() and int(threads) > 0:
        torch.set_num_threads(int(threads))  # the variable comes too late for the OpenMP library
    rank, attempt = os.environ.get("RANK"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    seeds = workload_main.seeds
    assert seeds is not None
    seeds.restart(rank_seed(seeds.seed, int(rank), int(attempt)) if rank is not None else seeds.seed)


def _print(error: BaseException) -> None:
    """Print an exception as Python does, without the frames of this module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException:
        sys.__excepthook__(type(error), error, trace)


def _finish(code: int, known: set[str], *, interrupted: bool) -> NoReturn:
    """End as an interpreter does, but without clearing the modules of libraries, which would take longest."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    try:
        sys.stdout.flush()
    except (AttributeError, ValueError):  # replaced, or closed
        pass
    except BaseException:
        code = 120
    _forget(known)
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def _forget(known: set[str]) -> None:
    """Release modules as Python does at its end, so that files are written and ``__del__`` is called."""
    own = []
    for name in [it for it in sys.modules if it not in known]:
        file = getattr(sys.modules[name], "__file__", None)
        if isinstance(file, str) and not re.search("site-packages|dist-packages|lib/python", file):
            own.append(name)
    namespaces = {id(sys.modules.pop(name).__dict__) for name in ("__main__", *own)}
    sys.last_type = sys.last_value = sys.last_traceback = None
    # The garbage collector closes one of the files that it finds together first.
    for kind in (io.TextIOWrapper, io.BufferedWriter):
        for stream in [it for it in gc.get_objects() if issubclass(type(it), kind)]:
            with contextlib.suppress(Exception):
                stream.flush()
    gc.collect()
    left = [it for it in gc.get_objects() if id(it) in namespaces and type(it) is dict and "__builtins__" in it]
    for is_private in (True, False):
        for namespace in left:
            for name in list(namespace):
                if name != "__builtins__" and (not is_private or (name[:1] == "_" and name[:2] != "__")):
                    namespace[name] = None


# Ranks. torch's agent has threads, so it does not fork ranks itself: a process that was forked earlier does.


class _Rank(ForkedProgram):
    def __init__(self, server: socket.socket, request: Any, streams: list[int]) -> None:
        self._server = server
        super().__init__(_ask(server, request, streams))

    def look(self) -> int | None:
        code: int | None = _ask(self._server, self.pid)
        return code


def _ask(server: socket.socket, request: Any, streams: Sequence[int] = ()) -> Any:
    socket.send_fds(server, [pickle.dumps(request)], list(streams))
    return pickle.loads(server.recv(_LONGEST_MESSAGE))


def _fork_ranks() -> None:
    """Fork the ranks that torch's agent starts in this process, if they are Python programs."""
    from pytest_aorta.launch.child.recorder import use_popen_in_agent

    server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forks = os.fork()
    if forks == 0:
        try:
            server.close()
            _serve_ranks(theirs)
        finally:
            os._exit(0)
    theirs.close()
    sitecustomize.note_ranks_of(forks)

    def popen(
        args: Sequence[str], env: Mapping[str, str], stdout: IO[str] | None, stderr: IO[str] | None, **given: Any
    ) -> ForkedProgram | subprocess.Popen[bytes]:
        line = python_line(args, env.get("PATH", os.defpath))
        if line is None:
            return subprocess.Popen(args, env=env, stdout=stdout, stderr=stderr, **given)
        streams = [stream.fileno() for stream in (stdout, stderr) if stream is not None]
        return _Rank(server, (line, dict(env), stdout is not None, stderr is not None), streams)

    use_popen_in_agent(popen)


def _serve_ranks(agent: socket.socket) -> None:
    """Fork a rank for each line, and answer for each pid whether it has ended, until the agent has gone."""
    faulthandler.unregister(process_tree.STACK_SIGNAL)
    handlers = process_tree.disregard(process_tree.TERMINATIONS)
    while True:
        data, streams, _, _ = socket.recv_fds(agent, _LONGEST_MESSAGE, 2)
        if not data:
            return
        request = pickle.loads(data)
        if isinstance(request, int):
            answer = process_tree.exit_code(request)
        elif (answer := os.fork()) == 0:
            agent.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.setsid()
            line, environ, has_out, has_err = request
            rest = iter(streams)
            _take_streams(None, next(rest) if has_out else None, next(rest) if has_err else None)
            try:
                _run(cast(PythonLine, line), environ)
            finally:
                _give_up()
        for stream in streams:
            os.close(stream)
        agent.send(pickle.dumps(answer))
