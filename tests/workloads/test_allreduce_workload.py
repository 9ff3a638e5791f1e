from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from aorta_workloads.allreduce import (
    COLLECTIVES,
    LARGEST,
    AllReduce,
    CollectiveCall,
    CollectiveSetting,
    average_tolerance,
    sum_tolerance,
)
from rank_processes import Driven, drive, drive_on_ranks, run_on_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = {"device": "cpu", "sizes": (5,), "dtypes": ("float32",)}
AVERAGES = ("all_reduce_avg", "reduce_avg", "reduce_scatter_avg", "reduce_scatter_tensor_avg")

#: Of torch 2.13, gloo has it; of torch 2.11, it has not.
ALL_TO_ALL = {("all_to_all", dtype) for dtype in AllReduce.Config().dtypes}


@pytest.mark.slow
def test_default_run_checks_every_collective_and_lists_what_gloo_does_not_have() -> None:
    first, second = drive_on_ranks(AllReduce)

    for driven in (first, second):
        driven.assert_passed(steps=1)
    metrics = first.result.metrics
    assert metrics["backend"] == "gloo"
    assert metrics["world_size"] == 2
    unsupported = {(entry["collective"], entry["dtype"]) for entry in metrics["unsupported"]}
    assert unsupported - ALL_TO_ALL == {(name, dtype) for name in AVERAGES for dtype in ("int32", "int64", "uint8")}
    assert unsupported & ALL_TO_ALL in (ALL_TO_ALL, set())
    assert metrics["unsupported_count"] == len(unsupported)
    assert all(entry["reason"] for entry in metrics["unsupported"])
    # Everything that is not unsupported was compared, once per size; a reduce and a gather on their roots only.
    pairs, rooted, sizes, roots = len(COLLECTIVES) * 7 - len(unsupported), 6 * 7 - 3, 3, 3
    checked = sum(driven.result.metrics["checks"] - 1 for driven in (first, second))
    assert checked == 2 * (pairs - rooted) * sizes + rooted * roots


def with_collectives(
    change: Callable[[str, CollectiveCall, CollectiveSetting], CollectiveCall], options: dict[str, Any]
) -> Driven:
    """Run the workload while ``change`` replaces its prepared collectives."""

    def changed(
        name: str, prepare: Callable[[CollectiveSetting], CollectiveCall]
    ) -> Callable[[CollectiveSetting], CollectiveCall]:
        return lambda setting: change(name, prepare(setting), setting)

    for name, prepare in list(COLLECTIVES.items()):
        COLLECTIVES[name] = changed(name, prepare)  # this process is a rank, and ends after that
    return drive(AllReduce, options)


def last_element_off_by_one(name: str, call: CollectiveCall, setting: CollectiveSetting) -> CollectiveCall:
    def start() -> None:
        call.start()
        if setting.ranks.rank == 1:
            call.outputs[-1][-1] += 1

    return replace(call, start=start)


def test_wrong_element_on_one_rank_is_found_in_every_collective_and_type_and_reported_by_all_ranks() -> None:
    options = {**SMALL, "dtypes": ("float32", "bfloat16", "int64", "uint8")}  # the root of size 5 is rank 1

    results = [driven.result for driven in run_on_ranks(with_collectives, last_element_off_by_one, options)]

    missing = {(name, dtype) for name in AVERAGES for dtype in ("int64", "uint8")}
    unsupported = {(entry["collective"], entry["dtype"]) for entry in results[0].metrics["unsupported"]}
    missing |= unsupported & ALL_TO_ALL
    expected = {(name, dtype) for name in COLLECTIVES for dtype in options["dtypes"]} - missing
    for result in results:
        assert not result.passed
        assert result.failure_count == len(expected)
        assert result.first_failure_iteration == 0
        assert result.failure_details == results[0].failure_details
        wrong = {"rank": 1, "size": 5, "kind": "wrong_result", "max_abs_err": 1, "wrong_elements": 1}
        for failure in result.failure_details:
            assert failure.items() >= wrong.items()
            assert failure["first_wrong_index"] == failure["elements"] - 1
            assert failure["actual"] == failure["expected"] + 1
    # The details are the first ones, the count is complete.
    found = {(failure["collective"], failure["dtype"]) for failure in results[0].failure_details}
    assert found <= expected
    assert len(found) == min(len(expected), 64)


