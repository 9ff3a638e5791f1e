"""Callables that tasks run, identified by a digest, and all that travels between processes as a pickle.

Callables, configurations and results go by cloudpickle: what can be imported on the other side goes by name, functions
within functions, lambdas and functions of ``__main__`` go by value.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import itertools
import pickle
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from pytest_aorta.common.import_target import module_file
from pytest_aorta.runtime.captured import REMEDY, Capturing
from pytest_aorta.runtime.tensors import check_kind, from_bytes, to_bytes

#: Callables that one worker may have registered at a time.
MAX_CALLABLES = 64

#: Bytes that a task's return value may have, pickled.
MAX_RESULT = 2**20

#: Bytes of a message that a process may send.
MAX_MESSAGE = 2**30

_FITS = (
    f"what can be pickled fits into a record, {MAX_RESULT} bytes in all; write other results to a tensor in shared"
    " memory (Tag.OUTPUT), or to a file, and return its name"
)

#: Begins the data of a callable that is given as a text ``module:qualname``; no pickle begins so.
_IMPORT = b"import "

#: Types whose values plain pickle takes by value, whatever they are.
PLAIN = frozenset({int, float, str, bytes, bool, complex, type(None)})

loads = pickle.loads


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


@dataclass(frozen=True)
class Definition:
    """A callable in the form in which another process can load it."""

    name: str
    data: bytes
    #: What has to live here while it may be loaded elsewhere.
    keeps: Any = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[type[Definition], tuple[str, bytes]]:
        return type(self), (self.name, self.data)

    @cached_property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(self.data).hexdigest()

    def load(self) -> Any:
        if self.data.startswith(_IMPORT):
            return pkgutil.resolve_name(self.data.removeprefix(_IMPORT).decode())
        return loads(self.data)

    def load_task(self) -> Callable[[Any], Any]:
        """The callable as a slot calls it, with one argument; one that takes none is called without."""
        function = self.load()
        try:
            takes_nothing = not inspect.signature(function).parameters
        except (TypeError, ValueError):  # some functions written in C do not say
            takes_nothing = False
        return (lambda args: function()) if takes_nothing else function


def define(target: Callable[..., Any] | str) -> Definition:
    """Convert a callable, or ``module:qualname``, to a form for other processes.

    Raises:
        TypeError: not a callable, or one that cannot be pickled.
    """
    if isinstance(target, str):
        if ":" not in target:
            raise TypeError(f"{target!r} is not a callable; a text must be 'module:qualname'")
        return Definition(target, _IMPORT + target.encode())
    if not callable(target):
        raise TypeError(f"{target!r} is not a callable")
    name = getattr(target, "__qualname__", type(target).__qualname__)
    with _unimportable_by_value(getattr(target, "__module__", None)):
        captured = Capturing()
        try:
            return Definition(name, _dump(target, captured.reduce), captured.keeps)
        except Exception as error:  # its own methods may raise anything
            why = f"{type(error).__name__}: {error}"
            remedy = f"; {REMEDY}" if REMEDY not in why else ""
            raise TypeError(f"{name} cannot be sent to another process: {why}{remedy}") from error


@contextlib.contextmanager
def _unimportable_by_value(name: str | None) -> Iterator[None]:
    import cloudpickle

    module = None if name in (None, "__main__", *sys.builtin_module_names) else sys.modules.get(name or "")
    file = getattr(module, "__file__", None)
    if module is None or module.__name__ != name or (file and module_file(name or "") == Path(file)):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


# Pickles


def dumps(value: Any, refusal: str) -> bytes:
    """Pickle for another process; raises ``TypeError`` that begins with ``refusal``."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:  # its own methods may raise anything
        raise TypeError(f"{refusal}: {type(error).__name__}: {error}") from error
    return data


