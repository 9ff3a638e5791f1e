"""Shared by the workloads: device, timing, lists in options, patterns and checksums, failures, and process group."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.distributed as dist
from pydantic import BaseModel, BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional

from pytest_aorta.trials.workload import LaunchMode, Workload, WorkloadResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DeviceName = Literal["auto", "cpu", "cuda", "hip"]

MAX_DETAILS = 64
"""Failure details kept per process; failures beyond it are counted only, so that a result file stays small."""


def _split(value: object) -> object:
    return [item.strip() for item in value.split(",")] if isinstance(value, str) else value


CommaSeparated = BeforeValidator(_split)
"""Lets a tuple option also be written as text: ``float32,bfloat16``."""


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


#: The integer type of each width in bytes, as which bits are compared: NaN equals itself, -0 is not 0.
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(_INTEGERS[tensor.element_size()])


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(bits(one), bits(other))


#: Words of 8 bytes whose checksum is computed at a time.
_PIECE = 2**21


def checksum(tensor: Tensor) -> str:
    """Sixteen hexadecimal digits, computed on the tensor's device; other bits, or another order of them, change it.

    Words of 64 bits times odd numbers, added modulo 2**64: each change of one word changes the sum.
    """
    raw = tensor.detach().contiguous().flatten().view(torch.uint8)
    words = functional.pad(raw, (0, -raw.numel() % 8)).view(torch.int64)
    total = raw.numel()
    for piece in torch.split(words, _PIECE):
        odd = torch.arange(1, 2 * piece.numel(), 2, device=piece.device)
        total = (total * 1_000_003 + int((piece * odd).sum())) % 2**64
    return f"{total:016x}"


#: Patterns of 64-bit words: all bits off and on, neighbours that differ, one bit that walks, its own address, noise.
PATTERNS = ("zeros", "ones", "checkers", "walking", "address", "noise")


def pattern(name: str, step: int, start: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """The words ``start .. start + count`` of an endless pattern: int64 ``[count]``, another one in every step."""
    index = torch.arange(start, start + count, device=device)
    if name == "zeros":
        return torch.zeros_like(index)
    if name == "ones":
        return torch.full_like(index, -1)
    if name == "checkers":
        return torch.where((index + step) % 2 == 0, 0x5555555555555555, -0x5555555555555556)
    if name == "walking":
        return torch.bitwise_left_shift(torch.ones_like(index), (index + step) % 64)
    if name == "address":
        return index * 8 + step
    mixed = (index + 7919 * (step + 1)) * 0x2545F4914F6CDD1D  # wraps around, alike on each device
    return mixed ^ (mixed >> 29)


class SoakConfig(BaseModel, extra="forbid", frozen=True):
    """The options of workloads that can go on for a time."""

    steps: PositiveInt = Field(default=2, description="iterations at least")
    duration: NonNegativeFloat = Field(default=0.0, description="seconds that it goes on for, beyond its steps")
    device: DeviceName = Field(default="auto", description="auto is a GPU when there is one")


class Soak(Workload):
    """A workload on one device, whose deadline grows with its option ``duration``."""

    config: SoakConfig
    timeout_sec: ClassVar[float] = 300.0
    device: torch.device

    @classmethod
    def aorta_description(cls, config: SoakConfig) -> dict[str, Any]:
        return {"timeout_sec": cls.timeout_sec + config.duration}

    def setup(self) -> None:
        self.device = choose_device(self.config.device)


class RankedSoakConfig(SoakConfig, frozen=True):
    """The same of those with several ranks."""

    device: DeviceName = Field(default="auto", description="auto is a GPU per rank if there are enough of them")
    collective_timeout_sec: PositiveFloat = Field(default=60.0, description="seconds that a collective may take")


class RankedSoak(Soak):
    """One with several ranks, whose first one says whether all go on: clocks differ."""

    config: RankedSoakConfig
    launch_mode: ClassVar[LaunchMode] = "distributed"
    min_world_size: ClassVar[int] = 2
    _asked = 0

    def setup(self) -> None:
        super().setup()
        self.ranks = join_process_group(self.device, self.config.collective_timeout_sec)

    def cleanup(self) -> None:
        leave_process_group()

    def together(self, mine: bool) -> bool:
        """Whether all go on, as the first rank would; by way of the store, as collectives may be at fault."""
        if not self.config.duration:
            return mine
        self._asked += 1
        if self.ranks.rank == 0:
            self.ranks.store.set(f"goes on/{self._asked}", str(int(mine)))
            if self._asked > 2:  # all have read it: they have come through a step since
                self.ranks.store.delete_key(f"goes on/{self._asked - 2}")
        return self.ranks.store.get(f"goes on/{self._asked}") == b"1"

    def result_of_all(self, run: StepLoop, **metrics: Any) -> WorkloadResult:
        """The result with the failures of all ranks, and the group among the metrics."""
        ranks = self.ranks
        run.failures = ranks.share(max(len(run.step_times) - 1, 0), run.failures)
        return run.result(world_size=ranks.world_size, backend=ranks.backend, **metrics)


def free_memory(device: torch.device) -> int:
    """Bytes of the device that are free, or of the host that are available."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    return int(psutil.virtual_memory().available)


