"""Matrix products against a float64 reference, within the rounding error that the arithmetic explains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, PositiveInt
from torch import Tensor

from pytest_aorta.trials.workload import WorkloadResult

from ._common import (
    Cases,
    CommaSeparated,
    Soak,
    SoakConfig,
    StepLoop,
    checksum,
    dtype_of,
    free_memory,
    gamma,
    same_bits,
)

DtypeName = Literal["float32", "float64", "bfloat16", "float16", "int32", "int64", "tf32", "float8"]

LAYOUTS = ("nn", "nt", "tn", "tt")
"""Storage of A and B: ``n`` is row-major, ``t`` is column-major. The product is the same, the kernels are not."""


def _split_shape(value: object) -> object:
    return value.split("x") if isinstance(value, str) else value


Shape = Annotated[tuple[PositiveInt, ...], Field(min_length=3, max_length=4), BeforeValidator(_split_shape)]


def error_bound(dtype: torch.dtype, exact: Tensor, magnitude: Tensor, terms: int) -> Tensor:
    """The largest error of every element of a computed product ``A B`` that rounding can explain.

    For inner products of ``k`` terms, summed in any order, ``|C - fl(AB)| <= gamma_k(u) |A||B|`` element by element
    (Higham, section 3.5). From there:

    - float32, float64: ``u = eps / 2``;
    - bfloat16, float16: sums are kept in float32, whose ``eps`` itself is taken for ``u`` because the adders of
      tensor cores truncate; then the sum is rounded once to the output, ``u |C|``;
    - all: plus ``gamma_k`` of float64 for the reference, and the smallest normal number for underflow;
    - integers: nothing.

    TF32 products, and sums of bfloat16 or float16 that were kept in their own precision, exceed the bound: that
    is a finding.

    Args:
        dtype: type of the operands and of the result.
        exact: ``A B`` in float64, shape ``[..., m, n]``.
        magnitude: ``|A||B|`` in float64, same shape.
        terms: ``k``.
    """
    if not dtype.is_floating_point:
        return torch.zeros_like(exact)
    info = torch.finfo(dtype)
    reference = gamma(terms, torch.finfo(torch.float64).eps / 2) * magnitude
    if dtype in (torch.float32, torch.float64):
        return gamma(terms, info.eps / 2) * magnitude + reference + info.tiny
    accumulated = gamma(terms, torch.finfo(torch.float32).eps) * magnitude
    return accumulated * (1 + info.eps / 2) + info.eps / 2 * exact.abs() + reference + info.tiny


def _bound(name: DtypeName, exact: Tensor, magnitude: Tensor, terms: int) -> Tensor:
    """`error_bound`, also of the types of tensor cores.

    - tf32: in addition, both operands are rounded to 10 bits of fraction;
    - float8: sums keep 13 bits of fraction (measured on H100, whose tensor cores align products so) for as long as the
      library leaves them there, taken for 1024 terms; the result is bfloat16. Coarse: bits are compared as well.
    """
    if name == "tf32":
        return error_bound(torch.float32, exact, magnitude, terms) + (2**-9 + gamma(terms, 2**-22)) * magnitude
    if name == "float8":
        rounded = error_bound(torch.bfloat16, exact, magnitude, terms)
        return rounded + 1.01 * gamma(min(terms, 1024), 2**-13) * magnitude
    return error_bound(dtype_of(name), exact, magnitude, terms)


class Gemm(Soak):
    """Products of many shapes, types and layouts, every element checked.

    One iteration is one pass over ``sizes`` x ``dtypes`` with fresh operands, every size in the next one of the four
    `LAYOUTS`; ``repeat`` computes each product several times and checks each, also bit by bit against the first. With
    ``duration``, the products of the first pass are then computed again and again, and their checksums compared. Step
    times are those of the products alone, in milliseconds; ``elapsed_sec`` includes the operands and the check.

    Metrics: ``cases`` has per shape and type ``max_rel_error`` (``max |C - fl(AB)| / max |C|``), ``rel_tolerance``
    (the bound relative to ``|A||B|``), ``bound_used`` (largest error in units of its element's bound: more than 1
    fails) and ``checksum`` (of the first product, equal on equal devices); ``worst_bound_used`` is the largest of
    these; ``gflops``, in 1e9 operations per second over all products; ``unsupported`` lists the types that the device
    cannot multiply.
    """

    class Config(SoakConfig, frozen=True):
        steps: PositiveInt = Field(default=2, description="passes over all cases; four see every size in every layout")
        repeat: PositiveInt = Field(default=1, description="times that each product is computed and checked in a pass")
        sizes: Annotated[tuple[Shape, ...], CommaSeparated] = Field(
            default=(
                (1, 1, 1),
                (64, 64, 64),
                (33, 65, 17),
                (301, 16, 8),
                (8, 16, 301),
                (7, 1031, 5),
                (3, 24, 40, 28),
            ),
            min_length=1,
            description="m, k, n in elements, or batch, m, k, n; as text: 64x64x64,3x24x40x28",
        )
        dtypes: Annotated[tuple[DtypeName, ...], CommaSeparated] = Field(
            default=("float32", "float64", "bfloat16", "float16", "int32", "int64"),
            min_length=1,
            description="types of the operands and of the result; tf32 and float8 where the device has them",
        )
        memory: float = Field(
            default=0.0, ge=0, le=0.9, description="share of the device's free memory for one more, square product"
        )
        seed: int = Field(default=0, description="seed of the operands")

    config: Gemm.Config

    def setup(self) -> None:
        super().setup()
        warm = torch.ones(2, 2, device=self.device)
        self._product(warm, warm)

    def run(self) -> WorkloadResult:
        config, run = self.config, StepLoop(self, self.device)
        self._cases, self._operations = Cases("dtype"), 0
        self._kept: list[_Product] = []
        self._cases.unsupported = {(name,): why for name in config.dtypes if (why := _lacking(name, self.device))}
        # On the CPU whatever the device, so that every device gets the same operands.
        generator = torch.Generator().manual_seed(config.seed)
        for step in run.steps():
            if step >= config.steps:
                self._soak(run, step)
                continue
            if step == 0 and config.memory:
                self._large(run)
            for number, shape in enumerate(config.sizes):
                for name in config.dtypes:
                    if (name,) not in self._cases.unsupported:
                        self._small(run, step, shape, name, LAYOUTS[(step + number) % len(LAYOUTS)], generator)
        return self._cases.result(
            run,
            worst_bound_used=_largest([case["bound_used"] for case in self._cases.values()]),
            gflops=self._operations / (sum(run.step_times) * 1e6) if self._cases else 0.0,
        )

    def _small(
        self, run: StepLoop, step: int, shape: Shape, name: DtypeName, layout: str, generator: torch.Generator
    ) -> None:
        if name == "float8":
            if len(shape) > 3 or any(length % 16 for length in shape):
                return  # no kernel takes it
            layout = "nt"
        left, right = _operands(shape, _operand_type(name, self.device), generator)
        stored = _stored(left.to(self.device), layout[0]), _stored(right.to(self.device), layout[1])
        references = left.double() @ right.double(), left.double().abs() @ right.double().abs()
        self._check(run, step, _Product(shape, name, layout, *stored), *references)

    def _large(self, run: StepLoop) -> None:
        """One square product of each type that fills a share of the memory, checked in 256 elements."""
        known = self._cases.unsupported
        names = [name for name in self.config.dtypes if (name,) not in known and not name.startswith("int")]
        generator = torch.Generator(self.device).manual_seed(self.config.seed)
        share = self.config.memory * free_memory(self.device) / max(1, len(names))
        for name in names:
            dtype = _operand_type(name, self.device)
            size = max(16, int(math.sqrt(share / (3 * max(2, dtype.itemsize)))) // 16 * 16)
            operands = [torch.empty(size, size, device=self.device, dtype=dtype) for _ in range(2)]
            for operand in operands:
                for rows in torch.split(operand, 1024):  # in pieces: random numbers are float32 first
                    rows.copy_(torch.randn(rows.shape, generator=generator, device=self.device))
            some = torch.linspace(0, size - 1, 16).long()
            rows, rest = (torch.stack([each[index].double().cpu() for index in some.tolist()]) for each in operands)
            product = _Product((size, size, size), name, "nt", operands[0], operands[1].mT)
            self._check(run, 0, product, rows @ rest.mT, rows.abs() @ rest.mT.abs(), some.to(self.device))

    def _check(
        self, run: StepLoop, step: int, product: _Product, exact: Tensor, magnitude: Tensor, some: Tensor | None = None
    ) -> None:
        """Compute it, and compare with ``A B`` and ``|A||B|`` in float64: all of it, or some rows and columns."""
        with self._cases.attempt((product.name,)), run.timed():
            results = [self._compute(product) for _ in range(self.config.repeat)]
        if (product.name,) in self._cases.unsupported:
            return
        shape, where = product.shape, product.where
        case = self._cases.setdefault((shape, product.name), _empty_case(shape, product.name))
        bound = _bound(product.name, exact, magnitude, shape[-2])
        for result in results:
            read = result if some is None else result[some][:, some]
            wrong = _compare(read.cpu().double(), exact, bound, case)
            if wrong is not None:
                run.failures.add(step, kind="wrong_product", **where, **wrong)
            elif product.first is None:
                product.first = result
            elif not same_bits(result, product.first):
                run.failures.add(step, kind="differs_from_first", **where, **_difference(result, product.first))
        if step == 0 and product.first is not None:
            product.checksum = case["checksum"] = checksum(product.first)
            self._kept += [product] if self.config.duration else []

    def _soak(self, run: StepLoop, step: int) -> None:
        for product in self._kept:
            with run.timed():
                results = [self._compute(product) for _ in range(self.config.repeat)]
            for result in results:
                if checksum(result) != product.checksum:
                    difference = _difference(result, product.first)
                    run.failures.add(step, kind="differs_from_first", **product.where, **difference)

    def _compute(self, product: _Product) -> Tensor:
        self._operations += 2 * math.prod(product.shape)
        left, right = product.left, product.right
        if product.name == "float8":
            one = torch.ones((), device=self.device)
            return torch._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16)
        if product.name != "tf32":
            return self._product(left, right)
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return self._product(left, right)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.matmul(left, right)


@dataclass
class _Product:
    """A product, which may be computed again as long as the run goes on; ``first``: its first good result."""

    shape: Shape
    name: DtypeName
    layout: str
    left: Tensor
    right: Tensor
    first: Any = None
    checksum: str = ""

    @property
    def where(self) -> dict[str, Any]:
        return {"shape": _text(self.shape), "dtype": self.name, "layout": self.layout}


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _lacking(name: DtypeName, device: torch.device) -> str:
    """Why the device cannot multiply a type of tensor cores; empty if it can."""
    if name not in ("tf32", "float8"):
        return ""
    if device.type == "cuda" and torch.version.hip is None:
        has = torch.cuda.get_device_capability(device) >= {"tf32": (8, 0), "float8": (8, 9)}[name]
    else:
        has = device.type == "cuda" and torch.cuda.get_device_properties(device).gcnArchName.startswith(
            ("gfx94",) if name == "tf32" else ("gfx94", "gfx95")
        )
    return "" if has else f"{device} has no units for {name}"


def _operand_type(name: DtypeName, device: torch.device) -> torch.dtype:
    if name == "tf32":
        return torch.float32
    if name != "float8":
        return dtype_of(name)
    is_fnuz = torch.version.hip is not None and "gfx94" in torch.cuda.get_device_properties(device).gcnArchName
    return torch.float8_e4m3fnuz if is_fnuz else torch.float8_e4m3fn


def _difference(product: Tensor, first: Tensor) -> dict[str, Any]:
    wrong = (product != first) & ~(product.isnan() & first.isnan())
    return _described(product, first, wrong, int(wrong.flatten().int().argmax()))


def _described(product: Tensor, expected: Tensor, wrong: Tensor, place: int) -> dict[str, Any]:
    return {
        "wrong_elements": int(wrong.sum()),
        "index": [int(i) for i in torch.unravel_index(torch.tensor(place), expected.shape)],
        "actual": float(product.flatten()[place]),
        "expected": float(expected.flatten()[place]),
    }


def _operands(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A ``[..., m, k]`` and B ``[..., k, n]``: standard normal numbers, or integers of -8..8."""
    *batch, m, k, n = shape
    if dtype.is_floating_point:
        left = torch.randn(*batch, m, k, generator=generator)
        right = torch.randn(*batch, k, n, generator=generator)
    else:
        left = torch.randint(-8, 9, (*batch, m, k), generator=generator)
        right = torch.randint(-8, 9, (*batch, k, n), generator=generator)
    return left.to(dtype), right.to(dtype)


