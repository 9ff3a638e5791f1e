"""Callables that tasks run: identified by a digest, named by handles that are checked."""

from __future__ import annotations

import base64
import hashlib
import importlib.machinery
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pytest_aorta.common.import_target import import_target

#: Callables that one worker may have registered at a time.
MAX_CALLABLES = 64

_VERSION = b"aorta-callable-1"


@dataclass(frozen=True)
class CallableHandle:
    """A registered callable. Valid at the worker that gave it and at all workers below that one.

    Attributes:
        digest: ``sha256:`` and 64 lower-case hexadecimal digits; equal callables have equal digests.
        owner: the worker that gave it.
        serial: of the handle; two handles of one callable are dropped one by one.
        name: for messages.
    """

    digest: str
    owner: str
    serial: int
    name: str

    def __repr__(self) -> str:
        return f"<CallableHandle {self.name} {self.digest[:15]}>"


@dataclass(frozen=True)
class Definition:
    """How another process gets hold of a callable: by import, or by its pickled code."""

    kind: str
    content: str
    name: str

    @cached_property
    def digest(self) -> str:
        """Identity: the kind and the content, nothing else."""
        fields = (_VERSION, self.kind.encode(), self.content.encode())
        size = b"".join(len(part).to_bytes(8, "little") + part for part in fields)
        return "sha256:" + hashlib.sha256(size).hexdigest()

    def load(self) -> Any:
        """The callable itself, in this process."""
        if self.kind == "import":
            return import_target(self.content)
        import cloudpickle

        return cloudpickle.loads(base64.b64decode(self.content))

    def load_task(self) -> Callable[[Any], Any]:
        """The callable as a slot calls it, with one argument; one that takes none is called without."""
        function = self.load()
        return (lambda args: function()) if _takes_nothing(function) else function

    def to_plain(self) -> list[str]:
        """JSON values."""
        return [self.kind, self.content, self.name]


def _takes_nothing(function: Any) -> bool:
    try:
        return not inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C do not say
        return False


def define(target: Callable[..., Any] | str) -> Definition:
    """How to send a callable, or ``module:qualname``, to another process.

    What can be imported there by name is; the rest (functions inside functions, lambdas, ``__main__``) goes by value.

    Raises:
        TypeError: not a callable, or one that cannot be pickled.
    """
    if isinstance(target, str):
        if ":" not in target:
            raise TypeError(f"{target!r} is not a callable; a text must be 'module:qualname'")
        return Definition("import", target, target)
    if not callable(target):
        raise TypeError(f"{target!r} is not a callable")
    name = getattr(target, "__qualname__", type(target).__qualname__)
    module = getattr(target, "__module__", None)
    if module is not None and _importable(target, module, name):
        return Definition("import", f"{module}:{name}", name)
    return Definition("pickle", base64.b64encode(_pickled(target, module)).decode(), name)


def _importable(target: Any, module: str, qualname: str) -> bool:
    if module == "__main__" or "<" in qualname:
        return False
    found: Any = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    try:
        for name in qualname.split("."):
            found = getattr(found, name)
    except AttributeError:
        return False
    return found is target and _is_on_path(module, file)


def _is_on_path(module: str, file: str | None) -> bool:
    """Whether a fresh process with our ``sys.path`` would find the same file under this name."""
    path = None
    spec = None
    for part in itertools.accumulate(module.split("."), lambda left, right: f"{left}.{right}"):
        spec = importlib.machinery.PathFinder.find_spec(part, path)
        if spec is None:
            return module in sys.builtin_module_names
        path = list(spec.submodule_search_locations or ())
    return spec is not None and spec.origin == file


def _pickled(target: Any, module: str | None) -> bytes:
    import cloudpickle

    known = sys.modules.get(module or "")
    # A module that the other process cannot find: its functions go by value, too.
    by_value = (
        known is not None
        and module != "__main__"
        and sys.modules.get(known.__name__) is known
        and not _is_on_path(known.__name__, getattr(known, "__file__", None))
    )
    if by_value:
        cloudpickle.register_pickle_by_value(known)
    try:
        data: bytes = cloudpickle.dumps(target)
    except Exception as error:
        raise TypeError(f"{target!r} cannot be sent to another process: {error}") from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(known)
    return data


@dataclass(frozen=True)
class Registration:
    """What a handle stands for: a callable, and the ids of the workers that may run it; all, if ``None``."""

    digest: str
    eligible: frozenset[int] | None = None


