"""Operations in memory that held something else before: a result that depends on it has read what nothing wrote."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from pytest_aorta.trials.workload import WorkloadResult

from ._common import StepLoop, bits, same_bits
from .determinism import Determinism

#: What memory holds: each byte of it. 0xFF is NaN in each type of floating point, 0x55 a number.
_BYTES = (0x00, 0xFF, 0x55, 0x7B)


class Workspace(Determinism):
    """The operations of ``determinism``, after memory was filled with other bytes, and given back to the allocator.

    Blocks of all sizes up to ``megabytes`` are filled, so that results, temporaries and workspaces of libraries come
    to lie in them. The first results are computed amid zeros; others must have the same bits, but where the order of
    sums alone differs (see ``determinism``), which the option ``order_of_sums`` judges.

    Metrics: ``operations``, ``repeats`` (results that were compared), ``reordered`` (other bits within the bound).
    """

    class Config(Determinism.Config, frozen=True):
        megabytes: PositiveInt = Field(default=64, description="largest block that is filled")
        order_of_sums: Literal["fails", "passes"] = Field(
            default="passes", description="what becomes of differences that another order of additions explains"
        )

    config: Workspace.Config

    def setup(self) -> None:
        super().setup()
        settings: Any = torch.utils.deterministic
        self._fills = settings.fill_uninitialized_memory
        settings.fill_uninitialized_memory = False  # it would hide what is looked for

    def cleanup(self) -> None:
        settings: Any = torch.utils.deterministic
        settings.fill_uninitialized_memory = self._fills
        super().cleanup()

    def run(self) -> WorkloadResult:
        run, compared, reordered = StepLoop(self, self.device), 0, 0
        for step in run.steps():
            operations = self.operations(torch.Generator().manual_seed(self.config.seed + step))
            first: dict[str, Tensor] = {}
            for byte in _BYTES:
                for name, operation in operations.items():
                    self.fill(byte)
                    with run.timed():
                        result = operation.compute()
                    reference = first.setdefault(name, result)
                    compared += 1
                    if same_bits(result, reference):
                        continue
                    difference = (result.double() - reference.double()).abs()
                    is_order = bool((difference <= operation.bound(reference)).all())
                    reordered += is_order
                    if not is_order or self.config.order_of_sums == "fails":
                        kind = "differs_from_first" if is_order else "reads_what_nothing_wrote"
                        number = int((bits(result) != bits(reference)).sum())
                        run.failures.add(
                            step, kind=kind, operation=name, memory=f"{byte:#04x}", elements_differing=number
                        )
        return run.result(operations=len(operations), repeats=compared, reordered=reordered)

    def fill(self, byte: int) -> None:
        """Fill blocks of each size, and free them: the allocator hands them out again."""
        sizes = [2**power for power in range(9, 20)] + [self.config.megabytes * 2**20]
        blocks = [torch.full((size,), byte, dtype=torch.uint8, device=self.device) for size in sizes for _ in range(4)]
        del blocks
