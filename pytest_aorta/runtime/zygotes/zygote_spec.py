"""What a zygote is started from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
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
        extend: ``module:function``, called once in a branch that is started with an ``extension``, a JSON value, with
            that value. What it imports is there for the tasks of this branch only. It returns a JSON mapping of what
            it refuses to do, empty for nothing; otherwise the branch does not serve.
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
    extend: str | None = None

    def key(self) -> str:
        """Digest of all fields."""
        return self._key

    @cached_property
    def _key(self) -> str:
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
            self.extend,
        ]
        return hashlib.sha256(json.dumps(fields).encode("utf-8", "surrogateescape")).hexdigest()
