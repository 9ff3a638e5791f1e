"""Errors of zygotes, and the parts of their messages."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

#: What a zygote was doing when it failed: being started, or preparing.
StartPhase = Literal["launch", "import"]


class ZygoteError(Exception):
    """A zygote could not start, could not prepare, died, or was closed.

    Attributes:
        phase: ``launch``, or ``import`` once it has begun to prepare.
        error: the exception that its preparation raised.
        returncode: how its process ended (negative for a signal), where that is what went wrong.
    """

    def __init__(
        self,
        message: str,
        *,
        phase: StartPhase = "launch",
        error: dict[str, str] | None = None,
        returncode: int | None = None,
    ) -> None:
        super().__init__(message)
        self.phase = phase
        self.error = error
        self.returncode = returncode

    def again(self) -> ZygoteError:
        """The same for another thread, which must not share a traceback."""
        return type(self)(str(self), phase=self.phase, error=self.error, returncode=self.returncode)


class ExtensionFailed(ZygoteError):
    """A branch could not be prepared further; its zygote is as it was.

    Attributes:
        refused: what the function returned that was to do it, if it did.
    """

    refused: Mapping[str, Any] = MappingProxyType({})


class ZygoteTimeout(ZygoteError):
    """Its start took longer than it may, and was ended.

    Attributes:
        limit: the seconds that have passed.
        stacks: of the processes that were ended, as ``faulthandler`` writes them.
        output: the end of what they had written.
    """

    def __init__(self, limit: float, *, stacks: str, output: str) -> None:
        super().__init__(f"not ready after {limit:g} s\n{output}", phase="import")
        self.limit = limit
        self.stacks = stacks
        self.output = output

    def again(self) -> ZygoteTimeout:
        """The same for another thread, which must not share a traceback."""
        return type(self)(self.limit, stacks=self.stacks, output=self.output)


class ZygoteUnwanted(ZygoteError):
    """Its start was ended because it was not waited for any more; this says nothing about what it was to prepare."""


def exit_text(code: int) -> str:
    """An exit status as text: ``exit code 3`` or ``signal SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def code_behind_prefix(code: int) -> int:
    """The exit status of what ran behind a prefix: by the convention of shells, 128 + N for signal N."""
    return 128 - code if code > 128 and code - 128 in set(signal.Signals) else code


def prefix_text(command: Sequence[str]) -> str:
    """A command as it would be typed, without the values of variables, which may be secrets."""
    return shlex.join(
        re.sub(r"\A(--env=|-e)?([A-Za-z_]\w*)=.*", r"\1\2=...", word, flags=re.DOTALL) for word in command
    )
