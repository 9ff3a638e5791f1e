"""All-to-all beside a product on another stream: every word and checksum that ranks exchange, for as long as asked."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.distributed as dist
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from pytest_aorta.trials.workload import LaunchMode, WorkloadResult

from ._common import (
    Soak,
    SoakConfig,
    StepLoop,
    checksum,
    choose_device,
    free_memory,
    join_process_group,
    leave_process_group,
    pattern,
)


class AllToAll(Soak):
    """Every rank sends another pattern to every rank, while it multiplies matrices.

    What arrives is compared word by word with what its sender should have made; an all-reduce of sums tells a rank that
    has made something else from one that has received something else. The product must have the same bits with and
    without the exchange beside it. Step times are those of exchange and product together, in milliseconds.

    Metrics: ``world_size``, ``backend``, ``device``, ``words`` (of 8 bytes, to each rank), ``bytes_received``.
    """

    class Config(SoakConfig, frozen=True):
        words: PositiveInt = Field(default=2**17, description="words of 8 bytes for each rank, without memory")
        memory: float = Field(default=0.0, ge=0, le=0.8, description="share of the device's free memory")
        size: PositiveInt = Field(default=256, description="rows and columns of the matrices")
        collective_timeout_sec: PositiveFloat = Field(default=60.0, description="seconds that a collective may take")

    config: AllToAll.Config
    launch_mode: ClassVar[LaunchMode] = "distributed"
    min_world_size: ClassVar[int] = 2
    timeout_sec: ClassVar[float | None] = 300.0

    def setup(self) -> None:
        self.device = choose_device(self.config.device)
        self.ranks = join_process_group(self.device, self.config.collective_timeout_sec)

    def run(self) -> WorkloadResult:
        config, (rank, world) = self.config, (self.ranks.rank, self.ranks.world_size)
        generator = torch.Generator().manual_seed(rank)
        left, right = (torch.randn(config.size, config.size, generator=generator).to(self.device) for _ in range(2))
        alone = checksum(left @ right)
        words = config.words
        if config.memory:
            words = max(1, self._smallest(int(config.memory * free_memory(self.device)) // (16 * world)))
        run = StepLoop(self, self.device)
        for step, watch in run.steps(lambda mine: bool(self._smallest(int(mine)))):

            def sent(source: int, destination: int, step: int = step) -> Tensor:
                return pattern("noise", step, (source * world + destination) * words, words, self.device)

            outgoing = torch.cat([sent(rank, destination) for destination in range(world)])
            incoming = torch.zeros_like(outgoing)
            with watch.running():
                exchange = dist.all_to_all_single(incoming, outgoing, async_op=True)
                beside = left @ right
                exchange.wait()
            if checksum(beside) != alone:
                run.failures.add(step, kind="wrong_product", rank=rank)
            for source, piece in enumerate(torch.split(incoming, words)):
                expected = sent(source, rank)
                if not torch.equal(piece, expected):
                    wrong = int((piece != expected).sum())
                    run.failures.add(step, kind="wrong_words", rank=rank, source=source, wrong_words=wrong)
            # Over all ranks, what was sent and what has arrived add up to the same, modulo 2**64.
            difference = outgoing.sum() - incoming.sum()
            dist.all_reduce(difference)
            if int(difference) != 0 and rank == 0:
                run.failures.add(step, kind="checksums_differ", rank=rank)
        run.failures = self.ranks.share(max(len(run.step_times) - 1, 0), run.failures)
        return run.result(
            world_size=world,
            backend=self.ranks.backend,
            device=str(self.device),
            words=words,
            bytes_received=8 * words * world * len(run.step_times),
        )

    def cleanup(self) -> None:
        leave_process_group()

    def _smallest(self, own: int) -> int:
        """Of the numbers of all ranks."""
        number = torch.tensor([own], device=self.device)
        dist.all_reduce(number, dist.ReduceOp.MIN)
        return int(number)
