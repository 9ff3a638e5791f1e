"""Results that fit their type, of inputs whose squares and sums do not: what computes in too short a type overflows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from pytest_aorta.trials.workload import WorkloadResult

from ._common import Cases, CommaSeparated, Soak, SoakConfig, StepLoop, checksum, dtype_of

_KEYS = 512


class Overflow(Soak):
    """Sums, norms, products, softmax and attention near the largest number of their type.

    Each result must be finite and near that in float64, relative to its largest element: 16 units in the last place.
    Step times are those of the operations, in milliseconds. Metrics: ``cases`` has per operation and type ``rel_error``
    and ``checksum``; ``unsupported`` what the device has no kernel for.
    """

    class Config(SoakConfig, frozen=True):
        dtypes: Annotated[tuple[Literal["float32", "bfloat16", "float16"], ...], CommaSeparated] = Field(
            default=("float32", "bfloat16", "float16"), min_length=1, description="types of inputs and results"
        )

    config: Overflow.Config

    def run(self) -> WorkloadResult:
        run, cases = StepLoop(self, self.device), Cases("operation", "dtype")
        for step in run.steps():
            for dtype in self.config.dtypes:
                for name, (inputs, compute) in self.operations(dtype).items():
                    where = cases.where(case := (name, dtype))
                    with cases.attempt(case), run.timed():
                        result = compute(*(each.to(self.device) for each in inputs))
                    if case in cases.unsupported:
                        continue
                    exact = compute(*(each.double() for each in inputs))
                    off = float((result.cpu().double() - exact).abs().max() / exact.abs().max().clamp_min(1e-300))
                    found = {**where, "rel_error": off, "checksum": checksum(result)}
                    if not bool(result.isfinite().all()):
                        run.failures.add(step, kind="overflow", **where, not_finite=int((~result.isfinite()).sum()))
                    elif not off <= 16 * torch.finfo(result.dtype).eps:
                        run.failures.add(step, kind="wrong_result", **where, rel_error=off)
                    elif found["checksum"] != cases.setdefault(case, found)["checksum"]:
                        run.failures.add(step, kind="differs_from_first", **where)
        return cases.result(run)

    def operations(self, dtype: str) -> dict[str, tuple[list[Tensor], Callable[..., Tensor]]]:
        """Inputs and computation of each; all inputs are exact in their type."""
        kind, most = dtype_of(dtype), torch.finfo(dtype_of(dtype)).max
        large = torch.full((64, _KEYS), 2.0 ** (15 if dtype == "float16" else 126)).to(kind)
        scores = (torch.linspace(-0.5, 0.5, _KEYS) * most).repeat(8, 1).to(kind)
        made: dict[str, tuple[list[Tensor], Callable[..., Tensor]]] = {
            "softmax": ([scores], lambda x: x.softmax(-1)),
            "logsumexp": ([scores], lambda x: x.logsumexp(-1)),
            "cross_entropy": (
                [scores[:2] / 4],
                lambda x: functional.cross_entropy(x, torch.full_like(x[:, 0], 3).long()),
            ),
        }
        if dtype == "float16":  # of the others, sums have no longer type
            halves = torch.cat([large[:, : _KEYS // 2], -large[:, _KEYS // 2 :]], 1)
            signs = torch.where(torch.arange(_KEYS) % 2 == 0, 1.0, -1.0).to(kind)
            heads = (large.view(1, 1, 64, _KEYS)[..., :64] / 256) * signs[:64]
            made |= {
                "mean": ([large], lambda x: x.mean(-1)),
                "norm": ([large / 2**10], lambda x: torch.linalg.vector_norm(x, dim=-1)),
                "matmul": ([halves, torch.eye(_KEYS, 16, dtype=kind) + 1], torch.matmul),
                "layer_norm": ([large * signs], lambda x: functional.layer_norm(x, (_KEYS,))),
                "attention": ([heads, heads, heads], functional.scaled_dot_product_attention),
            }
        return made
