"""A blocked matrix product and a tree of sums, as a graph of tasks over processes that share tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from pydantic import BaseModel, Field, PositiveInt
from torch import Tensor

from pytest_aorta.runtime import SlotArgs, Tag, TaskArgs, Worker
from pytest_aorta.trials.workload import Workload, WorkloadResult

from ._common import Failures, StepLoop

if TYPE_CHECKING:
    from pytest_aorta.runtime import CallableHandle, Orchestrator

LARGEST = 9
"""Elements of the operands are whole numbers from 1 to this."""

MAX_SIZE = 2**15
"""Up to here the sum of all elements of the product, at most ``LARGEST**2 * size**3``, stays below ``2**53``."""

HEAP_BYTES = 2**24
"""Of each ring that the sums are allocated from."""


# Tasks, on the slots


def multiply(args: SlotArgs) -> None:
    left, right, result = args.tensors
    (more,) = args.scalars
    if more:
        result.addmm_(left, right)
    else:
        result.copy_(left @ right)


def add_up(args: SlotArgs) -> None:
    values, total = args.tensors
    total.fill_(values.sum())


# Graphs


@dataclass(frozen=True)
class BlockPlan:
    block: int
    multiply: CallableHandle
    add_up: CallableHandle


def multiply_blocks(orch: Orchestrator, args: SlotArgs, plan: BlockPlan) -> None:
    """``C = A B`` block by block, then the sum of C's elements: the sums of the blocks, added in pairs.

    ``args.tensors`` are A, B, C and the total ``[1]``. Nothing here waits: what depends on what follows from the blocks
    that the tasks read and write.
    """
    left, right, result, total = args.tensors
    blocks = spans(len(left), plan.block)
    for (number, k), i, j in product(enumerate(blocks), blocks, blocks):
        task = TaskArgs().add(left[i, k], Tag.INPUT).add(right[k, j], Tag.INPUT)
        task.add(result[i, j], Tag.INOUT if number else Tag.OUTPUT).add_scalar(number > 0)
        orch.submit_sub(plan.multiply, task)
    add_parts(orch, [result[i, j] for i, j in product(blocks, repeat=2)], total, plan)


def add_parts(orch: Orchestrator, parts: Sequence[Tensor], total: Tensor, plan: BlockPlan) -> None:
    """The sum of each part, and then the sums of pairs of these, until there is one."""
    with orch.scope():
        sums = total
        if len(parts) > 1:  # filled with NaN: the memory may hold the sums of an earlier graph
            sums = orch.alloc((len(parts),), torch.float64).fill_(math.nan)
        for part, its_sum in zip(parts, torch.split(sums, 1), strict=True):
            orch.submit_sub(plan.add_up, TaskArgs().add(part, Tag.INPUT).add(its_sum, Tag.OUTPUT))
        if len(parts) > 1:
            add_parts(orch, torch.split(sums, 2), total, plan)


def shared(*shape: int) -> Tensor:
    made: Tensor = cast(Any, torch.full(shape, math.nan, dtype=torch.float64)).share_memory_()
    return made


def spans(length: int, block: int) -> list[slice]:
    """``length`` rows or columns in blocks; the last one may be smaller."""
    return [slice(start, min(start + block, length)) for start in range(0, length, block)]


def count_tasks(size: int, block: int) -> int:
    blocks = len(spans(size, block))
    return blocks**3 + _count_sums(blocks**2)


def _count_sums(parts: int) -> int:
    return 1 if parts == 1 else parts + _count_sums(math.ceil(parts / 2))


class Pipeline(Workload):
    """``C = A B`` in blocks, and the sum of C's elements as a tree, on the level runtime.

    Each ``C_ij += A_ik B_kj`` is a task on blocks of tensors in shared memory; so is each sum of two numbers. They are
    tasks for the slots of a worker of level 3.

    The check is exact. Elements of A and B are whole numbers from 1 to 9, so that C and its sum are whole numbers
    below 2**53 and float64 has no rounding in any order of additions. All of them are positive: a product that is
    missing makes each element of its block smaller, and one that is there twice makes it greater. C, the sums and the
    total are NaN before they are written, and A and B are others in each step: a task that runs before what it reads
    is there ends in NaN or in too small a sum. So each task that is lost, repeated, misplaced or early shows in C,
    compared element by element with the undivided product, or in the total. (``C_ij += A_ik B_kj`` for several ``k``
    are right in any order, as long as they do not overlap.)

    One iteration is one graph. Step times are those of graphs, from the submission of the first task to the end of
    the last one, in milliseconds; ``elapsed_sec`` includes operands and check; starting processes is setup.

    Metrics: ``tasks`` of one graph, ``slots``, ``max_abs_error`` of an element of C in any step, ``total`` of the last
    step.
    """

    class Config(BaseModel, extra="forbid", frozen=True):
        steps: PositiveInt = Field(default=3, description="graphs, each with fresh operands")
        size: int = Field(default=256, ge=1, le=MAX_SIZE, description="rows and columns of the matrices")
        block: PositiveInt = Field(default=64, description="rows and columns of a block; the last one may be smaller")
        slots: PositiveInt = Field(default=2, description="processes for tasks")
        seed: int = Field(default=0, description="seed of the operands")

    config: Pipeline.Config
    timeout_sec: ClassVar[float | None] = 300.0

    #: The two tasks; a subclass may have others.
    multiply = staticmethod(multiply)
    add_up = staticmethod(add_up)

    worker: Worker | None = None

    def setup(self) -> None:
        config = self.config
        self._left, self._right, self._result = (shared(config.size, config.size) for _ in range(3))
        self._total = shared(1)
        self.worker = Worker(3, num_sub_workers=self.config.slots, heap_ring_size=HEAP_BYTES)
        multiply, add_up = self.worker.register(self.multiply), self.worker.register(self.add_up)
        self._plan = BlockPlan(config.block, multiply, add_up)
        self.worker.init()

    def run(self) -> WorkloadResult:
        config = self.config
        run = StepLoop(self, torch.device("cpu"))
        errors = torch.zeros(config.steps, dtype=torch.float64)
        generator = torch.Generator().manual_seed(config.seed)
        for step in run.steps():
            self._compute(generator, run)
            errors[step] = self._check(step, run.failures)
        return run.result(
            slots=config.slots,
            tasks=count_tasks(config.size, config.block),
            max_abs_error=float(errors.max()),  # NaN if one of them is
            total=self._total.item(),
        )

    def _compute(self, generator: torch.Generator, run: StepLoop) -> None:
        assert self.worker is not None
        for operand in (self._left, self._right):
            operand.copy_(torch.randint(1, LARGEST + 1, operand.shape, generator=generator))
        for output in (self._result, self._total):
            output.fill_(math.nan)
        args = SlotArgs((self._left, self._right, self._result, self._total))
        with run.timed():
            self.worker.run(multiply_blocks, args, self._plan)

    def _check(self, step: int, failures: Failures) -> float:
        expected = self._left @ self._right
        wrong = self._result != expected  # true for NaN
        error = (self._result - expected).abs()
        blocks = enumerate(spans(self.config.size, self.config.block))
        for (row, i), (column, j) in product(blocks, repeat=2):
            if bool(wrong[i, j].any()):
                count, worst = int(wrong[i, j].sum()), float(error[i, j].max())
                failures.add(
                    step, kind="wrong_block", row=row, column=column, wrong_elements=count, max_abs_error=worst
                )
        total = self._total.item()
        if total != float(expected.sum()):
            failures.add(
                step,
                kind="wrong_total",
                actual=total,
                expected=float(expected.sum()),
                sum_of_result=float(self._result.sum()),  # equal to ``actual`` when only blocks are wrong
            )
        return float(error.max())

    def cleanup(self) -> None:
        if self.worker is not None:
            self.worker.close()
