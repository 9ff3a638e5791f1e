"""Arguments of a task: tensors, each with what the task does to it, and plain values."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pytest_aorta.runtime.graph.footprint import Footprint, footprint_of
from pytest_aorta.runtime.memory.tensor_kinds import check_kind, check_writable
from pytest_aorta.runtime.memory.torch_storage import shared_descriptor

if TYPE_CHECKING:
    import torch

MAX_TENSORS = 256
MAX_SCALARS = 128


class Tag(enum.Enum):
    """What a task does to a tensor.

    ``INPUT`` and ``INOUT`` wait for earlier writers; ``INOUT``, ``OUTPUT`` and ``OUTPUT_EXISTING`` make the task the
    one that later readers wait for. An ``OUTPUT`` is overwritten as it is, without waiting. ``NO_DEP`` takes
    no part in dependencies.
    """

    INPUT = "input"
    OUTPUT = "output"
    INOUT = "inout"
    OUTPUT_EXISTING = "output_existing"
    NO_DEP = "no_dep"

    @property
    def reads(self) -> bool:
        """Whether earlier writers must be done first."""
        return self in (Tag.INPUT, Tag.INOUT)

    @property
    def writes(self) -> bool:
        """Whether later readers wait for the task."""
        return self in (Tag.INOUT, Tag.OUTPUT, Tag.OUTPUT_EXISTING)


#: The tags of a task with one tensor, as most tasks have.
_ALONE = {tag: (tag,) for tag in Tag}


class TaskArgs:
    """Arguments of one task, in the order in which they were added. Nothing that was added can be changed."""

    __slots__ = ("__weakref__", "_blank", "_scalars", "_tags", "_tensors")

    def __init__(self) -> None:
        # Tuples, of which a waiting task shares what it can: the garbage collector walks all containers.
        self._tensors: tuple[torch.Tensor, ...] = ()
        self._tags: tuple[Tag, ...] = ()
        self._scalars: tuple[int | float | bool | str, ...] = ()
        #: Numbers of the tensors that do not exist yet.
        self._blank: tuple[int, ...] = ()

    def __repr__(self) -> str:
        tensors = ", ".join(
            f"{tag.name} {tuple(tensor.shape)}" for tensor, tag in zip(self._tensors, self._tags, strict=True)
        )
        return f"TaskArgs([{tensors}], {self._scalars!r})"

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors, in order."""
        return self._tensors

    @property
    def tags(self) -> tuple[Tag, ...]:
        """What is done to each of the tensors."""
        return self._tags

    @property
    def scalars(self) -> tuple[int | float | bool | str, ...]:
        """The plain values, in order."""
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
        _check_access(tensor, tag)
        if len(self._tensors) == MAX_TENSORS:
            raise ValueError(f"a task takes at most {MAX_TENSORS} tensors")
        self._append(tensor, tag)
        return self

    def _append(self, tensor: torch.Tensor, tag: Tag) -> None:
        self._tensors += (tensor,)
        self._tags = (*self._tags, tag) if self._tags else _ALONE[tag]

    def add_output(self, shape: Sequence[int], dtype: torch.dtype | None = None) -> TaskArgs:
        """Append an ``OUTPUT`` that the submission allocates, as ``orch.alloc`` does (default: float32).

        ``TaskRef.outputs`` has the tensor, for tasks that read it.

        Raises:
            TypeError: not whole numbers, or no type of torch.
            ValueError: a negative size, or these are too many.
        """
        import torch

        sizes = list(shape)
        for size in sizes:
            if isinstance(size, bool) or not isinstance(size, int):
                raise TypeError(f"a shape is a list of whole numbers, not {sizes!r:.80}")
            if size < 0:
                raise ValueError(f"a shape has sizes from 0, not {size}")
        if not isinstance(dtype, torch.dtype | None):
            raise TypeError(f"expected a torch.dtype or None, not {dtype!r:.80} ({type(dtype).__name__})")
        if len(self._tensors) == MAX_TENSORS:
            raise ValueError(f"a task takes at most {MAX_TENSORS} tensors")
        self._blank += (len(self._tensors),)
        self._append(torch.empty(sizes, dtype=dtype or torch.float32, device="meta"), Tag.OUTPUT)
        return self

    def add_scalar(self, value: int | float | bool | str) -> TaskArgs:
        """Append a plain value.

        Raises:
            TypeError: neither a number nor a text.
            ValueError: these are too many.
        """
        if not isinstance(value, (int, float, str)):
            raise TypeError(f"a scalar is an int, a float, a bool or a str, not {value!r:.80} ({type(value).__name__})")
        if len(self._scalars) == MAX_SCALARS:
            raise ValueError(f"a task takes at most {MAX_SCALARS} scalars")
        self._scalars += (value,)
        return self

    def snapshot(self) -> TaskArgs:
        """A copy, which later additions do not change."""
        made = TaskArgs()
        made._tensors, made._tags, made._scalars = self._tensors, self._tags, self._scalars
        made._blank = self._blank
        return made

    def replace(
        self, output: Callable[[torch.Tensor], torch.Tensor], private: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Replace what there is no memory for: tensors that do not exist yet, then those of this process only."""
        if self._blank:
            blank, self._blank = set(self._blank), ()
            self._tensors = tuple([output(t) if number in blank else t for number, t in enumerate(self._tensors)])
        if any(map(_is_private, self._tensors)):
            for tensor, tag in zip(self._tensors, self._tags, strict=True):
                if _is_private(tensor):
                    _check_access(tensor, tag)
            self._tensors = tuple([private(t) if _is_private(t) else t for t in self._tensors])

    def accesses(self) -> list[tuple[Footprint, Tag]]:
        """What each tensor touches, and how, as of now."""
        return [(footprint_of(tensor), tag) for tensor, tag in zip(self._tensors, self._tags, strict=True)]

    def check(self) -> list[tuple[Footprint, Tag]]:
        """What each tensor touches, and how, as of now.

        Raises:
            ValueError: two tensors write the same bytes, and nothing says which of them wins; reads may overlap
                anything. Or written memory is not shared any more: a tensor may have been given another storage since
                it was added.
        """
        for tensor, tag in zip(self._tensors, self._tags, strict=True):
            _check_access(tensor, tag)
        accesses = self.accesses()
        written = [(footprint, index) for index, (footprint, tag) in enumerate(accesses) if tag.writes]
        if len(written) < 2:
            return accesses
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
        return accesses


def _is_private(tensor: torch.Tensor) -> bool:
    """Whether a tensor has bytes, which only this process sees."""
    return bool(tensor.numel()) and shared_descriptor(tensor.untyped_storage()) is None


def _check_access(tensor: object, tag: Tag) -> None:
    checked = check_kind(tensor)
    if tag.writes:
        check_writable(checked, tag.name)
