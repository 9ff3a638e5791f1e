"""Arguments of tasks, and checks of what users pass: messages name the expected type, or valid values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.graph import NO_BYTES, Footprint, Tag
from pytest_aorta.runtime.tensors import check_kind, check_writable, footprint_of, is_private, original, slab_of

if TYPE_CHECKING:
    import torch

    from pytest_aorta.runtime.tensors import ByValue

MAX_TENSORS = 256
MAX_SCALARS = 128


class CallConfig(SimpleNamespace):
    """Named values: ``CallConfig(seed=1, threads=4)``, which a slot finds as ``args.config.seed``.

    Any object that can be pickled does as well.
    """


@dataclass(frozen=True)
class SlotArgs:
    """What a task's callable gets: ``fn(args)``.

    Attributes:
        tensors: views of the memory that the submitter sees, in the order of ``TaskArgs.add``.
        scalars: in the order of ``TaskArgs.add_scalar``.
        config: what the submission was given.
    """

    tensors: Sequence[torch.Tensor] = ()
    scalars: Sequence[Any] = ()
    config: Any = None


class TaskArgs:
    """Arguments of one task, in the order in which they were added. Nothing that was added can be changed."""

    __slots__ = ("__weakref__", "_blank", "_scalars", "_tags", "_tensors")

    def __init__(self) -> None:
        # Tuples, of which a waiting task shares what it can: the garbage collector walks all containers.
        self._tensors: tuple[Any, ...] = ()
        self._tags: tuple[Tag, ...] = ()
        self._scalars: tuple[Any, ...] = ()
        #: Numbers of the tensors that do not exist yet.
        self._blank: tuple[int, ...] = ()

    def __repr__(self) -> str:
        tensors = ", ".join(
            f"{tag.name} {tuple(tensor.shape)}" for tensor, tag in zip(self._tensors, self._tags, strict=True)
        )
        return f"TaskArgs([{tensors}], {self._scalars!r})"

    @property
    def tensors(self) -> tuple[Any, ...]:
        """In a submitted task, a copy of private memory is ``ByValue``."""
        return self._tensors

    @property
    def tags(self) -> tuple[Tag, ...]:
        """The tag of each tensor."""
        return self._tags

    @property
    def scalars(self) -> tuple[Any, ...]:
        return self._scalars

    @property
    def written(self) -> list[int]:
        """Numbers of the tensors that the task may write."""
        return [number for number, tag in enumerate(self._tags) if tag.writes]

    def add(self, tensor: torch.Tensor, tag: Tag = Tag.INPUT) -> TaskArgs:
        """Append a tensor.

        Raises:
            TypeError: not a plain dense CPU tensor, or not a tag.
            ValueError: a tensor that is not in shared memory, or several of whose items are one, cannot be written;
                its memory has been let go; or these are too many.
        """
        if not isinstance(tag, Tag):
            raise TypeError(f"expected a Tag, not {tag!r}")
        self._append(_checked(tensor, tag), tag)
        return self

    add_tensor = add  # upstream's name

    def _append(self, tensor: torch.Tensor, tag: Tag) -> None:
        if len(self._tensors) == MAX_TENSORS:
            raise ValueError(f"a task takes at most {MAX_TENSORS} tensors")
        self._tensors += (tensor,)
        self._tags += (tag,)

    def add_output(self, shape: Sequence[int], dtype: torch.dtype | None = None) -> TaskArgs:
        """Append an ``OUTPUT`` that the submission allocates, as ``orch.alloc`` does (default: float32).

        ``TaskRef.outputs`` has the tensor, for tasks that read it.

        Raises:
            TypeError: not whole numbers, or no type of torch.
            ValueError: a negative size, or these are too many.
        """
        self._append(blank_tensor(shape, dtype), Tag.OUTPUT)
        self._blank += (len(self._tensors) - 1,)
        return self

    def add_scalar(self, value: Any) -> TaskArgs:
        """Append a value: a number, a text, or anything that cloudpickle takes; the submission takes a copy.

        A ``TaskRef`` stands for what its task returns: the new task waits for it.

        Raises:
            ValueError: these are too many.
        """
        if len(self._scalars) == MAX_SCALARS:
            raise ValueError(f"a task takes at most {MAX_SCALARS} scalars")
        self._scalars += (value,)
        return self

    def submitted(
        self, output: Callable[[torch.Tensor], torch.Tensor], private: Callable[[torch.Tensor], torch.Tensor | ByValue]
    ) -> tuple[TaskArgs, list[tuple[Footprint, Tag]]]:
        """A copy, which later additions do not change, and the current footprint and tag of each tensor.

        ``output`` makes tensors that do not exist yet, ``private`` copies of those that only this process sees.

        Raises:
            ValueError: two tensors write the same bytes, and nothing says which of them wins; reads may overlap
                anything. Or written memory is not shared any more: a tensor may have been given another storage since
                it was added.
        """
        made = TaskArgs()
        made._tags, made._scalars = self._tags, self._scalars
        tensors: list[Any] = []
        accesses: list[tuple[Footprint, Tag]] = []
        for number, (tensor, tag) in enumerate(zip(self._tensors, self._tags, strict=True)):
            if number in self._blank:
                tensor = output(tensor)
            else:
                _check_use(check_kind(tensor), tag)
            if is_private(tensor):  # nothing else will see the bytes of its copy
                tensors.append(private(tensor))
                accesses.append((NO_BYTES, tag))
            else:
                tensors.append(tensor)
                accesses.append((footprint_of(tensor), tag))
        made._tensors = tuple(tensors)
        self._check_writes(accesses)
        return made, accesses

    def _check_writes(self, accesses: list[tuple[Footprint, Tag]]) -> None:
        written = [(footprint, index) for index, (footprint, tag) in enumerate(accesses) if tag.writes]
        reaching: list[tuple[Footprint, int]] = []  # those that may meet the next one
        for footprint, index in sorted(written, key=lambda write: write[0].offset):
            reaching = [write for write in reaching if write[0].stop > footprint.offset]
            for other, earlier in reaching:
                if footprint.overlaps(other):
                    a, b = (f"{at} ({self._tags[at].name})" for at in sorted((earlier, index)))
                    raise ValueError(
                        f"tensors {a} and {b} of one task write the same bytes; give it disjoint slices, or one tensor"
                        " that spans both"
                    )
            reaching.append((footprint, index))


def _checked(tensor: object, tag: Tag) -> torch.Tensor:
    checked = original(check_kind(tensor))
    _check_use(checked, tag)
    return checked


def _check_use(tensor: torch.Tensor, tag: Tag) -> None:
    slab = slab_of(tensor)
    if slab is not None and slab.node is not None and not slab.node.in_scope:
        raise ValueError(
            "this memory (of orch.alloc or add_output) cannot be passed: its scope has ended; submit within the scope,"
            " or pass a copy (.clone())"
        )
    if tag.writes:
        check_writable(tensor, tag.name)


# Checks of what users pass


def given(value: object) -> str:
    """Text of a wrong value for a message: the value and its type."""
    try:
        text = repr(value)
    except Exception:
        text = "an object"
    return f"{text if len(text) <= 80 else f'{text[:80]}...'} ({type(value).__name__})"


def expect(name: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Raise ``TypeError`` for a value of another type; bools are no numbers."""
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise TypeError(f"{name} must be {wanted}, not {given(value)}")


