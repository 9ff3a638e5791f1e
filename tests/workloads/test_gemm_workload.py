from __future__ import annotations

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from aorta_workloads._common import gamma
from aorta_workloads.gemm import Gemm, error_bound
from rank_processes import drive
from torch import Tensor

if TYPE_CHECKING:
    from pytest_aorta.trials.workload import WorkloadResult

FLOATS = ("float32", "float64", "bfloat16", "float16")
SMALL: dict[str, Any] = {"device": "cpu", "steps": 1, "sizes": ((4, 32, 6),)}


def run(workload_class: type[Gemm] = Gemm, **options: Any) -> WorkloadResult:
    return drive(workload_class, {**SMALL, **options}).result


def test_default_run_passes_and_reports_every_shape_and_type() -> None:
    config = Gemm.Config(device="cpu")
    driven = drive(Gemm, {"device": "cpu"})
    driven.assert_passed(steps=2)
    result = driven.result
    cases = result.metrics["cases"]
    assert len(cases) == len(config.sizes) * len(config.dtypes)
    for case in cases:
        assert 0 <= case["bound_used"] <= 1
        if case["dtype"].startswith("int"):
            assert case["max_rel_error"] == case["rel_tolerance"] == 0
    assert result.metrics["worst_bound_used"] == max(case["bound_used"] for case in cases)
    assert result.metrics["unsupported"] == []


class OneWrongElement(Gemm):
    """One element is off by ``shift`` times its value's magnitude."""

    shift = 0.02

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        product = super()._product(left, right)
        if product.shape[-1] > 3:
            shift = self.shift * product.abs().max()
            product[2, 3] += shift if product.is_floating_point() else 1
        return product


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64"])
def test_one_wrong_element_is_found_and_located(dtype: str) -> None:
    result = run(OneWrongElement, dtypes=(dtype,), steps=2)

    assert (result.passed, result.failure_count, result.first_failure_iteration) == (False, 2, 0)
    failure = result.failure_details[1]
    place = {"iteration": 1, "shape": "4x32x6", "dtype": dtype, "layout": "nt", "wrong_elements": 1, "index": [2, 3]}
    assert failure.items() >= place.items()
    assert failure["abs_error"] == pytest.approx(abs(failure["actual"] - failure["expected"]))
    assert failure["abs_error"] > failure["tolerance"]
    assert result.metrics["worst_bound_used"] > 1


class NotFinite(OneWrongElement):
    shift = math.nan


@pytest.mark.parametrize("dtype", FLOATS)
def test_result_that_is_not_finite_never_passes(dtype: str) -> None:
    result = run(NotFinite, dtypes=(dtype,))

    numbers = (result.failure_details[0]["actual"], result.metrics["worst_bound_used"])
    assert not result.passed
    assert not any(map(math.isfinite, (*numbers, result.metrics["cases"][0]["max_rel_error"])))


class WrongOnceInThree(Gemm):
    """A product that goes wrong now and then."""

    calls = 0

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        self.calls += 1
        return super()._product(left, right) * (1.5 if self.calls == 4 else 1)


def test_repeated_products_are_all_checked() -> None:
    # The first call is the one of setup().
    assert run(WrongOnceInThree, dtypes=("float32",), repeat=3).failure_count == 1
    assert run(WrongOnceInThree, dtypes=("float32",), repeat=2).passed


