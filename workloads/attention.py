"""Scaled dot product attention, forward and backward, on each backend: the same bits again, and near float64."""

from __future__ import annotations

import os
import re
import warnings
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_aorta.trials.workload import WorkloadResult

from ._common import (
    CommaSeparated,
    Soak,
    SoakConfig,
    StepLoop,
    Stopwatch,
    bits,
    checksum,
    choose_device,
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
_NO_KERNEL = re.compile("No (viable backend|available kernel)|not implemented for|deterministic")

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
    timeout_sec: ClassVar[float | None] = 300.0

    def setup(self) -> None:
        self.device = choose_device(self.config.device)
        self._deterministic = torch.are_deterministic_algorithms_enabled()
        if self.device.type == "cuda" and not self._deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, products are refused
            torch.use_deterministic_algorithms(True)

    def run(self) -> WorkloadResult:
        config, run = self.config, StepLoop(self, self.device)
        generator = torch.Generator().manual_seed(config.seed)
        shape = (4, config.batch, config.heads, config.length, config.width)
        inputs = torch.randn(shape, generator=generator)  # query, key, value, and the gradient of the output
        wanted = list(product(config.backends, config.dtypes, (False, True)))
        references: dict[tuple[str, bool], list[Tensor]] = {}
        first: dict[tuple[str, str, bool], list[Tensor]] = {}
        cases: dict[tuple[str, str, bool], dict[str, Any]] = {}
        unsupported: dict[tuple[str, str, bool], dict[str, Any]] = {}
        for step, watch in run.steps():
            for case in wanted:
                name, dtype, causal = case
                where = {"backend": name, "dtype": dtype, "causal": causal}
                if case in unsupported:
                    continue
                given = inputs.to(dtype_of(dtype))
                try:
                    results = self._attend(name, given.to(self.device), causal, watch)
                except RuntimeError as error:
                    if not _NO_KERNEL.search(str(error)):
                        raise
                    unsupported[case] = {**where, "reason": str(error).partition("\n")[0]}
                    continue
                if (dtype, causal) not in references:
                    references[dtype, causal] = _attention(given.double(), causal)
                is_first = case not in first
                if is_first:
                    first[case] = results
                    cases[case] = {**where, "max_rel_error": 0.0, "checksum": checksum(torch.stack(results))}
                for number, (what, result) in enumerate(zip(_RESULTS, results, strict=True)):
                    if not is_first:
                        if not same_bits(result, first[case][number]):
                            differing = int((bits(result) != bits(first[case][number])).sum())
                            details = {"elements_differing": differing, "elements": result.numel()}
                            run.failures.add(step, kind="differs_from_first", result=what, **where, **details)
                        continue
                    reference = references[dtype, causal][number]
                    error_seen = float((result.cpu().double() - reference).abs().max() / reference.abs().max())
                    cases[case]["max_rel_error"] = max(cases[case]["max_rel_error"], error_seen)
                    tolerance = self._tolerance(result.dtype, backward=number > 0)
                    if not error_seen <= tolerance:  # so written that NaN is wrong
                        limits = {"rel_error": error_seen, "tolerance": tolerance}
                        run.failures.add(step, kind="wrong_attention", result=what, **where, **limits)
        if not cases:
            run.failures.add(0, kind="nothing_checked")
        missing = list(unsupported.values())
        return run.result(device=str(self.device), cases=list(cases.values()), unsupported=missing)

    def cleanup(self) -> None:
        if torch.are_deterministic_algorithms_enabled() != self._deterministic:
            torch.use_deterministic_algorithms(self._deterministic)

    def _tolerance(self, dtype: torch.dtype, *, backward: bool) -> float:
        roundings = 16 if backward else 4
        short = torch.finfo(torch.float32).eps
        return roundings * torch.finfo(dtype).eps + gamma(self.config.length + self.config.width, short)

    def _attend(self, name: str, given: Tensor, causal: bool, watch: Stopwatch) -> list[Tensor]:
        """Output and gradients."""
        with warnings.catch_warnings(), sdpa_kernel(BACKENDS[name]), watch.running():
            warnings.simplefilter("ignore")  # why a backend does not take a case
            return _attention(given, causal)


def _attention(given: Tensor, causal: bool) -> list[Tensor]:
    query, key, value = (each.detach().clone().requires_grad_() for each in given[:3])
    output = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    torch.autograd.backward(output, given[3])
    gradients = [each.grad for each in (query, key, value) if each.grad is not None]
    return [output.detach(), *gradients]
