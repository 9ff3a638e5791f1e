"""Sharded training of a small language model with FSDP2, checked from the first loss to the last weight."""

from __future__ import annotations

import hashlib
import math
import sysconfig
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch._dynamo  # fully_shard and the optimizer import it: half a second once here, or in every trial's setup()
import torch.distributed as dist
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

from pytest_aorta.trials.workload import WorkloadResult

from ._common import Failures, RankedSoak, RankedSoakConfig, StepLoop, checksum

VOCABULARY = 256
"""The model reads and predicts bytes."""


class Fsdp(RankedSoak):
    """FSDP2 training of a byte-level transformer on the sources of the Python standard library.

    Every block and the whole model are sharded with ``fully_shard`` over all ranks; gloo on CPUs, nccl (RCCL on
    ROCm) on GPUs. It passes when

    - the loss is finite at every step, and the mean of its last quarter is below that of its first quarter by
      ``min_loss_drop``;
    - the norm of the gradient is finite at every step;
    - all ranks gather the same weights in the end, bit for bit.

    All ranks return the failures of all ranks. One iteration is one optimizer step. Step times are in milliseconds
    and cover forward, backward and update; ``elapsed_sec`` the check of the weights as well.

    Metrics: ``losses`` (nats per byte, mean over all ranks, one per step), ``loss_first``, ``loss_last``,
    ``grad_norm_max`` (2-norm before it is limited), ``weights_checksum``, ``tokens_per_sec`` (bytes per
    second over all ranks), ``parameters``, ``world_size``, ``backend``, ``device``, ``corpus_sha256`` (it depends on
    the version of Python, and losses can be compared only where it is the same).
    """

    class Config(RankedSoakConfig, frozen=True):
        steps: int = Field(default=20, ge=2, description="optimizer steps; at least two, since the loss has to fall")
        batch_size: PositiveInt = Field(default=4, description="sequences per rank and step")
        sequence_length: PositiveInt = Field(default=64, description="bytes that are predicted per sequence")
        dim: PositiveInt = Field(default=64, description="width of the model, a multiple of heads")
        layers: PositiveInt = Field(default=2, description="transformer blocks, each of them sharded as a unit")
        heads: PositiveInt = Field(default=4, description="attention heads")
        learning_rate: float = Field(default=3e-3, ge=0, description="of AdamW, constant")
        max_grad_norm: PositiveFloat = Field(default=1.0, description="largest 2-norm of the gradient")
        min_loss_drop: float = Field(default=0.05, ge=0, description="nats per byte by which the loss has to fall")
        corpus_bytes: PositiveInt = Field(default=262_144, description="bytes of source text to train on, at most")
        seed: int = Field(default=0, description="seed of the weights and of the choice of sequences")

        @model_validator(mode="after")
        def _check(self) -> Fsdp.Config:
            if self.dim % self.heads:
                raise ValueError(f"dim={self.dim} is not a multiple of heads={self.heads}")
            if self.corpus_bytes <= self.sequence_length:
                raise ValueError(
                    f"corpus_bytes={self.corpus_bytes} is too short: a sequence takes sequence_length + 1 = "
                    f"{self.sequence_length + 1} bytes"
                )
            return self

    config: Fsdp.Config

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.corpus = read_corpus(config.corpus_bytes)
        self.model = build_model(config).to(self.device)
        mesh = init_device_mesh(self.device.type, (self.ranks.world_size,))
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        # After sharding: the optimizer is to hold the shards, not the whole weights.
        self.optimizer = build_optimizer(self.model, config)

    def run(self) -> WorkloadResult:
        config, ranks = self.config, self.ranks
        run = StepLoop(self, self.device)
        failures = run.failures
        losses: list[float] = []
        grad_norms: list[float] = []
        generator = torch.Generator().manual_seed(config.seed)
        mine = slice(ranks.rank * config.batch_size, (ranks.rank + 1) * config.batch_size)
        for step in run.steps(self.together):
            sequences = draw_batch(self.corpus, config, ranks.world_size, generator)[mine].to(self.device)
            with run.timed():
                loss = self._loss(sequences)
                torch.autograd.backward(loss)
                grad_norm = update(self.model, self.optimizer, config)
            own_loss = loss.item()
            total = loss.detach().clone()
            dist.all_reduce(total)
            losses.append(total.item() / ranks.world_size)
            grad_norms.append(grad_norm)
            # A rank is named by a loss of its own: a NaN came from there. The run goes on: the others would wait for a
            # rank that stops at a NaN that they do not have.
            if not math.isfinite(own_loss):
                failures.add(step, kind="non_finite_loss", rank=ranks.rank, rank_loss=own_loss, mean_loss=losses[-1])
            elif not math.isfinite(losses[-1]) and ranks.rank == 0:
                failures.add(step, kind="non_finite_mean_loss", mean_loss=losses[-1])
            if not math.isfinite(grad_norm) and ranks.rank == 0:
                failures.add(step, kind="non_finite_gradient", grad_norm=grad_norm)
        self._check_loss_falls(losses, failures)
        weights_checksum = self._check_weights_agree(len(losses) - 1, failures)
        tokens = len(losses) * ranks.world_size * config.batch_size * config.sequence_length
        return self.result_of_all(
            run,
            losses=losses,
            loss_first=losses[0],
            loss_last=losses[-1],
            grad_norm_max=float(torch.tensor(grad_norms).max()),  # NaN if one is, unlike max()
            weights_checksum=weights_checksum,
            tokens_per_sec=tokens / (sum(run.step_times) / 1e3),
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            corpus_sha256=hashlib.sha256(bytes(self.corpus.tolist())).hexdigest(),
        )

    def _loss(self, sequences: Tensor) -> Tensor:
        return next_byte_loss(self.model, sequences)

    def _full_weights(self) -> dict[str, Tensor]:
        return {name: _whole(weight.detach()).cpu() for name, weight in self.model.named_parameters()}

    def _check_loss_falls(self, losses: list[float], failures: Failures) -> None:
        quarter = max(1, len(losses) // 4)
        first, last = fmean(losses[:quarter]), fmean(losses[-quarter:])
        if not first - last >= self.config.min_loss_drop:  # so written that NaN fails
            means = {"first_quarter": first, "last_quarter": last, "min_loss_drop": self.config.min_loss_drop}
            failures.add(len(losses) - 1, kind="loss_not_falling", rank=self.ranks.rank, **means)

    def _check_weights_agree(self, step: int, failures: Failures) -> str:
        """Compare the weights that the ranks have gathered; returns their checksum on this rank."""
        mine = checksum(torch.cat([weight.flatten() for weight in self._full_weights().values()]))
        self.ranks.store.set(f"weights/{self.ranks.rank}", mine)
        of_rank_0 = self.ranks.store.get("weights/0").decode()
        if mine != of_rank_0:
            sums = {"checksum": mine, "checksum_rank_0": of_rank_0}
            failures.add(step, kind="weights_disagree", rank=self.ranks.rank, **sums)
        return mine


class ByteTransformer(nn.Module):
    """A causal pre-norm transformer: bytes ``[batch, length]`` -> logits of the next byte ``[batch * length, 256]``."""

    def __init__(self, config: Fsdp.Config) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, config.dim)
        self.positions = nn.Embedding(config.sequence_length, config.dim)
        kind: dict[str, Any] = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        shape = config.dim, config.heads, 4 * config.dim
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(*shape, **kind) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, VOCABULARY)

    def forward(self, sequences: Tensor) -> Tensor:
        hidden = self.bytes(sequences) + self.positions.weight
        mask = nn.Transformer.generate_square_subsequent_mask(sequences.shape[1], device=sequences.device)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        # Flattened first: the head would return a view of three-dimensional logits, of which FSDP2 warns.
        logits: Tensor = self.head(self.norm(hidden).flatten(0, 1))
        return logits


