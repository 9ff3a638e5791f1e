"""torch's store on a socket that listens already."""

from __future__ import annotations

import socket
from typing import Any

import torch.distributed as dist

from pytest_aorta.launch.child.torch_compat.native_log import quiet_stderr


def serve_store(listening: socket.socket) -> dist.TCPStore:  # type: ignore[name-defined]
    """A store that serves on ``listening``, which is the store's from now on.

    Where torch's newer server cannot take a socket over (2.6), its older one serves; clients see no difference.
    """
    host, port = listening.getsockname()[:2]
    descriptor = listening.detach()
    served: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "master_listen_fd": descriptor}
    try:
        with quiet_stderr():
            return dist.TCPStore(host, port, **served)  # type: ignore[attr-defined]
    except NotImplementedError:
        return dist.TCPStore(host, port, **served, use_libuv=False)  # type: ignore[attr-defined]
