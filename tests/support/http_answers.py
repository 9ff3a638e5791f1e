"""Asking the health check of an agent."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from typing import Any

#: Without the proxy of an environment.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def answer_of(port: int) -> tuple[int, dict[str, Any]]:
    """Status and JSON of what listens on the port."""
    try:
        with _OPENER.open(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def refuses(port: int, host: str = "127.0.0.1") -> bool:
    """Whether nothing listens there."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) != 0


def free_port() -> int:
    """A port that no process of this host listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
