"""On which interfaces the store of several nodes listens."""

from __future__ import annotations

import errno
import ipaddress
import socket

_LOOPBACK = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}


def listen(host: str, port: int) -> socket.socket:
    """Listen on the interface of ``host``, where that is one address of this host; else on all.

    A name may have several addresses, and its own host may know it by a loopback address that other hosts do not mean
    (Debian's ``127.0.1.1``); an address that is not one of this host may be translated to one.

    Raises:
        OSError: the port is taken.
    """
    address = _LOOPBACK.get(host) or _only_address(host)
    if address is not None:
        try:
            return _listen_at(address, port)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    try:
        return _listen_at("::", port, dualstack=socket.has_dualstack_ipv6())
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # no IPv6 here
            raise
    return _listen_at("0.0.0.0", port)


def _only_address(host: str) -> str | None:
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    found = {ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries}
    found = {getattr(address, "ipv4_mapped", None) or address for address in found}
    if len(found) != 1 or (address := found.pop()).is_loopback or address.is_link_local:
        return None
    return str(address)


def _listen_at(address: str, port: int, *, dualstack: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=dualstack)
