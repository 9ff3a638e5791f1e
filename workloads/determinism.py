"""The same computation, bit by bit: does the number of threads, or the next run, change it, and more than it may?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn import functional

from pytest_aorta.trials.workload import WorkloadResult

from ._common import Failures, Soak, SoakConfig, StepLoop, bits, same_bits

#: Standard deviations of a rounding error that no order of additions comes to.
_FAR = 8


@dataclass(frozen=True)
class Operation:
    """What is computed again: sums of at most ``terms`` numbers, with the size ``scale``.

    Without ``scale`` it is the root mean square of the result's elements, which a single sum has not enough of.
    """

    compute: Callable[[], Tensor]
    terms: int = 1
    scale: float | None = None

    def bound(self, reference: Tensor) -> Tensor:
        """The largest difference of each element that another order of its sums explains: ``8 sqrt(n) u |x|``.

        Rounding errors of sums over random numbers are independent with mean 0, and partial sums are no larger than
        their ends are expected to be (N. J. Higham and T. Mary, Sharper Probabilistic Backward Error Analysis for Basic
        Linear Algebra Kernels with Random Data, SIAM J. Sci. Comput. 42, 2020).
        """
        size = reference.double().abs()
        scale = self.scale if self.scale is not None else float(size.square().mean().sqrt())
        return _FAR * math.sqrt(self.terms) * torch.finfo(reference.dtype).eps * size.clamp_min(scale)


class Determinism(Soak):
    """Reductions, products and gradients, computed again and compared bit by bit.

    Floating-point addition is not associative, so a sum that is split over threads has another rounding error than
    one that is not. On a CPU every operation runs at the process's number of threads, ``repeat`` times, and once more
    on one thread, which is the reference. With two threads or more this **fails**, every time: that is the
    finding, and ``OMP_NUM_THREADS=1`` is a mitigation that works. On one thread there is nothing to differ, and it
    passes. On a GPU the first run is the reference of the others.

    A difference that is larger than any order of additions explains is another failure, ``corruption``, and comes
    first. ``order_of_sums=passes`` lets only that one, and results that are not finite, fail.

    One iteration is one round with fresh inputs. Step times are those of the operations without the reference, in
    milliseconds; ``elapsed_sec`` includes inputs, reference and comparison.

    Metrics: ``threads`` (of the CPU, as found), ``corruptions`` (how many), ``operations`` (per name:
    ``bitwise_equal``, ``repeats_equal``, ``max_abs_diff``, ``rounds_differing``, ``bound_used``, the largest difference
    in units of its bound), ``operations_differing`` (how many of them).
    """

    class Config(SoakConfig, frozen=True):
        steps: PositiveInt = Field(default=3, description="rounds, each with fresh inputs")
        repeat: PositiveInt = Field(default=2, description="times that every operation is computed in a round")
        threads: PositiveInt | None = Field(
            default=None,
            description="CPU threads to compare with one; without it those that the process starts with",
        )
        deterministic_algorithms: bool = Field(
            default=False,
            description="call torch.use_deterministic_algorithms(True), which helps on a GPU (there it also needs "
            "CUBLAS_WORKSPACE_CONFIG=:4096:8) and does not touch the order of additions on a CPU",
        )
        order_of_sums: Literal["fails", "passes"] = Field(
            default="fails", description="what becomes of differences that another order of additions explains"
        )
        seed: int = Field(default=0, description="seed of the inputs")

    config: Determinism.Config

    def setup(self) -> None:
        super().setup()
        self._found = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
        if self.device.type != "cpu" and self.config.repeat < 2:
            raise ValueError(f"repeat={self.config.repeat} on {self.device} compares nothing; it takes 2 or more")
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        if self.config.deterministic_algorithms:
            torch.use_deterministic_algorithms(True)

    def run(self) -> WorkloadResult:
        config = self.config
        threads = torch.get_num_threads()
        run = StepLoop(self, self.device)
        corrupt, ordered = Failures(), Failures()
        findings: dict[str, _Finding] = {}
        compute: _Round | None = None
        for step in run.steps():
            operations = self.operations(torch.Generator().manual_seed(config.seed + step))
            compute = compute or _Round(operations)
            with run.timed():
                results: dict[str, list[Tensor]] = compute(operations, config.repeat)
            for name, (first, *others) in results.items():
                finding = findings.setdefault(name, _Finding())
                reference = first if self.device.type != "cpu" else self._on_one_thread(operations[name])
                for detail in finding.compare(operations[name], reference, first, others):
                    kind = corrupt if detail["kind"] in ("corruption", "non_finite") else ordered
                    kind.add(step, operation=name, threads=threads, **detail)
        run.failures.extend(corrupt)  # what comes first is what the failure is called
        if config.order_of_sums == "fails":
            run.failures.extend(ordered)
        return run.result(
            threads=threads,
            corruptions=corrupt.count,
            operations_differing=sum(not finding.bitwise_equal for finding in findings.values()),
            operations={name: vars(finding) for name, finding in findings.items()},
        )

    def cleanup(self) -> None:
        threads, deterministic = self._found
        torch.set_num_threads(threads)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic)  # only then: it imports torch's compiler, in a second

    def operations(self, generator: torch.Generator) -> dict[str, Operation]:
        """What is compared: names and computations over inputs that ``generator`` gives.

        ATen splits a reduction over threads above 32768 elements (``GRAIN_SIZE``), so all sizes are well above that.
        There are several, because now and then two orders of addition round to the same number.
        """

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(self.device)

        operations: dict[str, Operation] = {}
        for size in (100_003, 300_007, 1_000_003):
            left, right = random(size), random(size)
            operations[f"sum_{size}"] = Operation(left.sum, size, math.sqrt(size))
            operations[f"mean_{size}"] = Operation(left.mean, size, 1 / math.sqrt(size))
            operations[f"dot_{size}"] = Operation(partial(torch.dot, left, right), size, math.sqrt(size))

        square = random(256, 256), random(256, 256)
        deep = random(17, 30_011), random(30_011, 13)
        operations["matmul_256x256x256"] = Operation(partial(torch.matmul, *square), 256)
        operations["matmul_17x30011x13"] = Operation(partial(torch.matmul, *deep), 30_011)

        # Every weight of the layer norm has a gradient that is a sum over all rows, of which each thread adds some.
        rows, hidden = random(4096, 64), 64
        weights = [random(64, hidden) / 8, 1 + random(hidden) / 8, random(hidden) / 8, random(hidden, 1) / 8]
        operations["mlp_backward"] = Operation(lambda: _gradients(weights, lambda w: _mlp_loss(rows, *w)), 4096 * 64)

        images, kernel = random(16, 8, 32, 32), random(16, 8, 3, 3)
        operations["conv_backward"] = Operation(
            lambda: _gradients([kernel], lambda w: functional.conv2d(images, w[0], padding=1).square().mean()),
            16 * 32 * 32 + 8 * 3 * 3,
        )

        # Few rows and many look-ups: on a GPU atomic additions to the same row arrive in any order.
        tokens = torch.randint(0, 7, (20_000,), generator=generator).to(self.device)
        table, cotangent = random(7, 16), random(20_000, 16)
        operations["embedding_backward"] = Operation(
            lambda: _gradients([table], lambda w: (functional.embedding(tokens, w[0]) * cotangent).sum()), 20_000
        )
        operations["index_add"] = Operation(lambda: torch.zeros_like(table).index_add_(0, tokens, cotangent), 20_000)
        return operations

    def _on_one_thread(self, operation: Operation) -> Tensor:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return operation.compute()
        finally:
            torch.set_num_threads(threads)


class _Round(torch.nn.Module):
    """The operations as modules, which collectors tell by their names."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, _Computation())

    def forward(self, operations: dict[str, Operation], repeat: int) -> dict[str, list[Tensor]]:
        return {name: [module(operations[name]) for _ in range(repeat)] for name, module in self.named_children()}


