"""What a zygote is started from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ZygoteSpec:
    """Everything that is fixed when a zygote starts; two tasks may share a zygote only if all of it is equal.

    Attributes:
        command: launcher prefix and interpreter.
        environ: the complete environment of the process.
        prepare: ``module:function``, called once with ``argument``; returns a JSON mapping.
        argument: JSON value for ``prepare``.
        run: ``module:function``, called in every child as ``run(payload, channel)``. The channel leads to the
            submitter of the task, and carries messages both ways.
        sys_path: entries appended to the child's ``sys.path`` where missing.
        cwd: working directory.
        fresh: prepare in every child instead, each in an interpreter of its own.
        warm_up: ``module:function``, called with ``argument`` in every child that stands by, to touch what its task
            will touch. After a fork, the first touch of a page costs about a microsecond, and a task's start is
            hundreds of them; this way they are over before the task comes. Must have no other effect.
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
        ]
        return hashlib.sha256(json.dumps(fields).encode("utf-8", "surrogateescape")).hexdigest()
