"""A fresh process that imports the workload for the description of its cell, and then waits for the cell's first trial.

With ``spawn`` every trial imports the workload in an interpreter of its own. How its trials start is known only after
an import, so the first trial gets the process that was started for that.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from typing import Any

from pytest_aorta.common.texts import read_tail
from pytest_aorta.runtime.resources.used_folders import UsedFolder, make_own
from pytest_aorta.runtime.zygote import (
    StartLimits,
    Task,
    Zygote,
    ZygoteError,
    ZygoteSpec,
    ZygoteTimeout,
    ZygoteUnwanted,
    child_task,
    exit_text,
)

#: Bytes of its output that an error quotes.
_OUTPUT = 4000


class HeldProcess:
    """One thread uses it at a time; any may ``interrupt``.

    Attributes:
        server: the bare zygote whose child it is.
        info: what the preparation has returned.
        import_sec: seconds that the import took.
    """

    def __init__(self, spec: ZygoteSpec) -> None:
        self.info: dict[str, Any] = {}
        self.import_sec = 0.0
        self._unwanted = False
        self.server = Zygote(spec)
        self._folder = UsedFolder(make_own)
        self._logs: dict[str, Any] = {
            name: self._folder.path / f"{name}.log" for name in ("stdout", "stderr", "stacks")
        }

    def prepare(self, cores: Sequence[int] | None, limits: StartLimits) -> None:
        """Import the workload; its output is kept for the trial.

        Raises:
            ZygoteTimeout: the import took too long.
            ZygoteUnwanted: it was interrupted.
            ZygoteError: it failed.
        """
        try:
            self.server.wait_ready(limits)
            self._task = self.server.submit(None, **self._logs, cores=cores, hold=True)
            self._follow(self._task, limits)
        except BaseException as error:
            self.close()
            if self._unwanted and isinstance(error, ZygoteError):
                raise ZygoteUnwanted("its start was cancelled") from None
            raise

    def _follow(self, task: Task, limits: StartLimits) -> None:
        limit, overall = limits.total, time.monotonic() + limits.total
        give_up = overall
        while True:
            try:
                message = task.next_message(give_up)
            except TimeoutError:
                raise self._end_overdue(task, limit, limits.grace) from None
            if message is None:
                assert task.ended is not None
                code = task.ended["returncode"]
                how = "an unknown exit code" if code is None else exit_text(code)
                text = f"ended with {how} before it was ready\n{self._output()}".rstrip()
                raise ZygoteError(text, phase="import", returncode=code)
            if message.get("type") == "loading" and limits.load is not None:
                limit, give_up = limits.load, time.monotonic() + limits.load
            elif message.get("type") == "loaded":
                limit, give_up, self.import_sec = limits.total, overall, message["sec"]
            elif message.get("type") == "prepared":
                self.info = message["info"]
                return
            elif message.get("type") == "failed":
                error = message["error"]
                text = f"{error['type']}: {error['message']}"
                raise ZygoteError(text, phase=message.get("phase", "import"), error=error)

    def _end_overdue(self, task: Task, limit: float, grace: float) -> ZygoteTimeout:
        task.kill(grace)
        while task.next_message(None) is not None:
            pass
        stacks = self._logs["stacks"].read_text(errors="replace") if self._logs["stacks"].exists() else ""
        return ZygoteTimeout(limit, stacks=stacks, output=self._output())

    def _output(self) -> str:
        return "".join(read_tail(self._logs[name], _OUTPUT) for name in ("stdout", "stderr"))

    def resume(self, payload: Any, logs: dict[str, Any], cores: Sequence[int] | None, fds: Sequence[int]) -> Task:
        """Hand it its trial, which gets the output of the import.

        Raises:
            OSError: it has died meanwhile.
        """
        for name in ("stdout", "stderr"):
            shutil.copyfile(self._logs[name], logs[name])
        self._task.send(child_task(payload, **logs, cores=cores, descriptors=fds), tuple(fds))
        self._folder.close()
        return self._task

    def interrupt(self) -> None:
        """End it, from any thread."""
        self._unwanted = True
        self.server.end(grace=0.2)

    def close(self) -> None:
        """End it; twice is harmless."""
        self.server.close()
        self._folder.close()
