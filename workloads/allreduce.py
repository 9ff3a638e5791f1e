"""Every collective, type and size against what it must return, computed without any collective."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from pytest_aorta.trials.workload import LaunchMode, Workload, WorkloadResult

from ._collectives import COLLECTIVES, Call, Setting
from ._common import (
    CommaSeparated,
    DeviceName,
    Failures,
    Stopwatch,
    choose_device,
    dtype_of,
    join_process_group,
    leave_process_group,
)

DtypeName = Literal["float32", "float64", "bfloat16", "float16", "int32", "int64", "int8", "uint8"]

UNSUPPORTED = re.compile(
    r"not (?:yet )?(?:implemented|supported)|unsupported|does ?n[o']t support|only supports?"
    r"|invalid scalar type|unconvertible|can't be cast|cannot use reduceop",
    re.IGNORECASE,
)
"""Errors of backends that do not have a type or an operation; any other error is a failure."""


class AllReduce(Workload):
    """All collectives of the backend, in many types and sizes, checked element by element.

    The input of every rank is a function of the rank and the element's index, in small integers, so that every rank
    can compute what it has to receive, and most results are exact. Where a sum over many ranks outgrows the type's
    significand, and for averages, the tolerance is Higham's bound (``_collectives``). A pair of collective and type
    that the backend does not have is listed in ``unsupported``; a run in which nothing could be checked fails.

    All ranks return the failures of all ranks. One iteration is one pass over sizes x collectives x types, with other
    inputs and another root than the one before. Step times are those of the collectives alone, in milliseconds;
    ``elapsed_sec`` includes inputs and checks.

    Metrics: ``checks`` (results compared on this rank), ``collectives`` (names), ``unsupported`` (list of
    ``collective``, ``dtype``, ``reason``), ``unsupported_count``, ``world_size``, ``backend``, ``device``.
    """

    class Config(BaseModel):
        """Options."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        steps: PositiveInt = Field(default=1, description="passes over all sizes, collectives and types")
        sizes: Annotated[tuple[PositiveInt, ...], CommaSeparated] = Field(
            default=(1, 1000, 65_537), min_length=1, description="elements per rank; as text: 1,1000,65537"
        )
        dtypes: Annotated[tuple[DtypeName, ...], CommaSeparated] = Field(
            default=("float32", "float64", "bfloat16", "float16", "int32", "int64", "uint8"),
            min_length=1,
            description="types of the elements",
        )
        device: DeviceName = Field(default="auto", description="auto is a GPU per rank if there are enough of them")
        collective_timeout_sec: PositiveFloat = Field(default=60.0, description="seconds that a collective may take")

    config: AllReduce.Config
    launch_mode: ClassVar[LaunchMode] = "distributed"
    min_world_size: ClassVar[int] = 2
    timeout_sec: ClassVar[float | None] = 300.0

    def setup(self) -> None:
        """Join the process group."""
        self.device = choose_device(self.config.device)
        self.ranks = join_process_group(self.device, self.config.collective_timeout_sec)

    def run(self) -> WorkloadResult:
        """Run and check every collective."""
        config, ranks = self.config, self.ranks
        failures = Failures()
        unsupported: dict[tuple[str, DtypeName], str] = {}
        step_times: list[float] = []
        checks = 0
        started = time.perf_counter()
        try:
            for step in range(config.steps):
                watch = Stopwatch(self.device)
                for size in config.sizes:
                    checks += self._pass(step, size, watch, failures, unsupported)
                checks += self._barrier(step, watch, failures)
                step_times.append(watch.milliseconds)
                self.progress(step + 1, config.steps)
        except CollectiveError:
            pass  # noted; the ranks are out of step, so that all that follows would be meaningless
        else:
            if checks == config.steps:  # the barriers alone
                failures.add(config.steps - 1, kind="nothing_checked", rank=ranks.rank)
        failures = ranks.share(max(len(step_times) - 1, 0), failures)
        elapsed = time.perf_counter() - started
        return failures.result(
            configured=config.steps,
            step_times_ms=step_times,
            elapsed_sec=elapsed,
            metrics={
                "checks": checks,
                "collectives": [*COLLECTIVES, "barrier"],
                "unsupported": [
                    {"collective": name, "dtype": dtype, "reason": reason}
                    for (name, dtype), reason in unsupported.items()
                ],
                "unsupported_count": len(unsupported),
                "world_size": ranks.world_size,
                "backend": ranks.backend,
                "device": str(self.device),
            },
        )

    def cleanup(self) -> None:
        """Leave the process group."""
        leave_process_group()

    def _pass(
        self,
        step: int,
        size: int,
        watch: Stopwatch,
        failures: Failures,
        unsupported: dict[tuple[str, DtypeName], str],
    ) -> int:
        """Run and check all collectives in all types; returns how many results were compared."""
        checks = 0
        for name, prepare in COLLECTIVES.items():
            # All types are prepared before the first call and checked after the last one: what a rank computes in
            # between would be waiting time in another rank's collective.
            calls = {
                dtype_name: prepare(Setting(self.ranks, self.device, dtype_of(dtype_name), size, step))
                for dtype_name in self.config.dtypes
                if (name, dtype_name) not in unsupported
            }
            where = {"collective": name, "size": size, "rank": self.ranks.rank}
            for dtype_name, call in calls.items():
                try:
                    with watch.running():
                        call.start()
                except Exception as error:  # of whatever type the backend raises
                    message = f"{type(error).__name__}: {error}"
                    if not UNSUPPORTED.search(message):
                        failures.add(step, kind="error", error=message, dtype=dtype_name, **where)
                        raise CollectiveError from error
                    unsupported[name, dtype_name] = message.partition("\n")[0]
            for dtype_name, call in calls.items():
                # Without outputs, this rank only sends.
                if call.outputs and (name, dtype_name) not in unsupported:
                    checks += 1
                    wrong = _compare(call, dtype_of(dtype_name))
                    if wrong is not None:
                        failures.add(step, kind="wrong_result", dtype=dtype_name, **where, **wrong)
        return checks

    def _barrier(self, step: int, watch: Stopwatch, failures: Failures) -> int:
        """A barrier lets no rank through before all have come: each one counts itself in the store beforehand."""
        key = f"barrier/{step}"
        self.ranks.store.add(key, 1)
        where = {"collective": "barrier", "dtype": None, "size": 0, "rank": self.ranks.rank}
        try:
            with watch.running():
                dist.barrier()
        except Exception as error:  # of whatever type the backend raises
            failures.add(step, kind="error", error=f"{type(error).__name__}: {error}", **where)
            raise CollectiveError from error
        arrived = self.ranks.store.add(key, 0)
        if arrived != self.ranks.world_size:
            failures.add(step, kind="wrong_result", **where, actual=arrived, expected=self.ranks.world_size)
        return 1


class CollectiveError(Exception):
    """A collective raised an error; the process group is no longer usable."""


def _compare(call: Call, dtype: torch.dtype) -> dict[str, Any] | None:
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