def read_corpus(limit: int) -> Tensor:
    """The first ``limit`` bytes of the standard library's sources, in the order of their names: uint8 ``[<= limit]``.

    Raises:
        FileNotFoundError: this Python comes without its sources.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    if not text:
        raise FileNotFoundError(f"no .py files in {folder}, the standard library of this Python, to train on")
    return torch.frombuffer(text, dtype=torch.uint8)[:limit].clone()


def build_model(config: Fsdp.Config) -> ByteTransformer:
    """The model with its initial weights, on the CPU: the same for the same seed on every rank and device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return ByteTransformer(config)


def build_optimizer(model: nn.Module, config: Fsdp.Config) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=config.learning_rate)


def draw_batch(corpus: Tensor, config: Fsdp.Config, world_size: int, generator: torch.Generator) -> Tensor:
    """The sequences of one step for all ranks, rank 0 first: int64 ``[world_size * batch, sequence_length + 1]``."""
    count = world_size * config.batch_size
    starts = torch.randint(0, len(corpus) - config.sequence_length, (count, 1), generator=generator)
    return corpus[starts + torch.arange(config.sequence_length + 1)].long()


def next_byte_loss(model: nn.Module, sequences: Tensor) -> Tensor:
    """Mean cross-entropy of the prediction of every next byte, in nats; ``sequences`` is ``[batch, length + 1]``."""
    return functional.cross_entropy(model(sequences[:, :-1]), sequences[:, 1:].flatten())


def update(model: nn.Module, optimizer: torch.optim.Optimizer, config: Fsdp.Config) -> float:
    """Limit the gradient, step, clear the gradient; returns the gradient's 2-norm over all ranks before the limit."""
    grad_norm = _whole(nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm))
    optimizer.step()
    optimizer.zero_grad()
    return grad_norm.item()


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