class _Computation(torch.nn.Module):
    def forward(self, operation: Operation) -> Tensor:
        return operation.compute()


@dataclass
class _Finding:
    bitwise_equal: bool = True
    repeats_equal: bool = True
    max_abs_diff: float = 0.0
    rounds_differing: int = 0
    bound_used: float = 0.0

    def compare(
        self, operation: Operation, reference: Tensor, first: Tensor, others: list[Tensor]
    ) -> list[dict[str, Any]]:
        """Note one round, and describe its failures."""
        details: list[dict[str, Any]] = []
        if not all(bool(result.isfinite().all()) for result in (first, *others)):
            details.append({"kind": "non_finite"})  # from finite inputs, and so wrong even if it repeats
        differing = [result for result in (first, *others) if not same_bits(result, reference)]
        if differing:
            bound = operation.bound(reference)
            compared = []
            for result in differing:
                difference = (result.double() - reference.double()).abs()
                used = float(torch.where(difference == 0, 0.0, difference / bound).max())
                compared.append((used, float(difference.max()), int((bits(result) != bits(reference)).sum())))
            used, worst, elements = max(compared, key=lambda each: math.inf if math.isnan(each[0]) else each[0])
            self.bitwise_equal = False
            self.rounds_differing += 1
            self.max_abs_diff = worst if not worst <= self.max_abs_diff else self.max_abs_diff
            self.bound_used = used if not used <= self.bound_used else self.bound_used
            details.append(
                {
                    "kind": "differs_from_reference" if used <= 1 else "corruption",
                    "max_abs_diff": worst,
                    "elements_differing": elements,
                    "elements": reference.numel(),
                    **({} if used <= 1 else {"times_the_bound": used}),
                }
            )
        if not all(same_bits(result, first) for result in others):
            self.repeats_equal = False
            details.append({"kind": "differs_between_repeats"})
        return details


def _gradients(weights: list[Tensor], loss: Callable[[list[Tensor]], Tensor]) -> Tensor:
    leaves = [weight.detach().clone().requires_grad_() for weight in weights]
    torch.autograd.backward(loss(leaves))
    return torch.cat([leaf.grad.flatten() for leaf in leaves if leaf.grad is not None])


def _mlp_loss(rows: Tensor, first: Tensor, scale: Tensor, shift: Tensor, last: Tensor) -> Tensor:
    hidden = functional.layer_norm(rows @ first, scale.shape, scale, shift)
    return (functional.gelu(hidden) @ last).square().mean()
