"""The pipeline on the level runtime: its steps, what is wrong in its result, and its processes."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from aorta_workloads.pipeline import Pipeline, add_up, multiply
from rank_processes import drive
from support.processes import PATIENCE
from support.stage import Stage

from pytest_aorta.runtime import SlotArgs

if TYPE_CHECKING:
    from pytest_aorta.trials.workload import WorkloadResult

#: Two by two blocks; those of C begin at elements 0, 8, 128 and 136.
SMALL: dict[str, Any] = {"steps": 2, "size": 16, "block": 8}


def run(workload_class: type[Pipeline] = Pipeline, **options: Any) -> WorkloadResult:
    return drive(workload_class, {**SMALL, **options}).result


def test_default_run_passes_reports_its_steps_and_ends_its_processes() -> None:
    before = psutil.Process().children(recursive=True)
    driven = drive(Pipeline, {})
    driven.assert_passed(steps=3)
    result = driven.result
    assert result.metrics["slots"] == 2
    assert result.metrics["tasks"] == 64 + 16 + 8 + 4 + 2 + 1  # products, sums of blocks, pairs
    assert result.metrics["max_abs_error"] == 0
    assert result.metrics["total"] == int(result.metrics["total"]) > 256**3
    assert psutil.Process().children(recursive=True) == before


@pytest.mark.slow
def test_same_seed_gives_the_same_total_on_any_number_of_blocks_and_slots() -> None:
    one, other = run(block=16, slots=1), run(block=7, slots=3)  # of 7, 7 and 2 rows

    assert (one.failure_details, other.failure_details) == ([], [])
    assert one.metrics["total"] == other.metrics["total"]
    assert (one.metrics["slots"], other.metrics["slots"]) == (1, 3)


class WithoutTheLastProduct(Pipeline):
    @staticmethod
    def multiply(args: SlotArgs) -> None:
        if args.tensors[2].storage_offset() != 8 or args.scalars != (True,):  # a later product for that block of C
            multiply(args)


def test_wrong_block_is_found_and_located() -> None:
    result = run(WithoutTheLastProduct)

    assert not result.passed
    assert (result.failure_count, result.first_failure_iteration) == (4, 0)
    block, total = result.failure_details[2:]
    assert (block["kind"], block["iteration"], block["row"], block["column"]) == ("wrong_block", 1, 0, 1)
    assert block["wrong_elements"] == 64
    assert total["kind"] == "wrong_total"
    assert total["actual"] == pytest.approx(total["sum_of_result"], rel=0, abs=0, nan_ok=True)
    assert total["actual"] != total["expected"]
    assert result.metrics["max_abs_error"] != 0  # NaN where nothing was written


class NoSumOfABlock(Pipeline):
    @staticmethod
    def add_up(args: SlotArgs) -> None:
        if args.tensors[0].numel() == 2:
            add_up(args)


def test_sum_that_the_tree_has_lost_is_found() -> None:
    result = run(NoSumOfABlock)

    assert not result.passed
    assert [failure["kind"] for failure in result.failure_details] == ["wrong_total"] * 2
    for failure in result.failure_details:
        assert failure["sum_of_result"] == failure["expected"]
        # What was never written is not what an earlier step has left in the same memory.
        assert math.isnan(failure["actual"])


def test_products_of_a_block_take_turns_and_others_run_at_the_same_time(tmp_path: Path) -> None:
    folder = str(tmp_path)

    def note(name: str) -> None:
        descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, b".")
        os.close(descriptor)

    class Watched(Pipeline):
        @staticmethod
        def multiply(args: SlotArgs) -> None:
            note("tasks")
            lock = f"{folder}/block_{args.tensors[2].storage_offset()}"
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL))  # fails when another one is at this block
            note(f"process_{os.getpid()}")
            give_up = time.monotonic() + PATIENCE
            while len([name for name in os.listdir(folder) if name.startswith("process_")]) < 2:
                assert time.monotonic() < give_up, "the other slots never had a product at the same time"
                time.sleep(0.001)
            multiply(args)
            os.unlink(lock)

        @staticmethod
        def add_up(args: SlotArgs) -> None:
            note("tasks")
            add_up(args)

    result = run(Watched, size=40)

    assert result.passed, result.failure_details
    assert (tmp_path / "tasks").stat().st_size == 2 * result.metrics["tasks"]


FAULTY = """
import os, time
from aorta_workloads.pipeline import Pipeline

def hangs(args):
    open(f"hanging_{os.getpid()}", "w").close()
    time.sleep(1000)

class Hangs(Pipeline):
    multiply = staticmethod(hangs)

    def run(self):
        with open("trial", "w") as file:
            file.write(str(os.getpid()))
        return super().run()
"""


@pytest.mark.slow
def test_trial_that_is_killed_within_a_task_leaves_nothing_running(stage: Stage) -> None:
    stage.write(faulty=FAULTY)
    stage.register(hangs="faulty:Hangs")

    running = stage.start("--aorta-workload", "hangs")
    stage.wait_until(lambda: len(list(stage.path.glob("hanging_*"))) == 2)
    os.kill(int((stage.path / "trial").read_text()), signal.SIGKILL)
    running.communicate(timeout=PATIENCE)

    [trial] = stage.trials().values()
    assert trial["exit_status"] == "workload_failed"
    assert trial["failure"]["signal"] == "SIGKILL"
    assert stage.left_running() == []
