"""Every collective, type and size against what it must return, computed without any collective."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist
from pydantic import Field, PositiveInt
from torch import Tensor

from pytest_aorta.trials.workload import WorkloadResult

from ._common import CommaSeparated, RankedSoak, RankedSoakConfig, Ranks, StepLoop, dtype_of, gamma

DtypeName = Literal["float32", "float64", "bfloat16", "float16", "int32", "int64", "int8", "uint8"]

UNSUPPORTED = re.compile(
    r"not (?:yet )?(?:implemented|supported)|unsupported|does ?n[o']t support|only supports?"
    r"|invalid scalar type|unconvertible|can't be cast|cannot use reduceop",
    re.IGNORECASE,
)
"""Errors of backends that do not have a type or an operation; any other error is a failure."""


class AllReduce(RankedSoak):
    """All collectives of the backend, in many types and sizes, checked element by element.

    The input of every rank is a function of the rank and the element's index, in small integers, so that every rank
    can compute what it has to receive, and most results are exact. Where a sum over many ranks outgrows the type's
    significand, and for averages, the tolerance is Higham's bound (``sum_tolerance``). A pair of collective and type
    that the backend does not have is listed in ``unsupported``; a run in which nothing could be checked fails.

    All ranks return the failures of all ranks. One iteration is one pass over sizes x collectives x types, with other
    inputs and another root than the one before. Step times are those of the collectives alone, in milliseconds;
    ``elapsed_sec`` includes inputs and checks.

    Metrics: ``checks`` (results compared on this rank), ``collectives`` (names), ``unsupported`` (list of
    ``collective``, ``dtype``, ``reason``), ``unsupported_count``, ``world_size``, ``backend``, ``device``.
    """

    class Config(RankedSoakConfig, frozen=True):
        steps: PositiveInt = Field(default=1, description="passes over all sizes, collectives and types")
        sizes: Annotated[tuple[PositiveInt, ...], CommaSeparated] = Field(
            default=(1, 1000, 65_537), min_length=1, description="elements per rank; as text: 1,1000,65537"
        )
        dtypes: Annotated[tuple[DtypeName, ...], CommaSeparated] = Field(
            default=("float32", "float64", "bfloat16", "float16", "int32", "int64", "uint8"),
            min_length=1,
            description="types of the elements",
        )

    config: AllReduce.Config

    def run(self) -> WorkloadResult:
        config = self.config
        run = StepLoop(self, self.device)
        unsupported: dict[tuple[str, DtypeName], str] = {}
        checks = 0
        try:
            for step in run.steps(self.together):
                for size in config.sizes:
                    checks += self._pass(run, step, size, unsupported)
                checks += self._barrier(run, step)
        except CollectiveError:
            pass  # noted; the ranks are out of step, so that all that follows would be meaningless
        else:
            if checks == len(run.step_times):  # the barriers alone
                run.failures.add(checks - 1, kind="nothing_checked", rank=self.ranks.rank)
        return self.result_of_all(
            run,
            checks=checks,
            collectives=[*COLLECTIVES, "barrier"],
            unsupported=[
                {"collective": name, "dtype": dtype, "reason": reason} for (name, dtype), reason in unsupported.items()
            ],
            unsupported_count=len(unsupported),
        )

    def _pass(self, run: StepLoop, step: int, size: int, unsupported: dict[tuple[str, DtypeName], str]) -> int:
        checks = 0
        for name, prepare in COLLECTIVES.items():
            # All types are prepared before the first call and checked after the last one: what a rank computes in
            # between would be waiting time in another rank's collective.
            calls = {
                dtype_name: prepare(CollectiveSetting(self.ranks, self.device, dtype_of(dtype_name), size, step))
                for dtype_name in self.config.dtypes
                if (name, dtype_name) not in unsupported
            }
            where = {"collective": name, "size": size, "rank": self.ranks.rank}
            for dtype_name, call in calls.items():
                try:
                    with run.timed():
                        call.start()
                except Exception as error:  # of whatever type the backend raises
                    message = f"{type(error).__name__}: {error}"
                    if not UNSUPPORTED.search(message):
                        run.failures.add(step, kind="error", error=message, dtype=dtype_name, **where)
                        raise CollectiveError from error
                    unsupported[name, dtype_name] = message.partition("\n")[0]
            for dtype_name, call in calls.items():
                # Without outputs, this rank only sends.
                if call.outputs and (name, dtype_name) not in unsupported:
                    checks += 1
                    wrong = _compare(call, dtype_of(dtype_name))
                    if wrong is not None:
                        run.failures.add(step, kind="wrong_result", dtype=dtype_name, **where, **wrong)
        return checks

    def _barrier(self, run: StepLoop, step: int) -> int:
        """A barrier lets no rank through before all have come: each one counts itself in the store beforehand."""
        key = f"barrier/{step}"
        self.ranks.store.add(key, 1)
        where = {"collective": "barrier", "dtype": None, "size": 0, "rank": self.ranks.rank}
        try:
            with run.timed():
                dist.barrier()
        except Exception as error:  # of whatever type the backend raises
            run.failures.add(step, kind="error", error=f"{type(error).__name__}: {error}", **where)
            raise CollectiveError from error
        arrived = self.ranks.store.add(key, 0)
        if arrived != self.ranks.world_size:
            run.failures.add(step, kind="wrong_result", **where, actual=arrived, expected=self.ranks.world_size)
        return 1


class CollectiveError(Exception):
    """A collective raised an error; the process group is no longer usable."""


def _compare(call: CollectiveCall, dtype: torch.dtype) -> dict[str, Any] | None:
    """Describe how the outputs differ from what is expected; ``None`` when they do not."""
    actual = torch.cat(call.outputs).cpu().double()
    wanted = torch.cat(call.expected)
    if not (dtype.is_floating_point or wanted.is_floating_point()):
        wanted = wanted.to(dtype)  # integers wrap around
    error = (actual - wanted.double()).abs()
    wrong = ~(error <= call.tolerance)  # so written that NaN is wrong
    if not bool(wrong.any()):
        return None
    first = int(wrong.long().argmax())
    return {
        "max_abs_err": float(error.max()),
        "tolerance": call.tolerance,
        "wrong_elements": int(wrong.sum()),
        "elements": error.numel(),
        "first_wrong_index": first,
        "actual": float(actual[first]),
        "expected": float(wanted[first]),
    }


# The collectives: calls, each with what it must return


LARGEST = 28
"""Largest input of a collective; the smallest is 0. Sums over 9 ranks still are exact in bfloat16."""

UNWRITTEN = 77
"""What outputs hold beforehand, so that a collective that leaves an element alone is seen."""


@dataclass(frozen=True)
class CollectiveSetting:
    """Where one collective is called, and with what: ``size`` elements per rank, in the pass number ``step``."""

    ranks: Ranks
    device: torch.device
    dtype: torch.dtype
    size: int
    step: int

    @property
    def root(self) -> int:
        """The rank that sends, or receives, where one does; another one in the next pass, and for the next size."""
        return (self.size + self.step) % self.ranks.world_size

    def values(self, rank: int, start: int, count: int, operation: str = "") -> Tensor:
        """Elements ``start .. start + count`` of a rank's input: int64 ``[count]``, 0 to `LARGEST`."""
        if operation == "prod":
            return _factors(self.step, rank, start, count, self.ranks.world_size)
        return _values(self.step, rank, start, count)

    def send(self, values: Tensor) -> Tensor:
        return values.to(self.device, self.dtype, copy=True)

    def receive(self, count: int) -> Tensor:
        return torch.full((count,), UNWRITTEN, device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class CollectiveCall:
    """One prepared collective: ``start`` calls it and waits.

    ``outputs`` are the tensors that it writes on this rank, ``expected`` what they hold afterwards (int64, or float64
    for an average), and ``tolerance`` the largest absolute error that is no failure.
    """

    start: Callable[[], object]
    outputs: list[Tensor]
    expected: list[Tensor]
    tolerance: float = 0.0


def sum_tolerance(dtype: torch.dtype, terms: int) -> float:
    """The largest absolute error of a sum of ``terms`` numbers, each of 0 to `LARGEST`, that rounding can explain.

    0 for integers, and where all partial sums are exact, as integers up to ``2 / eps`` are. Else, whatever the order of
    the additions, ``gamma_(n - 1) sum |x|`` (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
    SIAM 2002, section 4.2) with ``u = eps / 2``.
    """
    if not dtype.is_floating_point:
        return 0.0
    eps = torch.finfo(dtype).eps
    largest_sum = terms * LARGEST
    return 0.0 if largest_sum <= 2 / eps else gamma(terms - 1, eps / 2) * largest_sum


def average_tolerance(dtype: torch.dtype, terms: int) -> float:
    """Like `sum_tolerance` for the average.

    A backend divides the sum, or multiplies every term by the rounded ``1 / n`` first, which makes ``n + 1`` roundings.
    An average of integers is an integer: rounded somehow, it is less than 1 away.
    """
    if not dtype.is_floating_point:
        return (terms - 1) / terms
    return gamma(terms + 1, torch.finfo(dtype).eps / 2) * LARGEST


OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "prod": dist.ReduceOp.PRODUCT,
    "avg": dist.ReduceOp.AVG,
}


