"""Training that is replayed from a saved state: the same losses and weights, bit by bit."""

from __future__ import annotations

import copy

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from pytest_aorta.trials.workload import WorkloadResult

from ._common import Soak, SoakConfig, StepLoop, checksum
from .fsdp import Fsdp, build_model, build_optimizer, draw_batch, next_byte_loss, read_corpus, update


class Replay(Soak):
    """The transformer of ``fsdp`` on one device: each step trains, goes back, and trains again on the same data.

    Weights, the optimizer's state and the generator are saved before and restored. On a GPU, algorithms whose sums have
    no order are what it finds; ``mitigations`` and ``deterministic_algorithms`` take them away. Step times are those of
    both trainings, in milliseconds. Metrics: ``losses`` (the last of each step, nats per byte), ``checksum``.
    """

    class Config(SoakConfig, frozen=True):
        length: PositiveInt = Field(default=4, description="optimizer steps that are replayed")
        batch_size: PositiveInt = Field(default=4, description="sequences of a step")
        dim: PositiveInt = Field(default=64, description="width of the model, a multiple of 4")
        layers: PositiveInt = Field(default=2, description="transformer blocks")
        seed: int = Field(default=0, description="seed of the weights and of the choice of sequences")

    config: Replay.Config

    def setup(self) -> None:
        super().setup()
        config = self.config
        shape = config.model_dump(include={"batch_size", "dim", "layers", "seed"})
        self.training = Fsdp.Config(device=config.device, **shape)
        self.corpus = read_corpus(self.training.corpus_bytes)
        self.model = build_model(self.training).to(self.device)
        self.optimizer = build_optimizer(self.model, self.training)

    def run(self) -> WorkloadResult:
        config, run, last = self.config, StepLoop(self, self.device), []
        generator = torch.Generator().manual_seed(config.seed)
        sums: list[str] = []
        for step in run.steps():
            batches = [
                draw_batch(self.corpus, self.training, 1, generator).to(self.device) for _ in range(config.length)
            ]
            before = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
            with run.timed():
                losses, sums = self.train(batches)
                self.model.load_state_dict(before[0])
                self.optimizer.load_state_dict(before[1])
                again, sums_again = self.train(batches)
            for number, (one, other) in enumerate(zip(losses, again, strict=True)):
                if one != other:  # bits would tell no more: a loss that is not finite has failed already
                    run.failures.add(step, kind="other_loss", training_step=number, first=one, replayed=other)
                    break
            if sums != sums_again:
                names = [name for name, _ in self.model.named_parameters()]
                differing = [name for name, one, other in zip(names, sums, sums_again, strict=True) if one != other]
                run.failures.add(step, kind="other_weights", parameters=len(differing), first_parameter=differing[0])
            last.append(losses[-1])
        return run.result(losses=last, checksum="".join(sums)[:16])

    def train(self, batches: list[Tensor]) -> tuple[list[float], list[str]]:
        """Losses of the steps, and checksums of the parameters behind them."""
        losses = []
        for batch in batches:
            loss = next_byte_loss(self.model, batch)
            torch.autograd.backward(loss)
            update(self.model, self.optimizer, self.training)
            losses.append(loss.item())
        return losses, [checksum(parameter) for parameter in self.model.parameters()]
