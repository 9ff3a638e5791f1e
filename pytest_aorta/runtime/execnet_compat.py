"""What execnet does not document: how it starts processes. ``test_execnet_compat.py`` says what breaks without it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import execnet
from execnet.gateway_base import ThreadExecModel


class InterceptedExecModel(ThreadExecModel):
    def __init__(self, popen: Callable[..., Any]) -> None:
        self._popen = popen

    @property
    def subprocess(self) -> Any:
        """What execnet takes for the module ``subprocess``."""
        return SimpleNamespace(PIPE=subprocess.PIPE, Popen=self._popen)


def make_gateway(spec: execnet.XSpec, popen: Callable[..., Any]) -> execnet.Gateway:
    """Connect. Code there runs in the main thread, which handles signals and whose end ends the children."""
    group = execnet.Group()
    group.set_execmodel(InterceptedExecModel(popen), "main_thread_only")  # type: ignore[arg-type]
    return group.makegateway(spec)