def dump_argument(value: Any, refusal: str, references: list[Any]) -> bytes:
    """Pickle an argument of a task; append each ``TaskRef`` in it to ``references``.

    ``load_argument`` puts the results of the references in their places.
    """

    def reduce(item: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        handles = sys.modules["pytest_aorta.runtime.orchestrator"]
        if isinstance(item, handles.MapRef):
            return _joined, item.tasks
        if not isinstance(item, handles.TaskRef):
            return None
        references.append(item)
        return _result, (len(references) - 1,)

    try:
        return _dump(value, reduce)
    except Exception as error:  # its own methods may raise anything
        raise TypeError(f"{refusal}: {type(error).__name__}: {error}") from error


def load_argument(data: bytes | bytearray, results: Sequence[Any]) -> Any:
    """The reverse of ``dump_argument``, with the results of the references."""
    token = _results.set(results)
    try:
        return loads(data)
    finally:
        _results.reset(token)


_results: ContextVar[Sequence[Any]] = ContextVar("results")


def _result(number: int) -> Any:
    return _results.get()[number]


def _joined(*chunks: list[Any]) -> list[Any]:
    return list(itertools.chain(*chunks))


@lru_cache(maxsize=1)  # a class per pickle would cost more than most of them
def _pickler() -> Any:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        def __init__(self, file: io.BytesIO, reduce: Callable[[Any], Any]) -> None:
            super().__init__(file)
            self.reduce = reduce

        def reducer_override(self, item: Any) -> Any:
            reduced = self.reduce(item)
            return super().reducer_override(item) if reduced is None else reduced

    return Pickler


def _dump(value: Any, reduce: Callable[[Any], Any]) -> bytes:
    if type(value) in PLAIN:
        return pickle.dumps(value, 5)
    file = io.BytesIO()
    _pickler()(file, reduce).dump(value)
    return file.getvalue()


def dump_result(value: Any, most: int = MAX_RESULT) -> bytes | None:
    """Pickle the return value of a task (``None`` stays ``None``); a ``TaskRef`` in it stands for its task's result."""
    if value is None:
        return None
    try:
        data = _dump(value, lambda item: _reduce_result(item, most))
    except _DoesNotFit as error:
        raise error.reason from None
    except Exception as error:
        raise TypeError(f"the return value cannot be pickled: {type(error).__name__}: {error}; {_FITS}") from error
    if len(data) > most:
        raise _too_large(len(data)).reason
    return data


class _DoesNotFit(Exception):
    def __init__(self, reason: Exception) -> None:
        self.reason = reason


def _too_large(size: int) -> _DoesNotFit:
    return _DoesNotFit(ValueError(f"the return value has {size} bytes or more: {_FITS}"))


def _reduce_result(value: Any, most: int) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    handles = sys.modules.get("pytest_aorta.runtime.orchestrator")
    if handles is not None and isinstance(value, handles.TaskRef) and value.record is not None:
        return _itself, (value.record.value,)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    if value.numel() * value.element_size() > most:  # before it is copied
        raise _too_large(value.numel() * value.element_size())
    plain = value.detach().resolve_conj().resolve_neg() if value.layout == torch.strided else value
    try:
        return from_bytes, to_bytes(check_kind(plain))
    except (TypeError, ValueError) as error:
        remedy = "call .cpu(), .to_dense() or .dequantize()"
        raise _DoesNotFit(TypeError(f"the return value has a tensor that cannot be sent: {error}; {remedy}")) from None


def _itself(value: Any) -> Any:
    return value


# What is registered


class Callables:
    """The callables of one worker: definitions by digest, counted by the handles that are valid. Can be pickled."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        #: Owners whose handles are valid here: this worker and those above it.
        self.owners = frozenset({owner})
        self.definitions: dict[str, Definition] = {}
        #: Grows with every change of the definitions.
        self.version = 0
        #: Digest, and the ids of the workers that may run it, by the serial number of the handle.
        self._handles: dict[int, tuple[str, frozenset[int] | None]] = {}
        self._next = 0

    def copy(self, above: Callables | None = None) -> Callables:
        """A copy for the process of this worker, with the callables of the worker ``above``."""
        made = Callables(self.owner)
        made.owners = self.owners | (above.owners if above is not None else frozenset())
        made.definitions = {**self.definitions, **(above.definitions if above is not None else {})}
        made._handles, made._next = dict(self._handles), self._next
        return made

    def add(self, definition: Definition, eligible: frozenset[int] | None = None) -> CallableHandle:
        """Register a callable; every call gives another handle. ``RuntimeError``: there is no room for one more."""
        if definition.digest not in self.definitions and len(self.definitions) >= MAX_CALLABLES:
            raise RuntimeError(f"at most {MAX_CALLABLES} callables can be registered at a time")
        handle = CallableHandle(definition.digest, self.owner, self._next, definition.name)
        self._handles[handle.serial] = handle.digest, eligible
        self._next += 1
        self.update([definition], ())
        return handle

    def remove(self, handle: CallableHandle) -> None:
        """Drop a handle; the last handle of a callable drops the callable."""
        self.resolve(handle)
        self._handles.pop(handle.serial if handle.owner == self.owner else -1, None)
        self.update((), [handle.digest])

    def is_last(self, handle: CallableHandle) -> bool:
        self.resolve(handle)
        others = {serial: digest for serial, (digest, _) in self._handles.items() if serial != handle.serial}
        return handle.digest not in others.values()

    def update(self, new: Iterable[Definition], gone: Iterable[str]) -> None:
        """Add callables, and forget others that have no valid handle here."""
        kept = {digest for digest, _ in self._handles.values()}
        self.definitions.update((definition.digest, definition) for definition in new)
        for digest in gone:
            if digest not in kept:
                self.definitions.pop(digest, None)
        self.version += 1

    def restrictions(self) -> list[frozenset[int]]:
        return [eligible for _, eligible in self._handles.values() if eligible is not None]

    def resolve(self, handle: object, workers: Iterable[int] = ()) -> tuple[Definition, frozenset[int] | None]:
        """The definition of a handle, and the ids of the workers that may run it; all, if ``None``.

        Raises:
            TypeError: something else than a handle.
            ValueError: a handle that was dropped, is another worker's, or was tampered with; or one of ``workers``
                may not run it.
        """
        if not isinstance(handle, CallableHandle):
            raise TypeError(f"expected a CallableHandle returned by Worker.register, not {handle!r}")
        own = handle.owner == self.owner
        digest, eligible = self._handles.get(handle.serial, ("", None)) if own else (handle.digest, None)
        if digest != handle.digest or handle.owner not in self.owners or digest not in self.definitions:
            raise ValueError(f"the handle of {handle.name} is not (or no longer) one of this worker")
        if eligible is not None:
            for worker in workers:
                if worker not in eligible:
                    raise ValueError(f"{handle.name} is registered for workers {sorted(eligible)}, not for {worker}")
        return self.definitions[digest], eligible


@dataclass(frozen=True)
class WorkerSpec:
    """Everything that another process needs to build a worker: arguments of ``Worker`` and registered callables.

    Attributes:
        children: the workers below, each with its host: an execnet specification, or ``None`` for the same one.
    """

    level: int
    callables: Callables
    device_ids: tuple[int, ...] = ()
    num_sub_workers: int = 0
    heap_ring_size: int = 2**30
    ring_size: int = 2**17
    ring_timeout: float | None = None
    startup_timeout_s: float = 300.0
    prepare: Definition | None = None
    grace: float = 5.0
    max_deaths: int | None = None
    allowed_failures: int | None = 3
    check: bool = False
    pin: bool | str = "auto"
    max_result: int = MAX_RESULT
    replay_orders: tuple[int, ...] = ()
    children: tuple[tuple[WorkerSpec, str | None], ...] = ()
