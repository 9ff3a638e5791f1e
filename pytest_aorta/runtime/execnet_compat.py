"""What execnet does not document: how it starts processes and makes sockets.

``tests/runtime/hosts/test_execnet_compat.py`` says what breaks when one of these names goes.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import execnet
from execnet.gateway_base import ThreadExecModel


class InterceptedExecModel(ThreadExecModel):
    """execnet's usual model, except that processes and sockets are made by the caller's functions."""

    def __init__(self, popen: Callable[..., Any], make_socket: Callable[..., Any]) -> None:
        self._popen = popen
        self._make_socket = make_socket

    @property
    def subprocess(self) -> Any:
        """What execnet takes for the module ``subprocess``."""
        return SimpleNamespace(PIPE=subprocess.PIPE, Popen=self._popen)

    @property
    def socket(self) -> Any:
        """What execnet takes for the module ``socket``."""
        return SimpleNamespace(**{**vars(socket), "socket": self._make_socket})


def make_gateway(spec: execnet.XSpec, popen: Callable[..., Any], make_socket: Callable[..., Any]) -> execnet.Gateway:
    """Connect; ``popen`` is called as ``subprocess.Popen``, ``make_socket`` as ``socket.socket``.

    The code there runs in the main thread of its process: only there can it handle signals, and only with that thread's
    end does the kernel end the children that asked to die with their parent.
    """
    group = execnet.Group()
    group.set_execmodel(InterceptedExecModel(popen, make_socket), "main_thread_only")  # type: ignore[arg-type]
    return group.makegateway(spec)