def whole_number(name: str, value: object, least: int = 0) -> None:
    """Raise ``TypeError`` for what is no int, ``ValueError`` for one below ``least``."""
    expect(name, value, int, f"a whole number from {least}")
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number from {least}, not {value!r}")


def seconds(name: str, value: object, *, zero: bool = False) -> None:
    """Raise unless it is a finite number of seconds above 0; with ``zero``, 0 is allowed as well."""
    wanted = f"a number of seconds {'from' if zero else 'above'} 0"
    expect(name, value, (int, float), wanted)
    assert isinstance(value, int | float)
    if not 0 <= value < float("inf") or not (zero or value):
        raise ValueError(f"{name} must be {wanted}, not {value!r}")


def blank_tensor(shape: object, dtype: object) -> torch.Tensor:
    """A tensor of this shape and type (default: float32) without memory."""
    import torch

    sizes = listed("shape", shape, "a list of whole numbers")
    for size in sizes:
        whole_number("a size of the shape", size)
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype or None, not {given(dtype)}")
    return torch.empty(sizes, dtype=dtype or torch.float32, device="meta")


def check_timeout(timeout: object) -> None:
    """Raise ``TypeError`` unless a timeout is ``None`` or a number of seconds; a negative one has passed already."""
    if timeout is not None:
        expect("timeout", timeout, (int, float), "a number of seconds or None")


def check_function(name: str, value: object, signature: str) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be a function {signature}, not {given(value)}")


def listed(name: str, value: object, wanted: str) -> list[Any]:
    """The entries of an iterable; raises ``TypeError`` for a single object."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise TypeError(f"{name} must be {wanted}, not {given(value)}")
    return list(value)
