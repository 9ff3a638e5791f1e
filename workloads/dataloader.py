"""A DataLoader whose workers are killed: the loss is noticed, and the rest of the epoch is read, each sample once."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from pytest_aorta.trials.workload import WorkloadResult

from ._common import Soak, SoakConfig, StepLoop, pattern


class DataLoading(Soak):
    """One iteration is an epoch. A worker gets SIGKILL within it, and a new loader reads what is left.

    Samples are patterns of their index, compared bit by bit on the device. Each must come once, and no batch later than
    after ``patience``. Step times are those of epochs, in milliseconds.

    Metrics: ``samples``, ``killed`` (workers), ``noticed`` (losses that the loader has reported).
    """

    class Config(SoakConfig, frozen=True):
        workers: PositiveInt = Field(default=2, description="processes that read")
        samples: PositiveInt = Field(default=256, description="of an epoch")
        width: PositiveInt = Field(default=4096, description="words of 8 bytes of a sample")
        batch: PositiveInt = Field(default=8, description="samples of a batch")
        kill: bool = Field(default=True, description="kill a worker in each epoch")
        patience: PositiveFloat = Field(default=30.0, description="seconds for a batch")

    config: DataLoading.Config

    def run(self) -> WorkloadResult:
        config, run, killed, noticed = self.config, StepLoop(self, self.device), 0, 0
        for step in run.steps():
            seen: Counter[int] = Counter()
            with run.timed():
                kill_after = random.randrange(config.samples // config.batch) if config.kill else None
                while left := [index for index in range(config.samples) if not seen[index]]:
                    before = len(left)
                    try:
                        killed += self._read(run, step, left, seen, kill_after)
                    except (RuntimeError, OSError, EOFError) as error:  # torch's, or that of a batch it was sending
                        if kill_after is None or "timed out" in str(error):
                            run.failures.add(step, kind="loader_failed", error=str(error).partition("\n")[0])
                            break
                        killed, noticed = killed + 1, noticed + 1
                    kill_after = None
                    gc.collect()  # a loader that has ended in an error would be closed in the workers of the next one
                    if before == sum(not seen[index] for index in left):
                        break  # the next one would stop at the same place
            if wrong := {index: seen[index] for index in range(config.samples) if seen[index] != 1}:
                run.failures.add(step, kind="not_once", samples=len(wrong), first=min(wrong))
        return run.result(samples=config.samples, killed=killed, noticed=noticed)

    def _read(self, run: StepLoop, step: int, left: Sequence[int], seen: Counter[int], kill_after: int | None) -> int:
        """Read samples; kill a worker after so many batches, and return how many the loader has not noticed."""
        config = self.config
        loader = DataLoader(
            Subset(_Patterns(config.samples, config.width), left),
            config.batch,
            num_workers=config.workers,
            timeout=config.patience,
            pin_memory=self.device.type == "cuda",
        )
        batches = iter(loader)
        killed = 0
        for number, (indexes, words) in enumerate(batches):
            there = words.to(self.device)
            for index, sample in zip(indexes.tolist(), there, strict=True):
                seen[index] += 1
                if not torch.equal(sample, pattern("noise", index, 0, config.width, self.device)):
                    run.failures.add(step, kind="wrong_sample", sample=index)
            if number == kill_after:
                worker = batches._workers[number % config.workers]  # type: ignore[attr-defined]
                os.kill(worker.pid, signal.SIGKILL)
                worker.join()  # torch's handler of SIGCHLD raises here, and not in the midst of what follows
                killed = 1
        return killed


class _Patterns(Dataset[tuple[int, Tensor]]):
    def __init__(self, samples: int, width: int) -> None:
        self._samples, self._width = samples, width

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return index, pattern("noise", index, 0, self._width)
