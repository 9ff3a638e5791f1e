"""Scaled dot product attention, forward and backward, on each backend: the same bits again, and near float64."""

from __future__ import annotations

import os
import warnings
from itertools import product
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_aorta.trials.workload import WorkloadResult

from ._common import (
    Cases,
    CommaSeparated,
    Soak,
    SoakConfig,
    StepLoop,
    bits,
    checksum,
    dtype_of,
    gamma,
    same_bits,
)

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}

#: What torch says where a backend has no kernel for a case, or none that is deterministic.
_NO_KERNEL = "No (viable backend|available kernel)|not implemented for|deterministic"

_RESULTS = ("output", "grad_query", "grad_key", "grad_value")


class Attention(Soak):
    """Attention of each backend, type and mask, forward and backward, with deterministic algorithms.

    The first results are compared with attention in float64 on the CPU; all others with the first, bit by bit. Step
    times are those of the attention alone, in milliseconds.

    The tolerance, relative to the largest element: a few roundings of the type (4 forward, 16 backward), and those of
    sums in float32 over all keys and the head's elements (``gamma``). Metrics: ``cases`` has per backend, type and mask
    ``max_rel_error`` and ``checksum``; ``unsupported`` what no kernel takes, or none whose sums have an order.
    """

    class Config(SoakConfig, frozen=True):
        backends: Annotated[tuple[Literal["math", "flash", "efficient", "cudnn"], ...], CommaSeparated] = Field(
            default=("math", "flash", "efficient", "cudnn"), min_length=1, description="backends of SDPA"
        )
        dtypes: Annotated[tuple[Literal["float32", "bfloat16", "float16"], ...], CommaSeparated] = Field(
            default=("float32", "bfloat16", "float16"), min_length=1, description="types of query, key and value"
        )
        batch: PositiveInt = Field(default=2, description="sequences")
        heads: PositiveInt = Field(default=4, description="heads of each")
        length: PositiveInt = Field(default=128, description="queries and keys of each")
        width: PositiveInt = Field(default=64, description="elements of a head")
        seed: int = Field(default=0, description="seed of the inputs")

    config: Attention.Config

    def setup(self) -> None:
        super().setup()
        self._deterministic = torch.are_deterministic_algorithms_enabled()
        if self.device.type == "cuda" and not self._deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, products are refused
            torch.use_deterministic_algorithms(True)

    def run(self) -> WorkloadResult:
        config, run = self.config, StepLoop(self, self.device)
        generator = torch.Generator().manual_seed(config.seed)
        shape = (4, config.batch, config.heads, config.length, config.width)
        inputs = torch.randn(shape, generator=generator)  # query, key, value, and the gradient of the output
        first: dict[tuple[str, str, bool], list[Tensor]] = {}
        cases = Cases("backend", "dtype", "causal", no_kernel=_NO_KERNEL)
        for step in run.steps():
            for case in product(config.backends, config.dtypes, (False, True)):
                if case in cases.unsupported:
                    continue
                name, dtype, causal = case
                given = inputs.to(dtype_of(dtype))
                with cases.attempt(case), run.timed():
                    results = self._attend(name, given.to(self.device), causal)
                if case in cases.unsupported:
                    continue
                if case not in first:
                    first[case] = results
                    self._compare(run, step, results, _attention(given.double(), causal), cases, case)
                    continue
                for what, result, before in zip(_RESULTS, results, first[case], strict=True):
                    if not same_bits(result, before):
                        differing = int((bits(result) != bits(before)).sum())
                        details = {"elements_differing": differing, "elements": result.numel()}
                        run.failures.add(step, kind="differs_from_first", result=what, **cases.where(case), **details)
        return cases.result(run)

    def cleanup(self) -> None:
        if torch.are_deterministic_algorithms_enabled() != self._deterministic:
            torch.use_deterministic_algorithms(self._deterministic)

    def _compare(
        self,
        run: StepLoop,
        step: int,
        results: list[Tensor],
        references: list[Tensor],
        cases: Cases,
        case: tuple[str, str, bool],
    ) -> None:
        where, short = cases.where(case), torch.finfo(torch.float32).eps
        cases[case] = {**where, "max_rel_error": 0.0, "checksum": checksum(torch.stack(results))}
        for what, result, reference in zip(_RESULTS, results, references, strict=True):
            error = float((result.cpu().double() - reference).abs().max() / reference.abs().max())
            cases[case]["max_rel_error"] = max(cases[case]["max_rel_error"], error)
            tolerance = (4 if what == "output" else 16) * torch.finfo(result.dtype).eps
            tolerance += gamma(self.config.length + self.config.width, short)
            if not error <= tolerance:  # so written that NaN is wrong
                limits = {"rel_error": error, "tolerance": tolerance}
                run.failures.add(step, kind="wrong_attention", result=what, **where, **limits)

    def _attend(self, name: str, given: Tensor, causal: bool) -> list[Tensor]:
        """Output and gradients."""
        with warnings.catch_warnings(), sdpa_kernel(BACKENDS[name]):
            warnings.simplefilter("ignore")  # why a backend does not take a case
            return _attention(given, causal)


def _attention(given: Tensor, causal: bool) -> list[Tensor]:
    query, key, value = (each.detach().clone().requires_grad_() for each in given[:3])
    output = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    torch.autograd.backward(output, given[3])
    gradients = [each.grad for each in (query, key, value) if each.grad is not None]
    return [output.detach(), *gradients]
