"""attention, copies, alltoall, checkpoint, ... pass on a sound machine, and name each planted fault."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from aorta_workloads._common import PATTERNS, StepLoop, checksum, pattern
from aorta_workloads.allreduce import AllReduce
from aorta_workloads.alltoall import AllToAll
from aorta_workloads.attention import Attention
from aorta_workloads.checkpoint import Checkpoint
from aorta_workloads.copies import Copies
from aorta_workloads.dataloader import DataLoading, _Patterns
from aorta_workloads.determinism import Operation
from aorta_workloads.fsdp import Fsdp
from aorta_workloads.overflow import Overflow
from aorta_workloads.replay import Replay
from aorta_workloads.workspace import Workspace
from rank_processes import Driven, drive, drive_on_ranks, run_on_ranks
from torch import Tensor

if TYPE_CHECKING:
    from pytest_aorta.trials.workload import Workload, WorkloadResult

SMALL: dict[type[Workload], dict[str, Any]] = {
    Attention: {"steps": 2, "dtypes": ("float32", "bfloat16"), "length": 48, "width": 16},
    Copies: {"steps": 2, "megabytes": 1},
    Checkpoint: {"steps": 6, "megabytes": 4},
    DataLoading: {"steps": 2, "samples": 48, "width": 256},
    Overflow: {"steps": 2},
    Replay: {"steps": 2, "length": 2, "dim": 16, "layers": 1},
}


def run(workload_class: type[Workload], **options: Any) -> WorkloadResult:
    base = next(each for each in SMALL if issubclass(workload_class, each))
    return drive(workload_class, {"device": "cpu", **SMALL[base], **options}).result


@pytest.mark.parametrize("workload_class", SMALL)
def test_passes_on_a_sound_machine_and_reports_its_steps(workload_class: type[Workload]) -> None:
    options = SMALL[workload_class]
    drive(workload_class, {"device": "cpu", **options}).assert_passed(steps=options["steps"])


def test_goes_on_for_its_duration_and_its_deadline_grows_with_it() -> None:
    result = run(Copies, steps=1, duration=0.5)

    assert result.passed
    assert result.elapsed_sec >= 0.5  # however many steps fit into it
    assert result.executed_iterations == result.configured_iterations == len(result.step_times_ms)
    config = Copies.Config(duration=1000)
    assert Copies.aorta_description(config) == {"timeout_sec": 1300}


# Patterns and checksums


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_is_the_same_in_pieces(name: str) -> None:
    whole = pattern(name, 3, 0, 1000)

    assert torch.equal(torch.cat([pattern(name, 3, start, 250) for start in range(0, 1000, 250)]), whole)
    if name not in ("zeros", "ones"):
        assert not torch.equal(pattern(name, 4, 0, 1000), whole)


def test_checksum_sees_one_bit_the_order_and_the_length() -> None:
    numbers = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    flipped = numbers.clone()
    flipped.view(torch.int16)[7777] ^= 1

    sums = [checksum(each) for each in (numbers, flipped, numbers.flip(0), numbers[:-1], numbers[:-2])]

    assert len(set(sums)) == 5
    assert checksum(numbers.clone()) == sums[0]
    assert checksum(numbers.view(100, 100).mT) != sums[0]


# Copies


class Forgets(Copies):
    """A cell of memory that loses a bit after it was written and read."""

    def _through_others(self, run: StepLoop, step: int, held: tuple[str, int]) -> int:
        copied = super()._through_others(run, step, held)
        if held[0] == "ones" and step == 1:
            self.buffers[0][70_000] ^= 1 << 33
        return copied


def test_memory_that_forgets_is_located_to_the_bit() -> None:
    (failure,) = run(Forgets).failure_details

    assert failure == {
        **{"iteration": 1, "kind": "wrong_copy", "copy": "kept", "pattern": "ones", "device": "cpu", "word": 70_000},
        **{"wrong_words": 1, "flipped_bits": f"{1 << 33:016x}"},
    }


# Attention


class OneGradient(Attention):
    """In the second step, a gradient has another last bit: too little for any tolerance."""

    calls = 0

    def _attend(self, name: str, given: Tensor, causal: bool) -> list[Tensor]:
        results = super()._attend(name, given, causal)
        self.calls += 1
        if self.calls == 10:  # 8 cases, of which the CPU has kernels for 8: math and flash, two types, two masks
            results[2].view(torch.int32)[0, 0, 0, 0] ^= 1
        return results


def test_one_bit_of_a_gradient_is_found_and_backends_without_a_kernel_are_listed() -> None:
    result = run(OneGradient, backends=("math", "flash", "cudnn"))

    (failure,) = result.failure_details
    assert failure.items() >= {"iteration": 1, "kind": "differs_from_first", "elements_differing": 1}.items()
    assert failure["result"] == "grad_key"
    assert {each["backend"] for each in result.metrics["unsupported"]} == {"cudnn"}
    assert {each["backend"] for each in result.metrics["cases"]} == {"math", "flash"}


class WrongSoftmax(Attention):
    def _attend(self, name: str, given: Tensor, causal: bool) -> list[Tensor]:
        return super()._attend(name, given * 1.01, causal)


def test_result_that_repeats_and_is_wrong_is_found() -> None:
    result = run(WrongSoftmax, backends=("math",), dtypes=("float32",), steps=1)

    assert {(each["kind"], each["result"]) for each in result.failure_details} >= {("wrong_attention", "output")}
    assert all(each["rel_error"] > each["tolerance"] for each in result.failure_details)


# Checkpoints


class SavesInPlace(Checkpoint):
    """Writes over the checkpoint that is there."""

    def save(self, state: dict[str, Any]) -> None:
        with self.file.open("wb") as file:
            time.sleep(0.2)  # most of the time that it takes: nearly every kill finds it empty
            torch.save(state, file)


@pytest.mark.slow
def test_writers_are_killed_and_checkpoints_that_are_written_in_place_are_torn() -> None:
    sound = run(Checkpoint, steps=12)
    assert sound.passed
    assert sound.metrics["loaded"] == 12

    torn = run(SavesInPlace, steps=12, megabytes=32)
    assert torn.metrics["killed"] > 0
    assert {failure["kind"] for failure in torn.failure_details} == {"cannot_load"}


class SavesOtherBits(Checkpoint):
    def save(self, state: dict[str, Any]) -> None:
        state["tensor_2"][5] ^= 1
        super().save(state)


def test_checkpoint_with_another_bit_is_found() -> None:
    failures = run(SavesOtherBits, steps=1).failure_details

    assert [(failure["kind"], failure["tensor"]) for failure in failures] == [("wrong_checksum", "tensor_2")]
    assert failures[0]["made"] == failures[0]["saved"] != failures[0]["loaded"]


# Workers of a DataLoader


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of loaders that end so
def test_lost_workers_are_noticed_and_every_sample_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # After each batch once: no loader misses the workers that are killed after its last ones.
    turns = iter(range(6))
    monkeypatch.setattr("aorta_workloads.dataloader.random", SimpleNamespace(randrange=lambda batches: next(turns)))
    result = run(DataLoading, steps=6)

    assert result.passed, result.failure_details
    assert result.metrics["killed"] == 6
    assert 0 < result.metrics["noticed"] <= 6


def test_wrong_sample_and_worker_that_dies_by_itself_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    get = _Patterns.__getitem__

    def wrong(self: _Patterns, index: int) -> tuple[int, Tensor]:
        words = get(self, index)[1]
        words[0] ^= index == 13
        return index, words

    monkeypatch.setattr(_Patterns, "__getitem__", wrong)
    result = run(DataLoading, steps=1, kill=False)
    assert result.failure_details == [{"iteration": 0, "kind": "wrong_sample", "sample": 13}]

    def dies(self: _Patterns, index: int) -> tuple[int, Tensor]:
        if index == 13:
            os._exit(1)
        return get(self, index)

    monkeypatch.setattr(_Patterns, "__getitem__", dies)
    result = run(DataLoading, steps=1, kill=False)
    assert [failure["kind"] for failure in result.failure_details] == ["loader_failed", "not_once"]


# Short types, memory that was not written, replays


class SumsInFloat16(Overflow):
    def operations(self, dtype: str) -> Any:
        made = super().operations(dtype)
        return {**made, "norm": (made["norm"][0], lambda x: x.square().sum(-1).sqrt())} if "norm" in made else made


def test_a_norm_whose_sum_is_in_a_short_type_overflows() -> None:
    failures = run(SumsInFloat16, steps=1).failure_details
    assert [(each["kind"], each["operation"], each["dtype"]) for each in failures] == [("overflow", "norm", "float16")]


class ReadsUnwritten(Workspace):
    """One operation is sound; one adds up, once in a thousand elements, what its allocator gave it."""

    def operations(self, generator: torch.Generator) -> dict[str, Operation]:
        values = torch.randn(2**12, generator=generator)

        def forgets() -> Tensor:
            result = torch.empty_like(values)
            result[:-4] = values[:-4]
            return result

        return {"sound": Operation(values.clone), "forgets": Operation(forgets)}


def test_what_nothing_has_written_is_found_by_what_was_there_before() -> None:
    result = drive(ReadsUnwritten, {"device": "cpu", "steps": 2, "megabytes": 1}).result
    assert {(each["kind"], each["operation"]) for each in result.failure_details} == {
        ("reads_what_nothing_wrote", "forgets")
    }
    assert {each["elements_differing"] for each in result.failure_details} == {4}
    assert (result.metrics["repeats"], result.metrics["reordered"]) == (16, 0)


@pytest.mark.slow
def test_the_operations_of_determinism_write_all_that_they_read() -> None:
    drive(Workspace, {"device": "cpu", "steps": 1, "megabytes": 1}).assert_passed(steps=1)


class DrawsAnew(Replay):
    """The second training of a step draws other noise: its generator was not restored."""

    def train(self, batches: list[Tensor]) -> Any:
        with torch.no_grad():
            self.model.head.bias.add_(torch.randn(self.model.head.bias.shape) * 1e-3)
        return super().train(batches)


def test_a_replay_with_other_random_numbers_is_told_from_the_first_loss_on() -> None:
    loss, weights = run(DrawsAnew, steps=1).failure_details
    assert (loss["kind"], loss["training_step"]) == ("other_loss", 0)
    assert (weights["kind"], weights["first_parameter"]) == ("other_weights", "bytes.weight")


# All-to-all

EXCHANGE = {"device": "cpu", "words": 1000, "size": 16}


@pytest.mark.slow
def test_ranks_exchange_words_and_end_together() -> None:
    first, second = drive_on_ranks(AllToAll, words=1000, size=16, duration=0.5)

    assert first.result.passed, first.result.failure_details
    assert first.progress == second.progress
    assert len(first.progress) > 2


@pytest.mark.slow
@pytest.mark.parametrize("workload_class", [AllReduce, Fsdp])
def test_ranks_go_on_together_for_a_duration(workload_class: type[Workload]) -> None:
    small = {"sizes": (5,), "dtypes": ("float32",)} if workload_class is AllReduce else {"steps": 2, "min_loss_drop": 0}
    first, second = drive_on_ranks(workload_class, duration=1.0, **small)
    assert first.result.passed, first.result.failure_details
    assert first.progress == second.progress
    assert first.result.elapsed_sec >= 1.0  # however many steps fit into it


class WrongBeside(AllToAll):
    def products(self, left: Tensor, right: Tensor) -> list[Tensor]:
        made = super().products(left, right)
        if self.ranks.rank == 1:
            made[1][0, 0] += 1
        return made


@pytest.mark.slow
def test_a_product_beside_an_exchange_is_named_with_its_rank_and_stream() -> None:
    for driven in drive_on_ranks(WrongBeside, words=1000, size=16, steps=1):
        assert driven.result.failure_details == [{"iteration": 0, "kind": "wrong_product", "rank": 1, "stream": 1}]


def with_wrong_exchange(where: str) -> Driven:
    whole = dist.all_to_all_single

    def exchange(output: Tensor, given: Tensor, **options: Any) -> Any:
        given = given.clone()
        if where == "sent" and dist.get_rank() == 0:
            given[1500] ^= 1
        work = whole(output, given, **options)
        if where == "received" and dist.get_rank() == 1:
            work.wait()
            output[500] ^= 1
        return work

    dist.all_to_all_single = exchange  # type: ignore[assignment]  # this process is a rank, and ends after that
    return drive(AllToAll, {**EXCHANGE, "steps": 1})


@pytest.mark.slow
@pytest.mark.parametrize("where", ["sent", "received"])
def test_word_that_changes_on_the_way_is_named_with_its_ranks(where: str) -> None:
    results = [driven.result for driven in run_on_ranks(with_wrong_exchange, where)]

    assert results[0].failure_details == results[1].failure_details
    words, sums = sorted(results[0].failure_details, key=lambda each: str(each["kind"]), reverse=True)
    assert words == {"iteration": 0, "kind": "wrong_words", "rank": 1, "source": 0, "wrong_words": 1}
    assert sums["kind"] == "checksums_differ"
