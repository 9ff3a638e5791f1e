"""Wrong arguments are refused with the type that is expected; what users hold says what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from levels_stage import Host
from levels_stage import gates as gates
from levels_stage import host as host

from pytest_aorta.runtime import Orchestrator, TaskArgs, Worker

WRONG: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda orch, h: orch.submit_sub(print), "expected a handle from Worker.register, not <built-in function"),
    (
        lambda orch, h: orch.submit_sub(h, [1]),
        r"must be TaskArgs or None, not \[1\] \(list\); build them with Task",
    ),
    (lambda orch, h: orch.submit_sub(h, torch.zeros(2)), r"must be TaskArgs or None, not tensor.* \(Tensor\)"),
    (lambda orch, h: orch.submit_sub(h, after=orch.submit_sub(h)), r"after must be a list of tasks.* \(TaskRef\)"),
    (lambda orch, h: orch.submit_sub(h, after=[3]), r"after must be a list of tasks.*, not 3 \(int\)"),
    (
        lambda orch, h: orch.submit_sub(h, timeout="3"),
        r"timeout must be a number of seconds above 0, not '3' \(str\)",
    ),
    (lambda orch, h: orch.submit_sub_group(h, TaskArgs()), r"args_list must be a list of TaskArgs, one per member"),
    (lambda orch, h: orch.submit_next_level_group(h, [None], workers=0), r"workers must be a list of ids, not 0"),
    (lambda orch, h: orch.alloc(3), r"shape must be a list of whole numbers, not 3 \(int\)"),
    (lambda orch, h: orch.alloc([2.5]), r"a size of the shape must be a whole number from 0, not 2.5 \(float\)"),
    (lambda orch, h: orch.alloc([2], "float32"), r"dtype must be a torch.dtype or None, not 'float32' \(str\)"),
    (lambda orch, h: orch.submit_sub(h).wait("3"), r"timeout must be a number of seconds or None, not '3' \(str\)"),
]


def test_arguments_of_a_wrong_type_name_the_right_one(host: Host) -> None:
    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        for submit, message in WRONG:
            with pytest.raises(TypeError, match=message):
                submit(orch, host.nothing)

    host.worker.run(build)


def test_so_are_those_of_a_worker() -> None:
    worker: Any = Worker(4)
    with pytest.raises(TypeError, match=r"orch_fn must be a function orch_fn\(orch, args, config\), not None"):
        worker.submit(None)
    with pytest.raises(TypeError, match=r"child must be a Worker, not 3 \(int\)"):
        worker.add_worker(3)
    with pytest.raises(TypeError, match=r"host must be an execnet specification such as 'popen'.*, not 3 \(int\)"):
        worker.add_worker(Worker(3), host=3)
    with pytest.raises(TypeError, match=r"workers must be a list of the ids of workers, not 0 \(int\)"):
        worker.register(print, workers=0)