@dataclass(frozen=True)
class CallableTable:
    """What a ``Callables`` holds, at one moment.

    Attributes:
        owner: the worker whose callables they are.
        owners: that worker and those above it.
        definitions: of all callables that are known to it.
        handles: by serial, the handles that ``owner`` gave.
    """

    owner: str
    owners: frozenset[str]
    definitions: tuple[Definition, ...]
    handles: Mapping[int, Registration]


class Callables:
    """The callables of one worker: definitions by digest, counted by the handles that are valid."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        #: Owners whose handles are valid here: this worker and those above it.
        self.owners = {owner}
        self.definitions: dict[str, Definition] = {}
        self._handles: dict[int, Registration] = {}
        self._serials = itertools.count()

    def add(self, definition: Definition, eligible: frozenset[int] | None = None) -> CallableHandle:
        """Register a callable; every call gives another handle.

        Raises:
            RuntimeError: there is no room for one more.
        """
        if definition.digest not in self.definitions and len(self.definitions) >= MAX_CALLABLES:
            raise RuntimeError(f"at most {MAX_CALLABLES} callables can be registered at a time")
        self.definitions[definition.digest] = definition
        handle = CallableHandle(definition.digest, self.owner, next(self._serials), definition.name)
        self._handles[handle.serial] = Registration(handle.digest, eligible)
        return handle

    def remove(self, handle: CallableHandle) -> str | None:
        """Drop a handle; the digest, when the callable is forgotten with it."""
        self.resolve(handle)
        if handle.owner == self.owner:
            del self._handles[handle.serial]
        return handle.digest if self.forget(handle.digest) else None

    def is_last(self, handle: CallableHandle) -> bool:
        """Whether the callable is forgotten with this handle; raises as ``resolve``."""
        self.resolve(handle)
        return not any(
            registration.digest == handle.digest and serial != handle.serial
            for serial, registration in self._handles.items()
        )

    def accept(self, definition: Definition) -> bool:
        """Take in what a worker above has registered; whether it is new here."""
        new = definition.digest not in self.definitions
        self.definitions[definition.digest] = definition
        return new

    def forget(self, digest: str) -> bool:
        """Forget a callable, unless one of its handles is valid; whether it is forgotten."""
        if any(registration.digest == digest for registration in self._handles.values()):
            return False
        self.definitions.pop(digest, None)
        return True

    def table(self, above: CallableTable | None = None) -> CallableTable:
        """For the process of this worker, which also knows what the worker ``above`` knows."""
        inherited = () if above is None else above.definitions
        definitions = {**self.definitions, **{definition.digest: definition for definition in inherited}}
        owners = frozenset(self.owners if above is None else self.owners | above.owners)
        return CallableTable(self.owner, owners, tuple(definitions.values()), dict(self._handles))

    @classmethod
    def from_table(cls, table: CallableTable) -> Callables:
        """The reverse of ``table``."""
        made = cls(table.owner)
        made.owners.update(table.owners)
        made.definitions = {definition.digest: definition for definition in table.definitions}
        made._handles = dict(table.handles)
        made._serials = itertools.count(1 + max(table.handles, default=-1))
        return made

    def restrictions(self) -> list[frozenset[int]]:
        """The ids of workers that handles were registered for."""
        return [found.eligible for found in self._handles.values() if found.eligible is not None]

    def resolve(self, handle: object, workers: Iterable[int] = ()) -> tuple[Definition, frozenset[int] | None]:
        """The definition of a handle, and the ids of the workers that may run it; all, if ``None``.

        Raises:
            TypeError: something else than a handle.
            ValueError: a handle that was dropped, is another worker's, or was tampered with; or one of ``workers``
                may not run it.
        """
        if not isinstance(handle, CallableHandle):
            raise TypeError(f"expected a handle from Worker.register, not {handle!r}")
        registration = self._handles.get(handle.serial) if handle.owner == self.owner else Registration(handle.digest)
        valid = registration is not None and registration.digest == handle.digest and handle.owner in self.owners
        if registration is None or not valid or handle.digest not in self.definitions:
            raise ValueError(f"the handle of {handle.name} is not (or no longer) one of this worker")
        eligible = registration.eligible
        if eligible is not None:
            for worker in workers:
                if worker not in eligible:
                    raise ValueError(f"{handle.name} is registered for workers {sorted(eligible)}, not for {worker}")
        return self.definitions[handle.digest], eligible
