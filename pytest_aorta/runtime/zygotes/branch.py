"""The parent's side of a branch: a fork of a zygote that serves tasks of its own beside it."""

from __future__ import annotations

import threading
from typing import Any, cast

from pytest_aorta.runtime.zygotes.channel import Channel
from pytest_aorta.runtime.zygotes.process_tags import new_tag
from pytest_aorta.runtime.zygotes.server import Server
from pytest_aorta.runtime.zygotes.task_messages import BranchFate, ExtensionReport
from pytest_aorta.runtime.zygotes.zygote import Zygote
from pytest_aorta.runtime.zygotes.zygote_error import ExtensionFailed, ZygoteError, ZygoteUnwanted, exit_text

#: Seconds that the zygote may take to fork; it does nothing else while it ends a task that resists.
_FORK_TIMEOUT = 60.0

#: Seconds that the zygote may take to notice a branch's death and to end what the branch has left.
_FATE_TIMEOUT = 10.0

#: Seconds that preparing a branch further may take.
EXTENSION_TIMEOUT = 60.0


def start_branch(zygote: Zygote, extension: Any = None) -> Branch:
    """Another process that serves tasks of the zygote's specification, forked from it; from any thread.

    With an ``extension``, a JSON value for ``spec.extend``, it serves after ``wait_extended``.

    Raises:
        ZygoteError: the zygote is gone, or cannot be forked any more.
        ValueError: it must not be forked.
    """
    zygote.wait_ready()
    if zygote.spec.fresh or zygote.against_forking:
        raise ValueError("a zygote that prepares nothing, or must not be forked, has no branches")
    branch = Branch(zygote, extension)
    branch.wait_ready()
    return branch


class Branch(Server):
    """A branch, made by ``start_branch``.

    The branch itself answers on its control channel; the zygote, whose child it is, reports its fate on another one.
    """

    def __init__(self, zygote: Zygote, extension: Any = None) -> None:
        super().__init__()
        self.zygote = zygote
        self.extension = extension
        self.extending = extension is not None
        self.tag = new_tag()
        self.spec = zygote.spec
        self.info = zygote.info
        self.against_forking = []
        self.pid: int | None = None
        self._known_fate: BranchFate | None = None
        self._asking = threading.Lock()
        zygote.branch_tags.add(self.tag)
        self.control, control = Channel.pair()
        self._fate, fate = Channel.pair()
        # The zygote's own thread may be sending at the same time, hence all in one piece.
        zygote.order({"op": "branch", "tag": self.tag, "extension": extension}, [control.fileno(), fate.fileno()])
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

    def wait_extended(self, limit: float = EXTENSION_TIMEOUT) -> None:
        """Block until prepared further, at most ``limit`` seconds; closes it when that fails.

        Raises:
            ExtensionFailed: it raised, crashed, did not end in time, or has made forks unsafe.
            ZygoteUnwanted: it was ended meanwhile.
            ZygoteError: the zygote is gone.
        """
        report: ExtensionReport | None = {}
        try:
            if self.control.poll(limit):
                report = cast("ExtensionReport | None", self.control.receive())
            self._take_extension(report, limit)
        except BaseException:
            self.close()
            raise
        self.extending = False

    def _take_extension(self, report: ExtensionReport | None, limit: float) -> None:
        if report is None:
            if self._ending:
                raise ZygoteUnwanted("it was closed while it was prepared")
            died = self.death()
            raise ExtensionFailed(str(died).partition("\n")[0]) if self.zygote.alive() else died
        if not report:
            raise ExtensionFailed(f"not done after {limit:g} s")
        if report["type"] == "failed":
            raise ExtensionFailed(f"{report['error']['type']}: {report['error']['message']}", error=report["error"])
        if report["refused"] or report["against_forking"]:
            failed = ExtensionFailed(", ".join(report["against_forking"]) or "refused")
            failed.refused = report["refused"]
            raise failed

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._known_fate is None and not self._fate.poll()

    def _learn_fate(self, timeout: float) -> BranchFate | None:
        """What the zygote reports: nothing in time, or an empty mapping when it is gone itself."""
        with self._asking:
            if self._known_fate is None and self._fate.poll(timeout):
                self._known_fate = cast(BranchFate, self._fate.receive() or {})
            return self._known_fate

    def death(self) -> ZygoteError:
        """The error to raise when the control channel has closed; ends what the zygote cannot end."""
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
        # While it is prepared, it does not read its channel.
        if self._learn_fate(0.2 if self.extending else grace) in (None, {}):
            self.sweep()
        self.zygote.branch_tags.discard(self.tag)

    def close(self, grace: float = 10.0) -> None:
        """End it and free what it takes; twice is harmless."""
        super().close(grace)
        self._fate.close()
