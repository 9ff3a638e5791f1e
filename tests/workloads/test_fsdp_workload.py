from __future__ import annotations

import math
from datetime import timedelta

import pytest
import torch
from aorta_workloads._common import Failures, Ranks
from aorta_workloads.fsdp import Fsdp, build_model, build_optimizer, draw_batch, next_byte_loss, read_corpus, update
from rank_processes import drive_on_ranks, run_on_ranks
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, says its documentation

SMALL = {"steps": 4, "batch_size": 8, "sequence_length": 32, "dim": 16, "heads": 2, "layers": 1}


def test_default_run_learns_and_reports_the_same_on_every_rank() -> None:
    first, second = drive_on_ranks(Fsdp)

    for driven in (first, second):
        driven.assert_passed(steps=20)
        assert driven.result.main_work_started
    metrics = first.result.metrics
    assert metrics["losses"][0] == metrics["loss_first"] == pytest.approx(math.log(256), abs=0.7)
    assert metrics["losses"][-1] == metrics["loss_last"] < metrics["loss_first"] - 1
    assert metrics["backend"] == "gloo"
    assert metrics["world_size"] == 2
    for name in ("losses", "weights_checksum", "grad_norm_max", "corpus_sha256", "parameters"):
        assert metrics[name] == second.result.metrics[name]


def unsharded_losses(options: dict[str, int], world_size: int) -> list[float]:
    """The same training in one process: whole weights, and the batches of all ranks in one."""
    config = Fsdp.Config.model_validate({"device": "cpu", **options})
    model = build_model(config)
    optimizer = build_optimizer(model, config)
    corpus = read_corpus(config.corpus_bytes)
    generator = torch.Generator().manual_seed(config.seed)
    losses = []
    for _ in range(config.steps):
        loss = next_byte_loss(model, draw_batch(corpus, config, world_size, generator))
        torch.autograd.backward(loss)
        update(model, optimizer, config)
        losses.append(loss.item())
    return losses


def test_sharded_training_has_the_losses_of_unsharded_training() -> None:
    world_size = 3
    options = {"steps": 6, "dim": 20, "layers": 2}  # 20 rows on 3 ranks: shards of different sizes

    sharded = drive_on_ranks(Fsdp, world_size, **options)
    (whole,) = run_on_ranks(unsharded_losses, options, world_size, world_size=1)

    assert sharded[0].result.passed, sharded[0].result.failure_details
    # AdamW divides by the root of the squared gradient, which magnifies the rounding of a small one.
    assert sharded[0].result.metrics["losses"] == pytest.approx(whole, rel=1e-5)


class OneBitOff(Fsdp):
    """Rank 1 gathers one weight of which the last bit is wrong."""

    def _full_weights(self) -> dict[str, Tensor]:
        weights = super()._full_weights()
        if self.ranks.rank == 1:
            weights["head.weight"].view(torch.int32)[0, 0] ^= 1
        return weights


def test_one_wrong_bit_in_the_weights_of_one_rank_fails_on_all_ranks() -> None:
    first, second = drive_on_ranks(OneBitOff, **SMALL)

    assert not first.result.passed
    (failure,) = first.result.failure_details
    assert (failure["kind"], failure["rank"]) == ("weights_disagree", 1)
    assert failure["checksum"] == second.result.metrics["weights_checksum"]
    assert failure["checksum_rank_0"] == first.result.metrics["weights_checksum"] != failure["checksum"]
    assert second.result.failure_details == first.result.failure_details


class NanOnOneRank(Fsdp):
    """Rank 1 computes a loss that is not a number, once, at step 2."""

    steps_done = 0

    def _loss(self, sequences: Tensor) -> Tensor:
        self.steps_done += 1
        loss = super()._loss(sequences)
        return loss * math.nan if self.ranks.rank == 1 and self.steps_done == 3 else loss


def test_nan_loss_fails_and_names_the_rank_and_the_step_that_it_came_from() -> None:
    results = [driven.result for driven in drive_on_ranks(NanOnOneRank, **SMALL)]

    for result in results:
        assert not result.passed
        assert result.first_failure_iteration == 2
        own = {
            failure["rank"]: failure["rank_loss"]
            for failure in result.failure_details
            if failure["kind"] == "non_finite_loss" and failure["iteration"] == 2
        }
        assert list(own) == [1]
        assert math.isnan(own[1])
        assert any(failure["kind"] == "non_finite_gradient" for failure in result.failure_details)
        assert math.isnan(result.metrics["grad_norm_max"])
        assert result.executed_iterations == 4


def test_model_that_does_not_learn_fails() -> None:
    result = drive_on_ranks(Fsdp, learning_rate=0, **SMALL)[0].result

    assert not result.passed
    assert {failure["kind"] for failure in result.failure_details} == {"loss_not_falling"}
    assert result.failure_details[0]["min_loss_drop"] == 0.05


def test_corpus_is_the_text_of_the_standard_library_and_the_same_every_time() -> None:
    corpus = read_corpus(100_000)

    assert (corpus.dtype, corpus.shape) == (torch.uint8, (100_000,))
    assert torch.equal(corpus, read_corpus(100_000))
    assert b"import " in bytes(corpus.tolist())


def test_rank_that_does_not_answer_is_a_failure_of_those_that_do() -> None:
    store = HashStore()
    store.set_timeout(timedelta(milliseconds=50))
    own = Failures()
    own.add(3, kind="own")

    shared = Ranks(rank=0, world_size=2, backend="gloo", store=store).share(5, own)

    assert [(failure["kind"], failure.get("rank")) for failure in shared.details] == [("own", None), ("rank_lost", 1)]
    assert (shared.count, shared.first_iteration) == (2, 3)