# All types need the same numbers, one after the other; they are only read.
@lru_cache(maxsize=32)
def _values(step: int, rank: int, start: int, count: int) -> Tensor:
    """Elements of a rank's input, without a period that a wrong offset could hit, and other ones in every pass."""
    index = torch.arange(start, start + count) + 7919 * step
    return ((index * 1_103_515_245 + rank * 40_503 + 12_345) >> 8) % (LARGEST + 1)


@lru_cache(maxsize=32)
def _factors(step: int, rank: int, start: int, count: int, world_size: int) -> Tensor:
    """Like `_values`, for products: 1, but a 2 and a 3 on at most one rank each, so that no product is above 6."""
    index = torch.arange(start, start + count) + step
    two = index % (world_size + 1) == rank
    three = index // 3 % (world_size + 1) == rank
    return (1 + two.long()) * (1 + 2 * three.long())


def _reduced(setting: CollectiveSetting, operation: str, start: int, count: int) -> tuple[Tensor, float]:
    """What all ranks' elements ``start .. start + count`` reduce to, and how exactly."""
    world_size = setting.ranks.world_size
    inputs = [setting.values(rank, start, count, operation) for rank in range(world_size)]
    if operation == "avg":
        return torch.stack(inputs).double().mean(0), average_tolerance(setting.dtype, world_size)
    if operation == "sum":
        return reduce(torch.add, inputs), sum_tolerance(setting.dtype, world_size)
    return reduce({"min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[operation], inputs), 0.0


def _reduce(operation: str, setting: CollectiveSetting, *, to_all: bool = False) -> CollectiveCall:
    tensor = setting.send(setting.values(setting.ranks.rank, 0, setting.size, operation))
    if to_all:
        start = partial(dist.all_reduce, tensor, OPERATIONS[operation])
    else:
        start = partial(dist.reduce, tensor, setting.root, OPERATIONS[operation])
        if setting.ranks.rank != setting.root:
            return CollectiveCall(start, [], [])  # what the others are left with is undefined
    expected, tolerance = _reduced(setting, operation, 0, setting.size)
    return CollectiveCall(start, [tensor], [expected], tolerance)


def _reduce_scatter(operation: str, setting: CollectiveSetting, *, into_tensor: bool = False) -> CollectiveCall:
    rank, size = setting.ranks.rank, setting.size
    whole = setting.send(setting.values(rank, 0, setting.ranks.world_size * size, operation))
    output = setting.receive(size)
    expected, tolerance = _reduced(setting, operation, rank * size, size)
    collective = _newest("reduce_scatter_single", "reduce_scatter_tensor") if into_tensor else dist.reduce_scatter
    given = whole if into_tensor else list(torch.split(whole, size))
    return CollectiveCall(partial(collective, output, given, OPERATIONS[operation]), [output], [expected], tolerance)


def _broadcast(setting: CollectiveSetting) -> CollectiveCall:
    of_root = setting.values(setting.root, 0, setting.size)
    tensor = setting.send(of_root) if setting.ranks.rank == setting.root else setting.receive(setting.size)
    return CollectiveCall(lambda: dist.broadcast(tensor, setting.root), [tensor], [of_root])


def _gather(kind: Literal["all", "into_tensor", "root"], setting: CollectiveSetting) -> CollectiveCall:
    of_ranks = [setting.values(rank, 0, setting.size) for rank in range(setting.ranks.world_size)]
    mine = setting.send(of_ranks[setting.ranks.rank])
    if kind == "root" and setting.ranks.rank != setting.root:
        return CollectiveCall(lambda: dist.gather(mine, None, setting.root), [], [])
    output = setting.receive(len(of_ranks) * setting.size)
    outputs = list(torch.split(output, setting.size))
    starts: dict[str, Callable[[], object]] = {
        "all": lambda: dist.all_gather(outputs, mine),
        "into_tensor": lambda: _newest("all_gather_single", "all_gather_into_tensor")(output, mine),
        "root": lambda: dist.gather(mine, outputs, setting.root),
    }
    return CollectiveCall(starts[kind], outputs, of_ranks)


def _scatter(setting: CollectiveSetting) -> CollectiveCall:
    size = setting.size
    output = setting.receive(size)
    expected = setting.values(setting.root, setting.ranks.rank * size, size)
    inputs = None
    if setting.ranks.rank == setting.root:
        whole = setting.values(setting.root, 0, setting.ranks.world_size * size)
        inputs = list(torch.split(setting.send(whole), size))
    return CollectiveCall(lambda: dist.scatter(output, inputs, setting.root), [output], [expected])


def _all_to_all(kind: Literal["list", "single", "uneven"], setting: CollectiveSetting) -> CollectiveCall:
    """Rank ``s`` sends the ``d``-th part of its input to rank ``d``.

    ``uneven``: another number of elements for each pair of ranks, as in a mixture of experts.
    """
    rank, ranks = setting.ranks.rank, range(setting.ranks.world_size)

    def count(source: int, destination: int) -> int:
        return setting.size + (source + 2 * destination) % 3 * (kind == "uneven")

    def first(source: int, destination: int) -> int:
        return sum(count(source, before) for before in range(destination))

    sent = [count(rank, destination) for destination in ranks]
    received = [count(source, rank) for source in ranks]
    whole = setting.send(setting.values(rank, 0, sum(sent)))
    output = setting.receive(sum(received))
    expected = [setting.values(source, first(source, rank), count(source, rank)) for source in ranks]
    if kind == "list":
        inputs, outputs = list(torch.split(whole, sent)), list(torch.split(output, received))
        return CollectiveCall(lambda: dist.all_to_all(outputs, inputs), outputs, expected)
    sizes = (received, sent) if kind == "uneven" else ()
    return CollectiveCall(lambda: dist.all_to_all_single(output, whole, *sizes), [output], expected)


def _send_recv_ring(setting: CollectiveSetting) -> CollectiveCall:
    """Every rank sends to the next one and receives from the one before."""
    rank, world_size = setting.ranks.rank, setting.ranks.world_size
    before = (rank - 1) % world_size
    mine = setting.send(setting.values(rank, 0, setting.size))
    output = setting.receive(setting.size)

    def start() -> None:
        # As a batch: NCCL would wait for ever when all ranks sent first.
        operations = [dist.P2POp(dist.isend, mine, (rank + 1) % world_size), dist.P2POp(dist.irecv, output, before)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return CollectiveCall(start, [output], [setting.values(before, 0, setting.size)])


def _newest(name: str, older_name: str) -> Callable[..., object]:
    """The function of torch.distributed that torch 2.13 renamed; the older name warns there."""
    function: Callable[..., object] = getattr(dist, name, None) or getattr(dist, older_name)
    return function


_REDUCTIONS: dict[str, Callable[[str, CollectiveSetting], CollectiveCall]] = {
    "all_reduce": partial(_reduce, to_all=True),
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": partial(_reduce_scatter, into_tensor=True),
}

COLLECTIVES: dict[str, Callable[[CollectiveSetting], CollectiveCall]] = {
    **{f"{name}_{each}": partial(prepare, each) for name, prepare in _REDUCTIONS.items() for each in OPERATIONS},
    "broadcast": _broadcast,
    "all_gather": partial(_gather, "all"),
    "all_gather_into_tensor": partial(_gather, "into_tensor"),
    "gather": partial(_gather, "root"),
    "scatter": _scatter,
    "all_to_all": partial(_all_to_all, "list"),
    "all_to_all_single": partial(_all_to_all, "single"),
    "all_to_all_uneven": partial(_all_to_all, "uneven"),
    "send_recv_ring": _send_recv_ring,
}
"""By name: the function that prepares one call."""
