"""Failure signatures: which failing trials have failed alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Signature:
    """What failing trials have in common.

    Attributes:
        kind: of the failure: exception, signal, exit_code, timeout, stall, result, rank.
        phase: in which it failed.
        type: of the exception, or name of the signal.
        role: ``rank`` where one rank of several has failed, ``rank 0`` ... if it is always this one; else empty.
        where: innermost frame of the user's code, ``train.py:88 in step``; empty where there is none.
        message: first line, without numbers, addresses, paths and ids.
    """

    kind: str
    phase: str
    type: str = ""
    role: str = ""
    where: str = ""
    message: str = ""

    @property
    def text(self) -> str:
        """One line for the table: ``loss is nan (train.py:88 in step)``."""
        what = self.message or self.type or f"{self.kind} in {self.phase}"
        return f"{what} ({self.where})" if self.where else what


def signature_of(record: Mapping[str, Any]) -> Signature | None:
    """The signature of a trial's record; ``None`` where it has not failed."""
    failure = record.get("failure")
    if record["exit_status"] == "ok" or not failure:
        return None
    lines = (failure.get("message") or "").strip().splitlines()
    return Signature(
        kind=failure["kind"],
        phase=failure["phase"],
        type=failure.get("type") or failure.get("signal") or "",
        message=_VOLATILE.sub("#", lines[0]) if lines else "",
    )
