"""What a zygote is started from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Seconds that a zygote may take to get ready.
STARTUP_TIMEOUT = 300.0


@dataclass(frozen=True)
class StartLimits:
    """How long the start of a zygote may take.

    Attributes:
        load: seconds for ``ZygoteSpec.load``; ``None`` for no limit of its own.
        grace: seconds between SIGTERM and SIGKILL when it takes longer.
        total: seconds for everything.
    """

    load: float | None = None
    grace: float = 0.0
    total: float = STARTUP_TIMEOUT


@dataclass(frozen=True)
class ZygoteSpec:
    """Everything that is fixed when a zygote starts; two tasks may share a zygote only if all of it is equal.

    Attributes:
        command: launcher prefix and interpreter.
        environ: the complete environment of the process.
        prepare: ``module:function``, called once with ``argument``; returns a JSON mapping.
        argument: JSON value for ``load`` and ``prepare``.
        run: ``module:function``, called in every child as ``run(payload, channel)``. The channel leads to the
            submitter of the task, and carries messages both ways.
        sys_path: entries appended to the child's ``sys.path`` where missing.
        cwd: working directory.
        fresh: prepare in every child instead, each in an interpreter of its own.
        warm_up: ``module:function``, called with ``argument`` in every child that stands by, to touch what its task
            will touch. After a fork, the first touch of a page costs about a microsecond, and a task's start is
            hundreds of them; this way they are over before the task comes. Must have no other effect.
        load: ``module:function``, called with ``argument`` before ``prepare``, to import what is not ours: its time is
            measured, and limited by ``StartLimits``.
    """

    command: tuple[str, ...]
    environ: Mapping[str, str]
    prepare: str
    argument: Any
    run: str
    sys_path: tuple[str, ...]
    cwd: str
    fresh: bool = False
    warm_up: str | None = None
    load: str | None = None

    def key(self) -> str:
        """Digest of all fields."""
        fields = [
            self.command,
            sorted(self.environ.items()),
            self.prepare,
            self.argument,
            self.run,
            self.sys_path,
            self.cwd,
            self.fresh,
            self.warm_up,
            self.load,
        ]
        return hashlib.sha256(json.dumps(fields).encode("utf-8", "surrogateescape")).hexdigest()