class Tf32(Gemm):
    """Multiplies float32 as tensor cores do with TF32: operands with 10 bits of fraction, sums in float32."""

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        short = [(matrix.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for matrix in (left, right)]
        return super()._product(*short)


class ShortSums(Gemm):
    """Keeps its sums in the type of the operands."""

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        total = torch.zeros(left.shape[0], right.shape[1], dtype=left.dtype)
        for term in range(left.shape[1]):
            total += torch.outer(left[:, term], right[term])
        return total


def test_short_types_are_found_and_the_order_of_additions_is_within_the_bound() -> None:
    assert not run(Tf32, dtypes=("float32",)).passed
    for dtype in ("bfloat16", "float16"):
        assert not run(ShortSums, dtypes=(dtype,)).passed
    for dtype in ("float32", "float64"):
        assert run(ShortSums, dtypes=(dtype,), sizes="4x2000x6").passed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_bound_holds_against_exact_arithmetic_and_is_not_wide(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((3, 17), (17, 2)))
    exact = [
        [sum(Fraction(a) * Fraction(b) for a, b in zip(row, column, strict=True)) for column in right.mT.tolist()]
        for row in left.tolist()
    ]
    reference = left.double() @ right.double()
    magnitude = left.double().abs() @ right.double().abs()

    bound = error_bound(dtype, reference, magnitude, 17)
    product = (left @ right).double()

    for i in range(3):
        for j in range(2):
            assert abs(Fraction(product[i, j].item()) - exact[i][j]) <= bound[i, j].item()
    relative = float((bound / magnitude).max())
    assert relative <= 17.1 * torch.finfo(dtype).eps


def test_gamma_is_higham_s() -> None:
    assert gamma(1, 2**-24) == pytest.approx(2**-24)
    assert gamma(2**22, 2**-24) == pytest.approx(0.25 / 0.75)
    with pytest.raises(ValueError, match="no error bound for 512 roundings"):
        gamma(512, 2**-9)


class NoIntegers(Gemm):
    """A device without integer products, as CUDA is."""

    message = "\"addmm_cuda\" not implemented for 'Int'"

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        if not left.is_floating_point():
            raise RuntimeError(self.message)
        return super()._product(left, right)


class BrokenIntegers(NoIntegers):
    message = "an illegal memory access was encountered"


def test_type_that_the_device_cannot_multiply_is_listed_and_other_errors_are_raised() -> None:
    result = run(NoIntegers, dtypes=("float32", "int32"), steps=2)
    assert result.passed
    assert result.metrics["unsupported"] == [{"dtype": "int32", "reason": NoIntegers.message}]
    assert [case["dtype"] for case in result.metrics["cases"]] == ["float32"]

    result = run(NoIntegers, dtypes=("int32",))
    assert not result.passed
    assert result.failure_details == [{"iteration": 0, "kind": "nothing_checked"}]

    with pytest.raises(RuntimeError, match="illegal memory access"):
        run(BrokenIntegers, dtypes=("int32",))


def test_sizes_and_types_can_be_written_as_text() -> None:
    config = Gemm.Config.model_validate({"sizes": "64x64x64, 3x4x5x6", "dtypes": "float32,int64"})

    assert config.sizes == ((64, 64, 64), (3, 4, 5, 6))
    assert config.dtypes == ("float32", "int64")


class WrongInTheSoak(Gemm):
    """After the first pass, one bit of one product is another, once."""

    calls = 0

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        product = super()._product(left, right)
        self.calls += 1
        if self.calls == 5:  # one in setup, three types in the first pass
            product.view(torch.int32)[1, 2] ^= 1
        return product


def test_soak_computes_the_first_products_again_and_finds_one_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes = ("float32", "float64", "bfloat16")
    # Its clock counts how often it was asked, so that several steps take place however busy this machine is.
    clock = SimpleNamespace(perf_counter=itertools.count(0.0, 0.01).__next__)
    monkeypatch.setattr("aorta_workloads._common.time", clock)
    sound = run(dtypes=dtypes, duration=0.5)
    assert sound.passed
    assert sound.executed_iterations is not None
    assert sound.executed_iterations > 2
    assert len({case["checksum"] for case in sound.metrics["cases"]}) == 3

    result = run(WrongInTheSoak, dtypes=dtypes, duration=0.5)
    (failure,) = result.failure_details
    place = {"iteration": 1, "kind": "differs_from_first", "dtype": "float32", "wrong_elements": 1, "index": [1, 2]}
    assert failure.items() >= place.items()


def test_product_that_fills_a_share_of_the_memory_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aorta_workloads.gemm.free_memory", lambda device: 10 * 3 * 4 * 100 * 100)
    options: dict[str, Any] = {"dtypes": ("float32",), "memory": 0.1, "duration": 0.1}

    sound = run(**options)
    assert sound.passed
    assert "96x96x96" in {case["shape"] for case in sound.metrics["cases"]}
    wrong = run(OneWrongElement, **options).failure_details
    assert all(
        failure["shape"] != "96x96x96" for failure in wrong
    )  # alike each time, and not among those that are read


def test_types_of_tensor_cores_are_listed_where_there_are_none() -> None:
    result = run(dtypes=("float32", "tf32", "float8"))

    assert result.passed
    assert [each["dtype"] for each in result.metrics["unsupported"]] == ["tf32", "float8"]
    assert result.metrics["unsupported"][0]["reason"] == "cpu has no units for tf32"
