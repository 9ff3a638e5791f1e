"""Contracts with execnet: one test per name that it does not document, each saying what breaks when it goes."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import execnet
import pytest
from execnet import gateway_base
from execnet.script import socketserver

from pytest_aorta.runtime.execnet_compat import InterceptedExecModel, make_gateway


class Factory:
    """Makes processes and sockets, and counts them."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.sockets: list[socket.socket] = []

    def popen(self, args: list[str], **pipes: Any) -> subprocess.Popen[bytes]:
        self.processes.append(subprocess.Popen(args, **pipes))
        return self.processes[-1]

    def make_socket(self, *kind: Any) -> socket.socket:
        self.sockets.append(socket.socket(*kind))
        return self.sockets[-1]


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
    for made in factory.sockets:
        made.close()


def test_thread_exec_model_can_be_extended(factory: Factory) -> None:
    """Without ``gateway_base.ThreadExecModel`` there is nothing to intercept, and no host can be killed."""
    assert issubclass(InterceptedExecModel, gateway_base.ThreadExecModel)
    model = InterceptedExecModel(factory.popen, factory.make_socket)
    assert model.backend == "thread"


def test_set_execmodel_takes_an_instance(factory: Factory) -> None:
    """If ``Group.set_execmodel`` took names only, execnet would start processes out of reach."""
    model = InterceptedExecModel(factory.popen, factory.make_socket)
    group = execnet.Group()

    group.set_execmodel(model, "main_thread_only")  # type: ignore[arg-type]

    assert group.execmodel is model


def test_exec_model_subprocess_starts_the_process(factory: Factory) -> None:
    """If processes were started by other means, one that hangs while it starts could not be ended."""
    gateway = make_gateway(execnet.XSpec("popen"), factory.popen, factory.make_socket)

    (process,) = factory.processes
    assert gateway.remote_exec("import os; channel.send(os.getpid())").receive() == process.pid
    gateway.exit()
    gateway.join(10)


def test_main_thread_only_runs_code_in_the_main_thread(factory: Factory) -> None:
    """If the remote model did not do so, the children of a service would outlive a host that is killed."""
    gateway = make_gateway(execnet.XSpec("popen"), factory.popen, factory.make_socket)

    asked = gateway.remote_exec("import threading; channel.send(threading.current_thread() is threading.main_thread())")

    assert asked.receive() is True
    gateway.exit()
    gateway.join(10)


def test_exec_model_socket_connects(factory: Factory) -> None:
    """If sockets were made by other means, a server that does not answer would keep the start for ever."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    with pytest.raises(OSError, match="Connection refused"):
        make_gateway(execnet.XSpec(f"socket=127.0.0.1:{port}"), factory.popen, factory.make_socket)

    assert len(factory.sockets) == 1
    assert factory.processes == []


def test_a_socket_server_can_be_started_as_a_module() -> None:
    """``execnet.script.socketserver`` is what messages about unreachable hosts tell the user to run."""
    assert callable(socketserver.startserver)
