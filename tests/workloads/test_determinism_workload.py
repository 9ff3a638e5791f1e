from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from aorta_workloads.determinism import Determinism, Operation
from rank_processes import drive

if TYPE_CHECKING:
    from pytest_aorta.trials.workload import WorkloadResult

RUN_DEFAULTS = """
import dataclasses, json
from aorta_workloads.determinism import Determinism
workload = Determinism(Determinism.Config(device="cpu"))
workload.setup()
print(json.dumps(dataclasses.asdict(workload.run())))
"""


def run(workload_class: type[Determinism] = Determinism, **options: Any) -> WorkloadResult:
    return drive(workload_class, {"device": "cpu", **options}).result


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_fails_only_when_the_process_starts_with_several_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_DYNAMIC", "FALSE")  # else torch starts no more threads than there are cores
    done = subprocess.run([sys.executable, "-c", RUN_DEFAULTS], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)

    assert result["passed"] == (result["failure_details"] == []) == (threads == 1)
    assert (result["metrics"]["threads"], result["executed_iterations"]) == (threads, 3)
    if threads == 1:
        equal = {"bitwise_equal": True, "repeats_equal": True, "max_abs_diff": 0, "rounds_differing": 0}
        equal["bound_used"] = 0
        assert all(finding == equal for finding in result["metrics"]["operations"].values())
        assert (result["failure_count"], result["metrics"]["operations_differing"]) == (0, 0)
    else:
        assert (result["first_failure_iteration"], result["failure_details"][0]["threads"]) == (0, threads)


def test_reports_for_every_operation_whether_and_by_how_much_it_differs() -> None:
    result = run(threads=2, steps=2)

    operations = result.metrics["operations"]
    assert {"sum_1000003", "mean_1000003", "dot_1000003", "matmul_256x256x256", "mlp_backward"} <= set(operations)
    for finding in operations.values():
        assert finding["bitwise_equal"] == (finding["max_abs_diff"] == 0) == (finding["rounds_differing"] == 0)
        assert finding["repeats_equal"]  # the same number of threads adds in the same order
    rounds = sum(finding["rounds_differing"] for finding in operations.values())
    assert result.failure_count == len(result.failure_details) == rounds
    for failure in result.failure_details:
        assert failure["kind"] == "differs_from_reference"
        assert 0 < failure["max_abs_diff"] <= operations[failure["operation"]]["max_abs_diff"]
        assert 1 <= failure["elements_differing"] <= failure["elements"]


def test_reports_each_round_as_a_step_and_leaves_the_process_as_it_was() -> None:
    before = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.get_rng_state())

    drive(Determinism, {"device": "cpu", "steps": 2, "threads": 1}).assert_passed(steps=2)
    run(threads=before[0] + 1, deterministic_algorithms=True, steps=1)

    assert torch.get_num_threads() == before[0]
    assert torch.are_deterministic_algorithms_enabled() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


class Elementwise(Determinism):
    """Work that threads can share without changing a bit."""

    def operations(self, generator: torch.Generator) -> dict[str, Operation]:
        numbers = torch.randn(1_000_003, generator=generator)
        return {"square": Operation(lambda: numbers * numbers)}


def test_operation_that_threads_do_not_change_passes() -> None:
    result = run(Elementwise, threads=4)

    assert result.passed
    assert result.metrics["threads"] == 4
    assert result.metrics["operations"]["square"]["bitwise_equal"]


class ByThreads(Determinism):
    """On one thread 0 and NaN, on several -0 and NaN: equal or not by arithmetic, but their bits differ."""

    def operations(self, generator: torch.Generator) -> dict[str, Operation]:
        def signed_zero() -> torch.Tensor:
            return torch.tensor([0.0 if torch.get_num_threads() == 1 else -0.0])

        nan = torch.tensor([float("nan")])
        return {"signed_zero": Operation(signed_zero), "nan": Operation(lambda: nan)}


def test_bits_are_compared_and_not_numbers_and_what_is_not_finite_fails_even_if_it_repeats() -> None:
    operations = run(ByThreads, threads=2, steps=1).metrics["operations"]
    assert [operations[name]["bitwise_equal"] for name in ("signed_zero", "nan")] == [False, True]

    result = run(ByThreads, threads=1, steps=1)
    assert not result.passed
    assert result.failure_details == [{"iteration": 0, "operation": "nan", "threads": 1, "kind": "non_finite"}]


class Drifting(Determinism):
    """Every call gives another result."""

    calls = 0

    def operations(self, generator: torch.Generator) -> dict[str, Operation]:
        def count() -> torch.Tensor:
            self.calls += 1
            return torch.tensor([float(self.calls)])

        return {"count": Operation(count)}


def test_results_that_differ_from_run_to_run_are_distinguished() -> None:
    result = run(Drifting, threads=1, steps=1, repeat=3)

    kinds = [failure["kind"] for failure in result.failure_details]
    assert kinds == ["corruption", "differs_between_repeats"]
    assert result.metrics["operations"]["count"]["repeats_equal"] is False


class OneBit(Determinism):
    """An element of one product has another bit in its fraction, once."""

    calls = 0

    def operations(self, generator: torch.Generator) -> dict[str, Operation]:
        made = super().operations(generator)
        right = made["matmul_256x256x256"]

        def wrong() -> torch.Tensor:
            self.calls += 1
            product = right.compute()
            if self.calls == 2:
                product.view(torch.int32)[3, 5] ^= 1 << 18
            return product

        return {**made, "matmul_256x256x256": Operation(wrong, right.terms)}


@pytest.mark.parametrize("threads", [1, 2])
def test_corruption_is_told_from_the_order_of_sums(threads: int) -> None:
    result = run(OneBit, threads=threads)

    assert result.metrics["corruptions"] == 1
    first, *others = result.failure_details
    wrong = {"kind": "corruption", "operation": "matmul_256x256x256", "elements_differing": 1, "elements": 65536}
    assert first.items() >= wrong.items()
    assert first["times_the_bound"] > 1
    assert "corruption" not in {failure["kind"] for failure in others}


def test_order_of_sums_may_pass_and_corruption_then_fails_alone() -> None:
    passed = run(threads=2, order_of_sums="passes")
    assert passed.passed
    assert passed.metrics["operations_differing"] > 0
    assert all(finding["bound_used"] < 0.1 for finding in passed.metrics["operations"].values())

    failed = run(OneBit, threads=2, order_of_sums="passes")
    assert [failure["kind"] for failure in failed.failure_details] == ["corruption"]


def test_gpu_needs_a_second_run_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "0")

    with pytest.raises(ValueError, match=r"repeat=1 on cuda:0 compares nothing"):
        Determinism(Determinism.Config(device="cuda", repeat=1)).setup()
