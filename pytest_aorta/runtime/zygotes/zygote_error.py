"""What goes wrong with a zygote, in words."""

from __future__ import annotations

import signal
from collections.abc import Mapping
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
