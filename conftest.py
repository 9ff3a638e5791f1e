"""Configuration of this repository's own tests, and the bench on which end-to-end tests run pytest."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

# How long an example takes says how busy this machine is.
settings.register_profile("aorta", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("aorta")

#: Every process that a bench starts, directly or not, has this variable in its environment.
MARK = "AORTA_TEST_BENCH"

#: Longest run of pytest in seconds, for the case that something hangs; no test waits for it to pass.
PATIENCE = 120.0

#: ``faults.py::Hangs[local-none-0] TIMEOUT [ 50%]``, or with the name of an xdist worker in front.
_VERBOSE_LINE = re.compile(r"(?:\[gw\d+\] \[ *\d+%\] (?P<early>[A-Z]+) )?(?P<id>\S+::\S+\])(?: (?P<word>[A-Z]+)\b.*)?")


class Bench:
    """A folder with workloads, in which pytest is run as a user runs it: as a command of its own."""

    def __init__(self, pytester: pytest.Pytester, mark: str) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.results = pytester.path / "results"
        self.mark = mark

    def write(self, **files: str) -> None:
        """Write ``name.py`` for every argument; the source may be indented."""
        self.pytester.makepyfile(**files)

    def copy(self, source: Path) -> None:
        """Copy a file into the folder."""
        (self.path / source.name).write_text(source.read_text())

    def register(self, **targets: str) -> None:
        """Have the folder offer workloads as an installed distribution does: name -> ``module:Class``."""
        info = self.path / "bench_workloads-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-workloads\nVersion: 1.0\n")
        lines = [f"{name} = {target}" for name, target in targets.items()]
        (info / "entry_points.txt").write_text("\n".join(["[aorta.workloads]", *lines, ""]))

    def write_registry(self, name: str = "registry.json", **sections: Any) -> None:
        """Write a registry file with ``mitigations=`` and ``environments=``."""
        (self.path / name).write_text(json.dumps({"version": 1, **sections}))

    def run(self, *arguments: str | os.PathLike[str]) -> pytest.RunResult:
        """Run pytest in the folder. Without hypothesis, which takes half a second to start and is not needed."""
        return self.pytester.runpytest_subprocess("-p", "no:hypothesispytest", *arguments, timeout=PATIENCE)

    def start(self, *arguments: str | os.PathLike[str]) -> subprocess.Popen[bytes]:
        """Start pytest in the folder as a process of its own, for tests that send it signals; its output is piped."""
        command = (sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", *arguments)
        process: subprocess.Popen[bytes] = self.pytester.popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # Whoever runs these tests in the background may have SIGINT ignored, which is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        return process

    def press_ctrl_c(self, process: subprocess.Popen[bytes]) -> str:
        """Interrupt what ``start`` has started, workers included, as a terminal does; its output, once it is over."""
        os.killpg(process.pid, signal.SIGINT)
        return process.communicate(timeout=PATIENCE)[0].decode()

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until something has come true; fail when it does not."""
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < give_up, "waited in vain"
            time.sleep(0.02)

    @staticmethod
    def words(result: pytest.RunResult) -> dict[str, list[str]]:
        """Of a run with ``-v``: the words that were shown for each item, in their order, by its name."""
        found: dict[str, list[str]] = {}
        for line in result.outlines:
            match = _VERBOSE_LINE.match(line)
            if match and (word := match["early"] or match["word"]):
                found.setdefault(match["id"].rpartition("::")[2], []).append(word)
        return found

    def files(self) -> list[str]:
        """Paths of all trial files relative to the results directory, sorted; earlier results are not among them."""
        return [path for path in self.everything() if not path.startswith(".history/") and _is_trial(path)]

    def earlier(self) -> list[str]:
        """Paths of the trial files in the history, without the name of the run that moved them there."""
        return sorted(
            path.split("/", 2)[2] for path in self.everything() if path.startswith(".history/") and _is_trial(path)
        )

    def everything(self) -> list[str]:
        """Paths of all files below the results directory, relative to it, sorted."""
        return sorted(path.relative_to(self.results).as_posix() for path in self.results.rglob("*") if path.is_file())

    def trial(self, path: str) -> dict[str, Any]:
        """The content of a trial file, which must be strict JSON; ``path`` relative to the results directory."""
        content = json.loads((self.results / path).read_text(), parse_constant=_refuse)
        assert isinstance(content, dict)
        return content

    def trials(self) -> dict[str, dict[str, Any]]:
        """The contents of all trial files, by path."""
        return {path: self.trial(path) for path in self.files()}

    def statuses(self) -> dict[str, str]:
        """The exit status in every trial file, by path."""
        return {path: trial["exit_status"] for path, trial in self.trials().items()}

    def left_running(self) -> list[str]:
        """Command lines of the processes that a run has left behind."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                found.append(" ".join(process.cmdline()))
        return found

    def processes(self) -> Iterator[psutil.Process]:
        """The processes that runs on this bench have started and that are still there."""
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.pid != os.getpid():
                    yield process
            except psutil.Error:
                continue


def _is_trial(path: str) -> bool:
    return re.search(r"(^|/)trial_\d+\.json$", path) is not None


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"not strict JSON: {constant}")


@pytest.fixture
def bench(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A fresh bench; whatever is exported for this very run does not reach the runs on it."""
    for name in list(os.environ):
        if name.startswith(("PYTEST_AORTA_", "PYTEST_XDIST_")):
            monkeypatch.delenv(name)
    mark = str(pytester.path)
    monkeypatch.setenv(MARK, mark)
    made = Bench(pytester, mark)
    yield made
    for process in made.processes():  # of a test that failed
        with contextlib.suppress(psutil.Error):
            process.kill()
