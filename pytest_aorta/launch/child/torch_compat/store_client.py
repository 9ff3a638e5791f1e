"""How a rank connects to the store of its process group."""

from __future__ import annotations

import functools
import sys
from typing import Any

from pytest_aorta.launch.child.name_service import files_only


def connect_without_name_server(host: str) -> None:
    """Have ``init_process_group()`` ask no name server where the store is at ``host``, a numeric address of this host.

    torch connects by IPv6, also to an IPv4 address, and asks libc for the name of the peer. /etc/hosts has no IPv4
    addresses in IPv6, so that each connection is a query to a name server, and one that is lost costs 5 s.
    """
    import torch.distributed as dist

    rendezvous = sys.modules["torch.distributed.rendezvous"]  # the package has a function of this name
    connect = dist.TCPStore  # type: ignore[attr-defined]

    @functools.wraps(connect, updated=())
    def store(*arguments: Any, **keywords: Any) -> Any:
        if keywords.get("host_name", arguments[0] if arguments else None) != host:
            return connect(*arguments, **keywords)
        with files_only():
            return connect(*arguments, **keywords)

    setattr(rendezvous, "TCPStore", store)  # noqa: B010  (no exported name)
