"""Any value goes to a task and comes back, exceptions too; what one task returns is an argument of the next."""

from __future__ import annotations

import pathlib
import threading
from typing import Any

import numpy as np
import pytest
from levels_stage import no_torch as no_torch
from levels_stage import worker as worker
from support.processes import PATIENCE

from pytest_aorta.runtime import MapRef, Orchestrator, Outcome, TaskArgs, TaskError, Worker
from pytest_aorta.runtime.records import RemoteTraceback


class Odd(Exception):
    """Of a module that the slots cannot import; takes two arguments."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Broken(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(one)

    def __reduce__(self) -> Any:
        return int, ("no number",)


def give_back(args: Any) -> Any:
    return {"scalars": args.scalars, "config": args.config}


def raise_it(args: Any) -> None:
    raise args.config() if callable(args.config) else args.config


VALUES = [
    {1: "int", "1": "text", (2, 3): None},
    {4, 5},
    pathlib.PurePosixPath("/a/b"),
    2 + 3j,
    b"\xff",
    range(3),
    Odd,
    [float("inf"), {"deep": ({6}, frozenset())}],
]


def test_any_value_is_an_argument_and_a_result(worker: Worker) -> None:
    give = worker.register(give_back)
    array = np.arange(6).reshape(2, 3)
    args = TaskArgs()
    for value in VALUES:
        args.add_scalar(value)
    later: list[Any] = [1]

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        ref = orch.submit_sub(give, args, {"array": array, "later": later})
        later.append(2)
        result = ref.result()
        assert result["scalars"] == tuple(VALUES)
        assert result["scalars"][6] is Odd
        assert np.array_equal(result["config"]["array"], array)
        assert result["config"]["later"] == [1]
        assert orch.submit_sub(give, TaskArgs().add_scalar(1)).result() == {"scalars": (1,), "config": None}
        pair = orch.submit_sub_group(give, [TaskArgs().add_scalar({7}), None], {8})
        assert pair.result() == [{"scalars": ({7},), "config": {8}}, {"scalars": (), "config": {8}}]
        with pytest.raises(TypeError, match=r"config cannot be sent to another process: .*lock"):
            orch.submit_sub(give, None, threading.Lock())
        with pytest.raises(TypeError, match=r"a scalar cannot be sent to another process: .*lock"):
            orch.submit_sub(give, TaskArgs().add_scalar(threading.Lock()))

    worker.run(build)


def test_what_a_task_returns_is_an_argument_of_another(worker: Worker) -> None:
    give, double = worker.register(give_back), worker.register(lambda args: [item * 2 for item in args.config])
    triple, fail = worker.register(lambda item: item * 3), worker.register(raise_it)
    seen: list[Any] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        first = orch.submit_sub(double, None, [1, 2])
        second = orch.submit_sub(double, None, first)
        many = orch.map(triple, range(5))
        both = orch.submit_sub(give, TaskArgs().add_scalar(second), {"a": [first, second, first], "many": many})
        seen.append(both.result())
        bad = orch.submit_sub(fail, None, LookupError("broken"))
        after = orch.submit_sub(give, None, {"bad": bad})
        assert after.wait().outcome is Outcome.SKIPPED
        with pytest.raises(LookupError, match="broken"):
            after.result()

    handle = worker.submit(build)
    with pytest.raises(TaskError):
        handle.wait()
    four = [4, 8]
    assert seen == [{"scalars": (four,), "config": {"a": [[2, 4], four, [2, 4]], "many": [0, 3, 6, 9, 12]}}]


def test_exceptions_come_back_as_their_own_type(worker: Worker) -> None:
    fail = worker.register(raise_it)

    def ended_with(error: Any) -> BaseException:
        found: list[BaseException] = []

        def build(orch: Orchestrator, _: Any, config: Any) -> None:
            with pytest.raises(Exception) as caught:
                orch.submit_sub(fail, None, error).result()
            found.append(caught.value)

        with pytest.raises(TaskError):
            worker.run(build)
        return found[0]

    assert type(ended_with(lambda: Odd(7, "text"))) is TaskError  # made again with one argument, which it does not take
    for sent in (KeyError("key"), FileNotFoundError(2, "gone", "file"), UnicodeDecodeError("ascii", b"x", 0, 1, "bad")):
        got = ended_with(sent)
        assert (type(got), got.args) == (type(sent), sent.args)
        assert isinstance(got.__cause__, RemoteTraceback)
        assert "in raise_it" in str(got.__cause__)
    for make in (lambda: Broken(1, 2), KeyboardInterrupt, lambda: SystemExit(3)):
        assert type(ended_with(make)) is TaskError


# Many small calls with few tasks


def map_over(worker: Worker, function: Any, items: Any, **more: Any) -> MapRef:
    """The tasks of a run with one ``map``."""
    found: list[MapRef] = []
    handle = worker.register(function)
    try:
        worker.submit(lambda orch, args, config: found.append(orch.map(handle, items, **more)))
        for task in found[0].tasks:
            task.wait(PATIENCE)
    finally:
        worker.unregister(handle)
    return found[0]


def test_results_come_in_the_order_of_the_items(worker: Worker) -> None:
    for number, chunksize in ((0, None), (1, None), (7, None), (1000, None), (10, 1), (10, 3), (10, 99)):
        mapped = map_over(worker, lambda item: -item, range(number), chunksize=chunksize)
        assert mapped.wait(PATIENCE) == [-item for item in range(number)]
        size = chunksize or max(1, -(-number // 8))  # four tasks for each of two workers
        assert len(mapped.tasks) == -(-number // size)


def test_the_first_item_that_fails_is_named_and_the_other_chunks_are_not_lost(worker: Worker) -> None:
    def fussy(item: int) -> int:
        if item in (7, 13):
            raise ValueError(f"not {item}")
        return item

    mapped = map_over(worker, fussy, range(20), chunksize=5)

    with pytest.raises(TaskError, match=r"sub_worker \d: item 7: ValueError: not 7") as caught:
        mapped.wait(PATIENCE)
    failure = caught.value.record.failure
    assert failure is not None
    assert failure.type == "ValueError"
    assert "in fussy" in failure.traceback
    assert [task.wait().payload for task in mapped.tasks] == [[0, 1, 2, 3, 4], None, None, [15, 16, 17, 18, 19]]


def test_a_chunksize_that_makes_no_sense_and_items_that_cannot_be_pickled_are_refused(worker: Worker) -> None:
    wrong: list[Any] = [0, -1, 1.5, "2", True]
    for chunksize in wrong:
        with pytest.raises(ValueError, match="chunksize must be a whole number from 1, not"):
            map_over(worker, abs, [1], chunksize=chunksize)
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        map_over(worker, abs, [1, (number for number in range(3)), 3], chunksize=1)
