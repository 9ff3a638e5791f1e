"""What makes forking unsafe, and a fresh interpreter for the task where it is."""

from __future__ import annotations

import os
import re

import pytest
from support.nursery import Nursery
from support.processes import wait_until

from pytest_aorta.runtime.zygote import Zygote


def against_forking(zygote: Zygote) -> list[str]:
    zygote.wait_ready()
    wait_until(lambda: zygote.against_forking == [] or not zygote.alive(), "the end of what cannot be forked")
    return zygote.against_forking


def test_a_thread_that_has_ended_does_not_count(nursery: Nursery) -> None:
    zygote = nursery.start("import threading\nthread = threading.Thread(target=int)\nthread.start()\nthread.join()")

    assert against_forking(zygote) == []


def test_a_native_thread_is_reported(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import ctypes
        libc = ctypes.CDLL(None)
        thread = ctypes.c_ulong()
        # pause() never returns and touches nothing of Python.
        libc.pthread_create(ctypes.byref(thread), None, libc.pause, None)
        """
    )

    assert against_forking(zygote) == ["started 1 native thread(s)"]


def test_the_pool_of_numpy_s_openblas_does_not_count_and_works_after_the_fork(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import os
        import numpy
        square = numpy.ones((500, 500))
        assert (square @ square)[0, 0] == 500
        def prepare(argument):
            return {"tasks": len(os.listdir("/proc/self/task"))}
        def run(payload, send):
            send({"value": (square @ square).sum()})
        """,
        environ={"OPENBLAS_NUM_THREADS": "3"},
    )

    assert against_forking(zygote) == []
    assert zygote.info["tasks"] == min(3, len(os.sched_getaffinity(0)))
    assert nursery.run(zygote).told == [500.0**3]


def test_a_pool_that_torch_has_used_counts_and_one_that_it_has_not_does_not(nursery: Nursery) -> None:
    source = """
        import torch
        def prepare(argument):
            if argument == "computes":
                torch.ones(1_000_000).add_(1)
            return {}
        def run(payload, send):
            send({"value": torch.ones(1_000_000).add_(1).sum().item()})
        """

    environ = {"OMP_NUM_THREADS": "2"}

    (reason,) = against_forking(nursery.start(source, argument="computes", environ=environ))
    assert re.fullmatch(r"started \d native thread\(s\)", reason)
    imports = nursery.start(source, argument="imports", environ=environ)
    assert against_forking(imports) == []
    assert nursery.run(imports).told == [2_000_000.0]


def test_a_device_of_a_gpu_that_is_open_is_reported(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_aorta.runtime import process_tree

    (nursery.path / "nvidia0").touch()
    monkeypatch.setattr(process_tree, "_GPU_DEVICES", (str(nursery.path / "nvidia"),))
    with (nursery.path / "nvidia0").open():
        assert f"opened {nursery.path}/nvidia0" in process_tree.reasons_against_forking()
    assert not any("opened" in reason for reason in process_tree.reasons_against_forking())


FRESH = """
    import os, threading
    prepared_in = None
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    def prepare(argument):
        global prepared_in
        prepared_in = os.getpid()
        return {"argument": argument}
    def run(payload, send):
        send({"value": [payload, prepared_in == os.getpid(), os.getsid(0) == os.getpid()]})
"""


def test_in_a_fresh_interpreter_the_task_prepares_itself_and_may_have_threads(nursery: Nursery) -> None:
    zygote = nursery.start(FRESH, fresh=True, argument=7)

    done = nursery.run(zygote, "payload")

    assert done.messages[0] == {"type": "prepared", "info": {"argument": 7}}
    assert done.told == [["payload", True, True]]
    assert zygote.against_forking == []
    assert zygote.info == {}
