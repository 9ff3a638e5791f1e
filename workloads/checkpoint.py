"""Checkpoints of a writer that is killed with SIGKILL: what is loaded is whole, of a known step, and has its bits."""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from pytest_aorta.trials.workload import WorkloadResult

from ._common import Soak, SoakConfig, StepLoop, checksum, pattern

#: Tensors of a checkpoint.
_TENSORS = 4


class Checkpoint(Soak):
    """Saves in a process of its own, as training loops do: into a temporary file, synchronised, then renamed.

    In each step but every third one the writer gets SIGKILL at a random moment. Then the checkpoint is loaded onto the
    device. It must be that of this step or of the last one whose writer has ended well, and its tensors have the
    checksums that were saved with them, and those of the pattern that they were made from. Step times are those of
    saving and loading, in milliseconds.

    Metrics: ``killed`` (writers), ``torn`` (temporary files that they have left), ``loaded``, ``megabytes``.
    """

    class Config(SoakConfig, frozen=True):
        steps: PositiveInt = Field(default=6, description="checkpoints at least")
        megabytes: PositiveInt = Field(default=16, description="size of a checkpoint")
        folder: str = Field(default="", description="where checkpoints are written; the trial's TMPDIR if empty")

    config: Checkpoint.Config

    def setup(self) -> None:
        super().setup()
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # no pool of threads, so that a writer can be forked
        self._folder = tempfile.TemporaryDirectory(prefix="aorta-checkpoint-", dir=self.config.folder or None)
        self.file = Path(self._folder.name) / "checkpoint.pt"

    def run(self) -> WorkloadResult:
        run = StepLoop(self, self.device)
        killed = torn = loaded = 0
        confirmed, takes = -1, 0.1
        for step in run.steps():
            state = {f"tensor_{number}": self._tensor(step, number) for number in range(_TENSORS)}
            state_with_sums = {"step": step, "checksums": {name: checksum(it) for name, it in state.items()}, **state}
            with run.timed():
                writer = multiprocessing.get_context("fork").Process(target=self.save, args=(state_with_sums,))
                started = time.perf_counter()
                writer.start()
                if step % 3:
                    writer.join(random.random() * takes)
                    writer.kill()
                writer.join()
                if writer.exitcode == 0:
                    confirmed, takes = step, time.perf_counter() - started
                found = self._load()
            killed += writer.exitcode == -9
            torn += self.file.with_suffix(".tmp").exists()
            if writer.exitcode not in (0, -9):
                run.failures.add(step, kind="cannot_save", exit_code=writer.exitcode)
            if isinstance(found, str):
                if confirmed >= 0 or not found.startswith("FileNotFoundError"):
                    run.failures.add(step, kind="cannot_load", error=found)
                continue
            loaded += 1
            confirmed = self._check(run, step, found, confirmed)
        return run.result(killed=killed, torn=torn, loaded=loaded, megabytes=self.config.megabytes)

    def cleanup(self) -> None:
        torch.set_num_threads(self._threads)
        self._folder.cleanup()

    def save(self, state: dict[str, Any]) -> None:
        temporary = self.file.with_suffix(".tmp")
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.file)

    def _tensor(self, step: int, number: int) -> Tensor:
        words = self.config.megabytes * 2**20 // 8 // _TENSORS
        return pattern("noise", step, number * words, words)

    def _load(self) -> dict[str, Any] | str:
        try:
            state: dict[str, Any] = torch.load(self.file, map_location=self.device, weights_only=True)
        except Exception as error:  # of whatever type: it is torn, or not there
            return f"{type(error).__name__}: {error}"
        return state

    def _check(self, run: StepLoop, step: int, found: dict[str, Any], confirmed: int) -> int:
        """Note what is wrong with a checkpoint; the step that it is of."""
        if found["step"] not in (confirmed, step):
            run.failures.add(step, kind="wrong_step", found=found["step"], expected=[confirmed, step])
        for number, (name, saved) in enumerate(found["checksums"].items()):
            made, read = checksum(self._tensor(found["step"], number)), checksum(found[name])
            if not made == saved == read:
                sums = {"made": made, "saved": saved, "loaded": read}
                run.failures.add(step, kind="wrong_checksum", tensor=name, **sums)
        return int(found["step"])
