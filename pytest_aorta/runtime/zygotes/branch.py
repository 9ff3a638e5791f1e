"""The parent's side of a branch: a fork of a zygote that serves tasks of its own beside it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pytest_aorta.runtime.zygotes.channel import Channel, Message
from pytest_aorta.runtime.zygotes.server import Server
from pytest_aorta.runtime.zygotes.zygote_error import ZygoteError, exit_text

if TYPE_CHECKING:
    from pytest_aorta.runtime.zygotes.zygote import Zygote

#: Seconds that the zygote may take to fork; it does nothing else while it ends a task that resists.
_FORK_TIMEOUT = 60.0

#: Seconds that the zygote may take to notice a branch's death and to end what the branch has left.
_FATE_TIMEOUT = 10.0


class Branch(Server):
    """A branch, made by ``Zygote.branch``.

    The branch itself answers on its control channel; the zygote, whose child it is, tells its fate on another one.
    """

    def __init__(self, zygote: Zygote, mark: str) -> None:
        super().__init__()
        self.zygote = zygote
        self.mark = mark
        self.spec = zygote.spec
        self.info = zygote.info
        self.against_forking = []
        self.pid: int | None = None
        self._told: Message | None = None
        self._asking = threading.Lock()
        self.control, control = Channel.pair()
        self._fate, fate = Channel.pair()
        # The zygote's own thread may be sending at the same time, hence all in one piece.
        zygote.order({"op": "branch", "mark": mark}, [control.fileno(), fate.fileno()])
        control.close()
        fate.close()

    def wait_ready(self) -> None:
        """Block until forked.

        Raises:
            ZygoteError: the zygote is gone, or cannot be forked any more.
        """
        if self.pid is not None:
            return
        message = self.control.receive() if self.control.poll(_FORK_TIMEOUT) else {}
        if not message:
            error = (
                self.death()
                if message is None
                else ZygoteError(f"the zygote has made no branch in {_FORK_TIMEOUT:g} s\n{self.zygote.output()}")
            )
            self.close()
            raise error
        self.pid = message["pid"]

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._told is None and not self._fate.poll()

    def _learn_fate(self, timeout: float) -> Message | None:
        """What the zygote tells: nothing in time, or an empty message when it is gone itself."""
        with self._asking:
            if self._told is None and self._fate.poll(timeout):
                self._told = self._fate.receive() or {}
            return self._told

    def death(self) -> ZygoteError:
        """What to say when the control channel has closed; ends what nobody else will."""
        name = f"the zygote's branch (pid {self.pid})"
        if self._ending:
            return ZygoteError(f"{name} was closed")
        fate = self._learn_fate(_FATE_TIMEOUT)
        if fate == {}:
            return self.zygote.death()
        if fate is not None and "error" in fate:
            return ZygoteError(f"the zygote cannot fork: {fate['error']}")
        code = None if fate is None else fate["returncode"]
        if code is None:
            self.sweep()
        how = "does not answer" if code is None else f"died with {exit_text(code)}"
        return ZygoteError(f"{name} {how}\n{self.zygote.output()}".rstrip(), returncode=code)

    def end(self, grace: float = 10.0) -> None:
        """End the branch and whatever it runs, from any thread."""
        self.hang_up()
        if self._learn_fate(grace) in (None, {}):
            self.sweep()
        self.zygote.forget(self)

    def close(self, grace: float = 10.0) -> None:
        """End it and free what it takes; twice is harmless."""
        super().close(grace)
        self._fate.close()