def _stored(matrix: Tensor, order: str) -> Tensor:
    """The same matrix, its last two dimensions stored row-major (``n``) or column-major (``t``)."""
    return matrix if order == "n" else matrix.mT.contiguous().mT


def _empty_case(shape: Shape, name: DtypeName) -> dict[str, Any]:
    one = torch.ones((), dtype=torch.float64)
    return {
        "shape": _text(shape),
        "dtype": name,
        "max_rel_error": 0.0,
        "rel_tolerance": float(_bound(name, one, one, shape[-2])),
        "bound_used": 0.0,
    }


def _compare(product: Tensor, exact: Tensor, bound: Tensor, case: dict[str, Any]) -> dict[str, Any] | None:
    """Compare ``product`` with ``exact``, both float64; note the errors in ``case`` and describe a failure."""
    error = (product - exact).abs()
    # A bound of 0 is an integer's: 0 / 0 there is no error at all, while x / 0 and NaN stay what they are.
    used = torch.where(error == 0, 0.0, error / bound)
    case["max_rel_error"] = _largest([case["max_rel_error"], float(error.max() / exact.abs().max().clamp_min(1e-300))])
    case["bound_used"] = _largest([case["bound_used"], float(used.max())])
    within = error <= bound  # False for NaN
    if bool(within.all()):
        return None
    worst = int(torch.where(within, -1.0, torch.nan_to_num(used, nan=torch.inf)).argmax())
    limits = {"abs_error": float(error.flatten()[worst]), "tolerance": float(bound.flatten()[worst])}
    return {**_described(product, exact, ~within, worst), **limits}


def _largest(values: list[float]) -> float:
    """The maximum; NaN if one of them is (``max()`` would drop it or not by their order)."""
    return float(torch.tensor([0.0, *values], dtype=torch.float64).max())