def gamma(roundings: int, unit_roundoff: float) -> float:
    """Higham's ``gamma_n = n u / (1 - n u)``: bounds the relative error of ``n`` roundings in a row.

    N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, Lemma 3.1.

    Raises:
        ValueError: ``n u >= 1``, where there is no bound.
    """
    product = roundings * unit_roundoff
    if product >= 1:
        raise ValueError(f"no error bound for {roundings} roundings at a unit roundoff of {unit_roundoff}")
    return product / (1 - product)


def choose_device(name: DeviceName) -> torch.device:
    """The device of this process: a GPU has the index ``LOCAL_RANK``.

    ``auto`` is a GPU when there is one for every rank of this host, else the CPU. All ranks of a host see the same
    numbers and so decide alike; a group of which one half is on GPUs would hang.

    Raises:
        RuntimeError: a GPU is asked for by name and there is none for this rank.
    """
    if name == "cpu":
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0"))
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto" and gpus < ranks_here:
        return torch.device("cpu")
    if index >= gpus:
        raise RuntimeError(
            f"device={name!r} needs GPU {index} (LOCAL_RANK), but torch {torch.__version__} sees {gpus} GPUs; "
            "use device='auto' or 'cpu'"
        )
    return torch.device("cuda", index)  # ROCm builds of torch call their devices "cuda" as well


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Cases(dict[tuple[Any, ...], dict[str, Any]]):
    """What was found of each case, and which have no kernel, as torch says by an error that ``no_kernel`` matches."""

    def __init__(self, *names: str, no_kernel: str = "not implemented for") -> None:
        super().__init__()
        self._names, self._no_kernel = names, no_kernel
        self.unsupported: dict[tuple[Any, ...], str] = {}

    def where(self, case: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self._names, case, strict=True))

    @contextmanager
    def attempt(self, case: tuple[Any, ...]) -> Iterator[None]:
        """Note that there is no kernel; other errors are raised."""
        try:
            yield
        except RuntimeError as error:
            if not re.search(self._no_kernel, str(error)):
                raise
            self.unsupported[case] = str(error).partition("\n")[0]

    def result(self, run: StepLoop, **metrics: Any) -> WorkloadResult:
        """With ``cases`` and ``unsupported``; a run in which nothing could be checked fails."""
        if not self and not run.failures.count:
            run.failures.add(0, kind="nothing_checked")
        missing = [{**self.where(case), "reason": reason} for case, reason in self.unsupported.items()]
        return run.result(cases=[*self.values()], unsupported=missing, **metrics)


@dataclass
class Failures:
    """The failures of a run; ``details`` has the first `MAX_DETAILS` of them."""

    count: int = 0
    first_iteration: int | None = None
    details: list[dict[str, Any]] = field(default_factory=list)

    def add(self, iteration: int, **detail: Any) -> None:
        """Count a failure of ``iteration`` (from 0) and keep its details, which must be plain JSON types."""
        kept = [{"iteration": iteration, **detail}] if len(self.details) < MAX_DETAILS else []
        self.extend(Failures(1, iteration, kept))

    def extend(self, other: Failures) -> None:
        first = [each for each in (self.first_iteration, other.first_iteration) if each is not None]
        self.first_iteration = min(first, default=None)
        self.count += other.count
        self.details.extend(other.details)


