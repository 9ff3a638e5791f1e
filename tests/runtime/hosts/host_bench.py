"""Links to hosts, for tests: everything that they tell is kept, and nothing of them is left."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import MARK, PATIENCE, kill_all, marked

from pytest_aorta.runtime.hosts import HostConnection, HostError


class Host:
    """A link, its messages and its deaths."""

    def __init__(self, spec: str, service: str, argument: Any, **options: Any) -> None:
        self.messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self.deaths: list[HostError] = []
        self.died = threading.Event()
        given: dict[str, Any] = {"identity": {}, "on_message": self.messages.put, **options}
        name = service if ":" in service else f"host_services:{service}"
        self.link = HostConnection(spec, name, argument, on_death=self._on_death, **given)

    def _on_death(self, error: HostError) -> None:
        self.deaths.append(error)
        self.died.set()

    def next(self) -> dict[str, Any]:
        """The next message, which has to come."""
        return self.messages.get(timeout=PATIENCE)

    def death(self) -> HostError:
        """The end, which has to come."""
        assert self.died.wait(PATIENCE)
        assert len(self.deaths) == 1
        return self.deaths[0]

    def rest(self) -> list[dict[str, Any]]:
        """Messages that have not been looked at."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self.messages.get_nowait())
        return found


class HostBench:
    """Starts hosts; their processes carry a mark."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.hosts: list[Host] = []

    def host(self, service: str, argument: Any = None, *, spec: str = "popen", **options: Any) -> Host:
        """A host that is not started."""
        host = Host(spec, service, argument, **options)
        self.hosts.append(host)
        return host

    def start(self, service: str, argument: Any = None, *, spec: str = "popen", **options: Any) -> Host:
        """A host that is."""
        host = self.host(service, argument, spec=spec, **options)
        host.link.start()
        return host

    def alive(self) -> list[psutil.Process]:
        """Processes that were started from here, directly or not, and that still run."""
        return marked(self.mark)


@contextlib.contextmanager
def host_bench_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostBench]:
    """A bench that leaves nothing behind; that it does is checked."""
    monkeypatch.setenv(MARK, str(path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    bench = HostBench(str(path))
    try:
        yield bench
    finally:
        for host in bench.hosts:
            host.link.close()
        left = bench.alive()
        kill_all(left)
    assert left == []
