"""The parent's side of a zygote: a process that is started, prepares once, and then serves tasks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

from pytest_aorta._version import __version__
from pytest_aorta.runtime.zygotes import process_tags, process_tree
from pytest_aorta.runtime.zygotes.channel import Channel, wait
from pytest_aorta.runtime.zygotes.prefix_socket import TAG_WORD, PrefixSocket
from pytest_aorta.runtime.zygotes.server import Server
from pytest_aorta.runtime.zygotes.task_messages import PrepareOrder, StartReport, Surroundings
from pytest_aorta.runtime.zygotes.zygote_error import (
    StartPhase,
    ZygoteError,
    ZygoteTimeout,
    code_behind_prefix,
    exit_text,
    prefix_text,
)
from pytest_aorta.runtime.zygotes.zygote_spec import StartLimits, ZygoteSpec

#: The working directory must not shadow what the interpreter imports, as ``-c`` would let it.
_BOOTSTRAP = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "from pytest_aorta.runtime.zygotes.zygote_main import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)

#: Bytes of its output that an error quotes, and of the stacks in it.
_OUTPUT, _STACKS = 4000, 2**18

#: Seconds that the process may take to end once its channel has closed.
_LINGER = 5.0

#: Seconds between two looks at a prefix whose zygote has not reported: whether it still runs.
_LOOK = 0.05

#: Seconds that a command may take which ends what a prefix has started.
_STOP_TIMEOUT = 10.0

#: What runs behind a prefix.
_ENTRY = Path(__file__).with_name("prefix_entry.py")


class Zygote(Server):
    """A running zygote process. Start it, wait until it is ready, submit one task at a time, close it.

    The thread that starts it has to live until it is ready; the kernel takes that thread's end for its parent's.
    """

    def __init__(self, spec: ZygoteSpec) -> None:
        super().__init__()
        self.spec = spec
        self.info = {}
        self.against_forking = []
        self.tag = process_tags.new_tag()
        #: Seconds that ``ZygoteSpec.load`` took, and when it had ended (``time.monotonic()``).
        self.load_sec: float | None = None
        self.loaded_at = 0.0
        self._ready = False
        #: Tags of its branches, as long as processes of theirs may be left.
        self.branch_tags: set[str] = set()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in end())
        self._log_lock = threading.Lock()  # a branch's thread may ask for the output while this one is ended
        self._last_output = ""
        self._died: ZygoteError | None = None
        self._dying = threading.Lock()
        ours, theirs = Channel.pair()
        self.control = ours
        #: Open until a zygote behind a prefix has reported; keeps the way to end it until this is closed.
        self._socket: PrefixSocket | None = None
        try:
            if spec.has_prefix:
                self._socket = PrefixSocket(theirs, self.tag)
            self._process = subprocess.Popen(
                self._command(theirs.fileno()),
                env={**spec.environ, process_tags.VARIABLE: self.tag},
                cwd=spec.cwd,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for pytest, which then ends its trials in order
            )
        except OSError as error:
            ours.close()
            self._log.close()
            behind = f", of {self._name.rstrip()}" if spec.has_prefix else ""
            if self._socket is not None:
                self._socket.close()
            raise ZygoteError(f"cannot start {spec.command[0]!r}{behind}: {error}") from error
        finally:
            if self._socket is None:
                theirs.close()
        if spec.has_prefix:
            surroundings: Surroundings = {
                "environ": {**spec.behind.restored, process_tags.VARIABLE: self.tag},
                "cwd": spec.cwd,
            }
            with contextlib.suppress(OSError):  # as below
                ours.send(surroundings)
        order: PrepareOrder = {
            "prepare": spec.prepare,
            "argument": spec.argument,
            "run": spec.run,
            "sys_path": list(spec.sys_path),
            "fresh": spec.fresh,
            "warm_up": spec.warm_up,
            "extend": spec.extend,
            "load": spec.load,
            "orphaned": spec.orphaned,
            "concurrent": spec.concurrent,
            "owner": False,
        }
        with contextlib.suppress(OSError):  # it has died already, which ``wait_ready`` notices
            _send_with_owner(ours, order)

    def _command(self, fd: int) -> list[str]:
        """The command of the process, which inherits ``fd``."""
        if self._socket is None:
            return [*self.spec.command, "-c", _BOOTSTRAP, str(fd), str(os.getpid())]
        packages = self.spec.behind.packages
        script = _ENTRY if packages is None else Path(packages, *_ENTRY.parts[-4:])
        words = [*self._with_tag(self.spec.command), str(script), str(os.getpid()), *self._socket.arguments()]
        return words if packages is None else [*words, packages]

    def _with_tag(self, words: Sequence[str]) -> list[str]:
        return [word.replace(TAG_WORD, self.tag) for word in words]

    def wait_ready(self, limits: StartLimits = StartLimits()) -> None:  # noqa: B008  (frozen)
        """Block until prepared.

        Raises:
            ZygoteTimeout: it took longer to prepare than it may, and was ended.
            ZygoteError: it could not be started or prepared; ``phase`` is ``launch`` or ``import``.
        """
        if self._ready:
            return
        phase: StartPhase = "launch"
        limit, overall = limits.total, time.monotonic() + limits.total
        give_up = overall
        while (report := self._start_report(phase, give_up, limit, limits.grace))["type"] not in ("failed", "ready"):
            phase, limit, give_up = "import", limits.total, overall
            if report["type"] == "loading" and limits.load is not None:
                limit, give_up = limits.load, time.monotonic() + limits.load
            elif report["type"] == "loaded":
                self.load_sec, self.loaded_at = report["sec"], time.monotonic()
        if report["type"] == "failed":
            self.close()
            error = report["error"]
            raise ZygoteError(f"{error['type']}: {error['message']}", phase="import", error=error)
        if report["version"] != __version__:
            self.close()
            raise ZygoteError(
                f"{self.spec.command[-1]} has pytest-aorta {report['version']}, but this is "
                f"{__version__}; install the same version there"
            )
        self._ready = True
        self.info = report["info"]
        self.against_forking = report["against_forking"]

    def _start_report(self, phase: StartPhase, give_up: float, limit: float, grace: float) -> StartReport:
        if not self._poll(max(0.0, give_up - time.monotonic())):
            if phase == "launch":
                self.close()
                raise ZygoteError(f"{self._name}not ready after {limit:g} s\n{self.output()}")
            output = self.output()
            stacks = self._end_import(grace)
            self.close()
            raise ZygoteTimeout(limit, stacks=stacks, output=output)
        report = self.control.receive()
        if report is None:
            raise self._failed_start(phase)
        return cast(StartReport, report)

    def _end_import(self, grace: float) -> str:
        """End all processes of an import that hangs; their stacks."""
        family = process_tree.Family(lambda: [self._process.pid, *process_tags.tagged_processes(self.tag)])
        with self._log_lock:
            written = 0 if self._log.closed else os.fstat(self._log.fileno()).st_size
        process_tree.request_stacks(family.members())
        with self._log_lock:
            stacks = b"" if self._log.closed else os.pread(self._log.fileno(), _STACKS, written)
        process_tree.end_all(family.members, self._process.poll, grace, hurry=lambda: self._ending)
        return stacks.decode(errors="replace")

    def _poll(self, timeout: float) -> bool:
        """Whether a report can be read, or none will come. What connects meanwhile is let in."""
        waiting = self._socket
        if waiting is None or waiting.fileno() < 0:
            return self.control.poll(timeout)
        give_up = time.monotonic() + timeout
        while self.alive():
            ready = wait([self.control, waiting.fileno()], min(_LOOK, max(0.0, give_up - time.monotonic())))
            if waiting.fileno() in ready:
                waiting.admit()
            elif ready:
                break
            elif time.monotonic() > give_up:
                return False
        waiting.hang_up()
        return True

    @property
    def _name(self) -> str:
        """The prefix, where there is one, for messages."""
        return "" if self._socket is None else f"`{prefix_text(self._with_tag(self.spec.command))}` "

    def _failed_start(self, phase: StartPhase) -> ZygoteError:
        closed = self._ending
        code = None if closed else self._wait()
        output = self.output()
        self.close()
        if code is None:
            return ZygoteError(f"the zygote (pid {self._process.pid}) was closed before it was ready", phase=phase)
        if "No module named 'pytest_aorta'" in output:
            python = self.spec.command[-1]
            return ZygoteError(
                f"pytest-aorta is not installed for {python}; install it there, for instance with\n"
                f"  {python} -m pip install pytest-aorta=={__version__}"
            )
        text = f"{self._name}ended with {exit_text(code)} before it was ready\n{output}".rstrip()
        return ZygoteError(text, phase=phase, returncode=code)

    def _wait(self, patience: float | None = None) -> int:
        """The exit status of the process; one that stays longer than ``patience`` seconds is killed."""
        try:
            code = self._process.wait(_LINGER if patience is None and self.spec.has_prefix else patience)
        except subprocess.TimeoutExpired:
            code = self._kill()
        return code_behind_prefix(code) if self.spec.has_prefix else code

    def _kill(self) -> int:
        """End the process at once, with what a prefix has started; its exit status."""
        if self._socket is not None:
            self._socket.kill()
        with contextlib.suppress(PermissionError):  # another user's, by sudo; it ends with what it has started
            self._process.kill()
        if self._socket is not None and self.spec.behind.stop:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                stop = self._with_tag(self.spec.behind.stop)
                subprocess.run(stop, capture_output=True, timeout=_STOP_TIMEOUT, check=False)
        try:
            return self._process.wait(_LINGER)
        except subprocess.TimeoutExpired:  # in uninterruptible sleep, or another user's
            return -signal.SIGKILL

    def _tags(self) -> list[str]:
        return [self.tag, *self.branch_tags.copy()]

    def death(self) -> ZygoteError:
        """The error to raise when the control channel has closed; ends what the zygote can no longer end."""
        with self._dying:  # which the threads of all its tasks find out at the same time
            if self._died is None:
                if self._ending:
                    return ZygoteError(f"the zygote (pid {self._process.pid}) was closed")
                code = self._wait(_LINGER)
                self.sweep()
                self._died = ZygoteError(
                    f"the zygote (pid {self._process.pid}) died with {exit_text(code)}\n{self.output()}".rstrip(),
                    returncode=code,
                )
            return self._died.again()

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def output(self) -> str:
        """The end of what the zygote itself and its branches wrote, in text."""
        with self._log_lock:
            return self._last_output if self._log.closed else self._read_output()

    def _read_output(self) -> str:
        # Without seeking: the position is the one that the zygote writes at.
        fd = self._log.fileno()
        return os.pread(fd, _OUTPUT, max(0, os.fstat(fd).st_size - _OUTPUT)).decode(errors="replace")

    def end(self, grace: float = 10.0) -> None:
        """End the zygote, its branches and whatever they run, from any thread."""
        self.hang_up()
        try:
            code = self._process.wait(timeout=grace if self._ready else 0.2)
        except subprocess.TimeoutExpired:
            # Busy importing, or stuck: it does not read its channel.
            code = self._kill()
        if code != 0:  # it has not done so itself
            self.sweep()
        with self._log_lock:
            if not self._log.closed:
                self._last_output = self._read_output()  # an error may still quote it
                self._log.close()

    def close(self, grace: float = 10.0) -> None:
        """End it and free what it takes; twice is harmless."""
        super().close(grace)
        if self._socket is not None:
            self._socket.close()


def _send_with_owner(control: Channel, order: PrepareOrder) -> None:
    """Send the first order, with this process, whose end is the zygote's.

    The end of the channel alone says too little: every fork of this process has a copy of it.
    """
    try:
        owner = os.pidfd_open(os.getpid())
    except OSError:  # Linux before 5.3
        control.send(order)
        return
    try:
        control.send({**order, "owner": True}, [owner])
    finally:
        os.close(owner)