class StepLoop:
    """The steps of a run of a workload: their times in milliseconds, and its failures."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self.failures = Failures()
        self.step_times: list[float] = []
        self._workload, self._device = workload, device
        self._duration = getattr(workload.config, "duration", 0.0)
        self._started = time.perf_counter()
        self._milliseconds = 0.0

    def steps(self, agreed: Callable[[bool], bool] = bool) -> Iterator[int]:
        """The number of each step, at least until the option ``duration`` has passed.

        ``agreed``: whether all ranks go on, whose clocks differ, if this one would.
        """
        configured, until = self._workload.config.steps, self._started + self._duration
        while agreed((step := len(self.step_times)) < configured or time.perf_counter() < until):
            self._milliseconds = 0.0
            yield step
            self.step_times.append(self._milliseconds)
            self._workload.progress(step + 1, None if self._duration else configured)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """The time of this block, work queued on the device included, is a part of the step's."""
        synchronize(self._device)
        started = time.perf_counter()
        try:
            yield
        finally:
            synchronize(self._device)
            self._milliseconds += (time.perf_counter() - started) * 1e3

    def result(self, **metrics: Any) -> WorkloadResult:
        """It passes without a failure."""
        metrics["device"] = str(self._device)
        if self._device.type == "cuda":
            metrics["device_name"] = torch.cuda.get_device_name(self._device)
        return WorkloadResult(
            passed=self.failures.count == 0,
            failure_count=self.failures.count,
            first_failure_iteration=self.failures.first_iteration,
            failure_details=self.failures.details,
            total_iterations=len(self.step_times),
            step_times_ms=self.step_times,
            elapsed_sec=time.perf_counter() - self._started,
            metrics=metrics,
            main_work_started=True,
            executed_iterations=len(self.step_times),
            configured_iterations=max(self._workload.config.steps, len(self.step_times) if self._duration else 0),
        )


@dataclass
class Ranks:
    """The process group, and a store beside it for what must not travel through the collectives under test."""

    rank: int
    world_size: int
    backend: str
    store: Store

    def share(self, iteration: int, failures: Failures) -> Failures:
        """The failures of all ranks, in the order of the ranks and the same everywhere.

        They travel through the store, so that a broken collective can be reported. A rank that does not answer is a
        failure of ``iteration``.
        """
        merged = Failures()
        self.store.set(f"failures/{self.rank}", json.dumps(vars(failures)))
        for rank in range(self.world_size):
            try:
                merged.extend(Failures(**json.loads(self.store.get(f"failures/{rank}"))))
            except Exception as error:  # a lost rank, store or host: whatever the transport raises
                if rank == self.rank:
                    merged.extend(failures)
                else:
                    merged.add(iteration, kind="rank_lost", rank=rank, error=f"{type(error).__name__}: {error}")
        # Without an agent rank 0 keeps the store, and must not end before the others have read from it.
        self.store.set(f"read/{self.rank}", "")
        if self.rank == 0 and not any(detail.get("kind") == "rank_lost" for detail in merged.details):
            self.store.wait([f"read/{rank}" for rank in range(self.world_size)])
        return merged


def join_process_group(device: torch.device, timeout_sec: float) -> Ranks:
    """Join the process group that ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` describe.

    nccl (RCCL on ROCm) on a GPU, else gloo. ``timeout_sec`` bounds the meeting and every collective.
    """
    timeout = timedelta(seconds=timeout_sec)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # What init_process_group("env://") does, in two steps: the first one gives the store.
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    store.set_timeout(2 * timeout)  # a rank may come to the store from a collective that it waited out
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    # An agent's store may hold the keys of an earlier group.
    name = [secrets.token_hex(8)]
    dist.broadcast_object_list(name, src=0)
    return Ranks(rank, world_size, backend, PrefixStore(f"aorta_workloads/{name[0]}", store))


def leave_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
