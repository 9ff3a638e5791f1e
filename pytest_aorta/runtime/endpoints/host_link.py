"""The link to a worker on another host, through an execnet gateway."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_aorta.runtime.endpoints.process import StartupError, packed
from pytest_aorta.runtime.hosts.code_digest import code_identity, package_files
from pytest_aorta.runtime.hosts.connection import HostError, HostLink

if TYPE_CHECKING:
    from pytest_aorta.runtime.endpoints.process import LinkedEndpoint
    from pytest_aorta.runtime.memory.transfer import Message
    from pytest_aorta.runtime.worker_spec import WorkerSpec

_SERVICE = "pytest_aorta.runtime.children.worker_server:serve_host"


class HostedLink:
    """Messages to a worker on another host; tensors go by value."""

    local = False

    def __init__(self, link: HostLink) -> None:
        self._link = link

    def follow(self) -> None:
        """It listens already."""

    def send(self, message: Message) -> None:
        """To the host; raises ``OSError`` when it is gone."""
        try:
            self._link.send(message)
        except HostError as error:
            raise OSError(str(error)) from error

    def send_fd(self, fd: int) -> None:
        """Descriptors do not travel between hosts."""
        raise NotImplementedError

    def kill(self, grace: float) -> None:
        """End it; not on the thread that asks, which may be one that it waits for."""
        threading.Thread(target=self._link.close, args=(grace,), daemon=True).start()

    def close(self, grace: float) -> None:
        """Ask it to end, wait, end it."""
        self._link.close(grace)


def remote_launcher(describe: Callable[[], WorkerSpec], index: int) -> Callable[[LinkedEndpoint], HostedLink]:
    """What starts the child ``index`` of a worker on a host that execnet can reach."""

    def launch(endpoint: LinkedEndpoint) -> HostedLink:
        worker = describe()
        child, host = worker.children[index]
        assert host is not None
        link = HostLink(
            host,
            _SERVICE,
            {
                "spec": packed(child),
                "sys_path": [path for path in sys.path if path],
                "torch": "torch" in sys.modules and not child.total_slots,
            },
            identity={**code_identity(package_files("pytest_aorta")), **worker.identity},
            on_message=endpoint.received,
            on_death=lambda error: endpoint.died(str(error)),
            startup_timeout=child.startup_timeout_s,
        )
        endpoint.abort = lambda: link.close(0.0)
        try:
            link.start()
        except HostError as error:
            raise StartupError(f"{endpoint.name}: {error}") from error
        return HostedLink(link)

    return launch
