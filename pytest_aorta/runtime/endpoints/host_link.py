"""Workers on other hosts: what connects an endpoint with one, through an execnet gateway."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from pytest_aorta.runtime.endpoints.protocol import Link, Report, packed
from pytest_aorta.runtime.hosts.code_digest import code_identity, package_files
from pytest_aorta.runtime.hosts.connection import HostConnection

if TYPE_CHECKING:
    from pytest_aorta.runtime.endpoints.process_endpoint import Launch, ProcessEndpoint
    from pytest_aorta.runtime.worker_spec import WorkerSpec

_SERVICE = "pytest_aorta.runtime.children.worker_server:serve_host"


def remote_launcher(describe: Callable[[], WorkerSpec], index: int) -> Launch:
    """What starts the child ``index`` of a worker on a host that execnet can reach. Tensors go there by value."""

    def launch(endpoint: ProcessEndpoint) -> Link:
        worker = describe()
        child, host = worker.children[index]
        assert host is not None
        connection = HostConnection(
            host,
            _SERVICE,
            {
                "spec": packed(child),
                "sys_path": [path for path in sys.path if path],
                "torch": "torch" in sys.modules and not child.total_slots,
            },
            identity={**code_identity(package_files("pytest_aorta")), **worker.identity},
            on_message=lambda message: endpoint.received(cast(Report, message), connection),
            on_death=lambda error: endpoint.died(str(error), connection),
            startup_timeout=child.startup_timeout_s,
        )
        return connection

    return launch