def with_broken_all_reduce(options: dict[str, Any]) -> Driven:
    """Run the workload on a torch of which rank 1 loses the last element of a maximum."""
    whole = dist.all_reduce

    def broken(tensor: torch.Tensor, op: Any, *args: Any) -> Any:
        if op == dist.ReduceOp.MAX and dist.get_rank() == 1:
            kept = tensor[-1].clone()
            work = whole(tensor, op, *args)
            tensor[-1] = kept
            return work
        return whole(tensor, op, *args)

    with patch.object(dist, "all_reduce", broken):
        return drive(AllReduce, options)


def test_fault_inside_torch_distributed_is_reported_with_its_place() -> None:
    results = [driven.result for driven in run_on_ranks(with_broken_all_reduce, {**SMALL, "sizes": (1001,)})]

    (failure,) = results[0].failure_details
    assert results[1].failure_details == [failure]
    place = {"collective": "all_reduce_max", "dtype": "float32", "size": 1001, "rank": 1, "first_wrong_index": 1000}
    assert failure.items() >= place.items()
    assert failure["max_abs_err"] > failure["tolerance"] == 0


def raises(error: Exception) -> Callable[[str, CollectiveCall, CollectiveSetting], CollectiveCall]:
    def start() -> None:
        raise error

    def change(name: str, call: CollectiveCall, setting: CollectiveSetting) -> CollectiveCall:
        return replace(call, start=start)

    return change


def with_all_collectives_raising(error: Exception) -> Driven:
    return with_collectives(raises(error), SMALL)


def test_unknown_error_of_a_collective_ends_the_run_and_a_backend_that_supports_nothing_does_not_pass() -> None:
    result = run_on_ranks(with_all_collectives_raising, RuntimeError("Connection closed by peer"))[0].result
    assert not result.passed
    assert [failure["rank"] for failure in result.failure_details] == [0, 1]
    assert result.failure_details[0]["error"] == "RuntimeError: Connection closed by peer"
    assert (result.executed_iterations, result.configured_iterations, result.metrics["unsupported"]) == (0, 1, [])

    result = run_on_ranks(with_all_collectives_raising, RuntimeError("Invalid scalar type"))[0].result
    assert not result.passed
    assert result.failure_details[0]["kind"] == "nothing_checked"
    assert result.metrics["unsupported_count"] == len(COLLECTIVES)
    assert result.metrics["unsupported"][0]["reason"] == "RuntimeError: Invalid scalar type"


class LateRank(AllReduce):
    """Rank 1 comes to the barrier only after rank 0 has left it."""

    def _barrier(self, *args: Any) -> int:
        if self.ranks.rank == 1:
            self.ranks.store.wait(["rank 0 has left"])
        with patch.object(dist, "barrier", lambda: None):
            checks = super()._barrier(*args)
        self.ranks.store.set(f"rank {self.ranks.rank} has left", "")
        return checks


def test_barrier_that_does_not_wait_is_found() -> None:
    result = run_on_ranks(drive, LateRank, SMALL)[0].result

    (failure,) = result.failure_details
    assert failure.items() >= {"collective": "barrier", "rank": 0, "actual": 1, "expected": 2}.items()


@pytest.mark.parametrize(("dtype", "terms"), [(torch.bfloat16, 80), (torch.float16, 300)])
def test_tolerance_covers_sums_over_many_ranks(dtype: torch.dtype, terms: int) -> None:
    numbers = torch.randint(0, LARGEST + 1, (terms, 1000), generator=torch.Generator().manual_seed(0))
    total = torch.zeros(1000, dtype=dtype)
    for number in numbers.to(dtype):
        total += number

    error = float((total.double() - numbers.sum(0)).abs().max())

    assert sum_tolerance(dtype, terms=8) == 0  # the ranks of one host
    assert 0 < error <= sum_tolerance(dtype, terms)
    assert sum_tolerance(dtype, terms) < terms * LARGEST


def test_average_of_integers_may_be_rounded_but_not_be_off_by_one() -> None:
    assert average_tolerance(torch.int32, 2) == 0.5
    assert average_tolerance(torch.int32, 8) < 1
    assert average_tolerance(torch.float32, 8) < 1e-4
