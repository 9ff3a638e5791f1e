"""Any value goes to a task and comes back, exceptions too; what one task returns is an argument of the next."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from levels_stage import no_torch as no_torch

from pytest_aorta.runtime import Orchestrator, Outcome, TaskArgs, TaskError, Worker
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


def build_with(orch: Orchestrator, args: Any, config: Any) -> Any:
    """At level 3: what it was given, and what a SUB task makes of it."""
    return config, args.scalars


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(3, num_sub_workers=2, grace=0.1) as worker:
        yield worker


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


def test_values_pass_through_levels() -> None:
    with Worker(4, grace=0.1) as top:
        top.add_worker(Worker(3, num_sub_workers=1))
        build_below = top.register(build_with)

        def below(orch: Orchestrator, _: Any, config: Any) -> None:
            first = orch.submit_next_level(build_below, TaskArgs().add_scalar({1}), {2: 3})
            second = orch.submit_next_level(build_below, TaskArgs().add_scalar(first), [first])
            assert second.result() == ([({2: 3}, ({1},))], (({2: 3}, ({1},)),))

        top.run(below)
