"""All-to-all beside products on other streams: every word and checksum that ranks exchange, for as long as asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from pydantic import Field, PositiveInt
from torch import Tensor

from pytest_aorta.trials.workload import WorkloadResult

from ._common import RankedSoak, RankedSoakConfig, StepLoop, checksum, free_memory, pattern


class AllToAll(RankedSoak):
    """Every rank sends another pattern to every rank, while it multiplies matrices.

    What arrives is compared word by word with what its sender should have made; an all-reduce of sums tells a rank that
    has made something else from one that has received something else. The products must have the same bits with and
    without the exchange beside them: they are of small whole numbers, so that each order of additions is exact. Step
    times are those of exchange and products together, in milliseconds.

    Metrics: ``world_size``, ``backend``, ``device``, ``words`` (of 8 bytes, to each rank), ``bytes_received``.
    """

    class Config(RankedSoakConfig, frozen=True):
        words: PositiveInt = Field(default=2**17, description="words of 8 bytes for each rank, without memory")
        memory: float = Field(default=0.0, ge=0, le=0.8, description="share of the device's free memory")
        size: PositiveInt = Field(default=256, description="rows and columns of the matrices")
        streams: PositiveInt = Field(default=2, description="products at a time, each on a stream or thread of its own")

    config: AllToAll.Config

    def run(self) -> WorkloadResult:
        config, (rank, world) = self.config, (self.ranks.rank, self.ranks.world_size)
        generator = torch.Generator().manual_seed(rank)
        shape = (2, config.size, config.size)
        left, right = torch.randint(-8, 9, shape, generator=generator).float().to(self.device)
        alone = checksum(left @ right)
        words = config.words
        if config.memory:
            own = int(config.memory * free_memory(self.device)) // (16 * world)
            least = torch.tensor([own], device=self.device)
            dist.all_reduce(least, dist.ReduceOp.MIN)
            words = max(1, int(least))
        run = StepLoop(self, self.device)
        for step in run.steps(self.together):

            def sent(source: int, destination: int, step: int = step) -> Tensor:
                return pattern("noise", step, (source * world + destination) * words, words, self.device)

            outgoing = torch.cat([sent(rank, destination) for destination in range(world)])
            incoming = torch.zeros_like(outgoing)
            with run.timed():
                exchange = dist.all_to_all_single(incoming, outgoing, async_op=True)
                beside = self.products(left, right)
                exchange.wait()
            for stream, product in enumerate(beside):
                if checksum(product) != alone:
                    run.failures.add(step, kind="wrong_product", rank=rank, stream=stream)
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
        received = 8 * words * world * len(run.step_times)
        return self.result_of_all(run, words=words, bytes_received=received)

    def products(self, left: Tensor, right: Tensor) -> list[Tensor]:
        """The product, computed on each stream, or by each thread, at a time."""
        if self.device.type != "cuda":
            with ThreadPoolExecutor(self.config.streams) as pool:
                return list(pool.map(torch.matmul, [left] * self.config.streams, [right] * self.config.streams))
        now, results = torch.cuda.current_stream(self.device), []
        streams = [torch.cuda.Stream(self.device) for _ in range(self.config.streams)]  # type: ignore[no-untyped-call]
        for stream in streams:
            stream.wait_stream(now)
            with torch.cuda.stream(stream):
                results.append(left @ right)
        for stream in streams:
            now.wait_stream(stream)
        return results
