"""The parent's side of a zygote: a process that is started, prepares once, and then serves tasks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from typing import IO, cast

from pytest_aorta._version import __version__
from pytest_aorta.runtime.zygotes import process_tags
from pytest_aorta.runtime.zygotes.channel import Channel
from pytest_aorta.runtime.zygotes.server import Server
from pytest_aorta.runtime.zygotes.task_messages import PrepareOrder, StartReport
from pytest_aorta.runtime.zygotes.zygote_error import StartPhase, ZygoteError, exit_text
from pytest_aorta.runtime.zygotes.zygote_spec import ZygoteSpec

#: The working directory must not shadow what the interpreter imports, as ``-c`` would let it.
_BOOTSTRAP = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "from pytest_aorta.runtime.zygotes.zygote_main import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)

#: Seconds that a zygote may take to prepare, which includes importing what its tasks need.
STARTUP_TIMEOUT = 300.0

#: Bytes of its output that an error quotes.
_OUTPUT = 4000


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
        self._ready = False
        #: Tags of its branches, as long as processes of theirs may be left.
        self.branch_tags: set[str] = set()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in end())
        self._log_lock = threading.Lock()  # a branch's thread may ask for the output while this one is ended
        self._last_output = ""
        ours, theirs = Channel.pair()
        self.control = ours
        fd = theirs.fileno()
        try:
            self._process = subprocess.Popen(
                [*spec.command, "-c", _BOOTSTRAP, str(fd), str(os.getpid())],
                env={**spec.environ, process_tags.VARIABLE: self.tag},
                cwd=spec.cwd,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[fd],
                start_new_session=True,  # Ctrl-C is for pytest, which then ends its trials in order
            )
        except OSError as error:
            ours.close()
            self._log.close()
            raise ZygoteError(f"cannot start {spec.command[0]!r}: {error}") from error
        finally:
            theirs.close()
        order: PrepareOrder = {
            "prepare": spec.prepare,
            "argument": spec.argument,
            "run": spec.run,
            "sys_path": list(spec.sys_path),
            "fresh": spec.fresh,
            "warm_up": spec.warm_up,
            "extend": spec.extend,
        }
        with contextlib.suppress(OSError):  # it has died already, which ``wait_ready`` notices
            ours.send(order)

    def wait_ready(self, timeout: float = STARTUP_TIMEOUT) -> None:
        """Block until prepared.

        Raises:
            ZygoteError: it could not be started or prepared; ``phase`` is ``launch`` or ``import``.
        """
        if self._ready:
            return
        phase: StartPhase = "launch"
        give_up = time.monotonic() + timeout
        while (report := self._start_report(give_up, timeout, phase))["type"] == "preparing":
            phase = "import"
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

    def _start_report(self, give_up: float, timeout: float, phase: StartPhase) -> StartReport:
        if not self.control.poll(max(0.0, give_up - time.monotonic())):
            self.close()
            raise ZygoteError(f"not ready after {timeout:g} s\n{self.output()}", phase=phase)
        report = self.control.receive()
        if report is None:
            raise self._failed_start(phase)
        return cast(StartReport, report)

    def _failed_start(self, phase: StartPhase) -> ZygoteError:
        closed = self._ending
        code = None if closed else self._process.wait()
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
        return ZygoteError(
            f"ended with {exit_text(code)} before it was ready\n{output}".rstrip(), phase=phase, returncode=code
        )

    def _tags(self) -> list[str]:
        return [self.tag, *self.branch_tags.copy()]

    def death(self) -> ZygoteError:
        """The error to raise when the control channel has closed; ends what the zygote can no longer end."""
        if self._ending:
            return ZygoteError(f"the zygote (pid {self._process.pid}) was closed")
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self.sweep()
        return ZygoteError(
            f"the zygote (pid {self._process.pid}) died with {exit_text(code)}\n{self.output()}".rstrip(),
            returncode=code,
        )

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
            self._process.wait(timeout=grace if self._ready else 0.2)
        except subprocess.TimeoutExpired:
            # Busy importing, or stuck: it does not read its channel.
            self._process.kill()
            self._process.wait()
            self.sweep()
        with self._log_lock:
            if not self._log.closed:
                self._last_output = self._read_output()  # an error may still quote it
                self._log.close()
