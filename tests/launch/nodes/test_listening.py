"""On which interfaces a store listens."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

import pytest

from pytest_aorta.launch.nodes.listening import listen

EVERYWHERE = ("::", "0.0.0.0")


def address_for(host: str) -> str:
    """Where the store for ``host`` listens."""
    with listen(host, 0) as listening:
        return str(listening.getsockname()[0])


def resolves_to(*addresses: str) -> Callable[..., object]:
    """A resolver that knows one host."""

    def resolve(host: str, *arguments: object, **keywords: object) -> list[object]:
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(families[":" in each], socket.SOCK_STREAM, 0, "", (each, 0)) for each in addresses]

    return resolve


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_for_this_host_alone(host: str) -> None:
    assert address_for(host) == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("a-name-of-a-loopback-address", ["127.0.1.1"]),
        ("an-address-of-another-host", ["192.0.2.1"]),
        ("two-addresses", ["127.0.0.1", "192.0.2.1"]),
        ("no-address", []),
        ("a-link-local-address", ["fe80::1%lo"]),
    ],
)
def test_where_other_nodes_may_mean_another_address(
    host: str, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolves_to(*addresses))
    assert address_for(host) in EVERYWHERE


def test_on_the_only_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 1))  # sends nothing
        except OSError:
            pytest.skip("this host has no address but those of the loopback interface")
        own = probe.getsockname()[0]
    monkeypatch.setattr(socket, "getaddrinfo", resolves_to(own, own, f"::ffff:{own}"))
    assert address_for("node0") == own


def test_a_port_in_use() -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(OSError) as refused:
        listen("localhost", taken.getsockname()[1])
    assert refused.value.errno == errno.EADDRINUSE
