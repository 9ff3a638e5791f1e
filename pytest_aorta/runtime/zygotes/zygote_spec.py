"""What a zygote is started from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
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
class Behind:
    """What to know of a launcher prefix; its words may hold ``prefix_socket.TAG_WORD``.

    Attributes:
        restored: variables that are set again if the prefix passes none on.
        packages: the folder with this package as the process sees it; ``None`` where that is installed.
        stop: a command that ends what the prefix has started, if that outlives the prefix.
    """

    restored: Mapping[str, str] = field(default_factory=dict, repr=False)
    packages: str | None = None
    stop: tuple[str, ...] = ()


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
        behind: about the prefix, where ``command`` has one.
        extend: ``module:function``, called once in a branch that is started with an ``extension``, a JSON value, with
            that value. What it imports is there for the tasks of this branch only. It returns a JSON mapping of what
            it refuses to do, empty for nothing; otherwise the branch does not serve.
        orphaned: ``module:function``, called when the parent has been killed and all tasks are over, to put away what
            it has left. Not behind a prefix.
        concurrent: run any number of tasks at the same time, each in a child that is forked when its task comes. Such a
            zygote has neither a child that stands by nor branches; its tasks are those of ``concurrent_task``.
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
    load: str | None = None
    orphaned: str | None = None
    concurrent: bool = False
    behind: Behind = field(default_factory=Behind)

    @property
    def has_prefix(self) -> bool:
        """Whether something stands in front of the interpreter."""
        return len(self.command) > 1

    def with_variables(self, variables: Mapping[str, str]) -> ZygoteSpec:
        """With more variables, which reach the process behind any prefix."""
        behind = replace(self.behind, restored={**self.behind.restored, **variables})
        return replace(self, environ={**self.environ, **variables}, behind=behind)

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
            self.load,
            self.orphaned,
            self.concurrent,
            [sorted(self.behind.restored.items()), self.behind.packages, self.behind.stop],
        ]
        return hashlib.sha256(json.dumps(fields).encode("utf-8", "surrogateescape")).hexdigest()
