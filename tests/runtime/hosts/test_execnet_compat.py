"""Contracts with execnet: one test per name that it does not document, each saying what breaks when it goes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import execnet
import pytest
from execnet import gateway_base

from pytest_aorta.runtime.execnet_compat import InterceptedExecModel, make_gateway


class Factory:
    """Makes processes, and counts them."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def popen(self, args: list[str], **pipes: Any) -> subprocess.Popen[bytes]:
        self.processes.append(subprocess.Popen(args, **pipes))
        return self.processes[-1]


@pytest.fixture
def factory() -> Iterator[Factory]:
    factory = Factory()
    yield factory
    for process in factory.processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def test_set_execmodel_takes_a_model_of_our_own(factory: Factory) -> None:
    """If ``Group.set_execmodel`` took names only, execnet would start processes out of reach."""
    assert issubclass(InterceptedExecModel, gateway_base.ThreadExecModel)
    model = InterceptedExecModel(factory.popen)
    group = execnet.Group()

    group.set_execmodel(model, "main_thread_only")  # type: ignore[arg-type]

    assert group.execmodel is model
    assert model.backend == "thread"


def test_exec_model_subprocess_starts_the_process_and_code_runs_in_its_main_thread(factory: Factory) -> None:
    """Else one that hangs while it starts could not be ended, and children of a service would outlive it."""
    gateway = make_gateway(execnet.XSpec("popen"), factory.popen)

    (process,) = factory.processes
    code = "import os, threading; channel.send((os.getpid(), threading.current_thread() is threading.main_thread()))"
    assert gateway.remote_exec(code).receive() == (process.pid, True)
    gateway.exit()
    gateway.join(10)
