"""The folder and the processes that measurements are taken in."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SUBJECTS = Path(__file__).with_name("subjects")

#: First items of a pytest run that do not count: they start what later ones find started.
_COLD = 3


class MeasurementError(Exception):
    """A process that was to be measured failed; the message is what it wrote."""


class Workplace:
    """A folder of its own with all subjects, outside of this project's pytest configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(_SUBJECTS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "pytest.ini").write_text("[pytest]\n")
        # Whatever else is installed for pytest, or set for its runs, would be measured as well.
        settings = ("PYTEST_", "AORTA_")
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
        self._environ.pop("PYTHONDONTWRITEBYTECODE", None)  # every start would compile the plugin anew
        self._environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        self._environ["PYTHONPATH"] = str(folder)

    def run(self, *command: str, **environ: str) -> str:
        """Run a command in the folder; its stdout.

        Raises:
            MeasurementError: it failed.
        """
        done = subprocess.run(
            command, cwd=self.folder, env={**self._environ, **environ}, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise MeasurementError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def wall(self, *command: str, **environ: str) -> list[float]:
        """Wall time of one run."""
        shutil.rmtree(self.folder / "results", ignore_errors=True)
        start = time.perf_counter()
        self.run(*command, **environ)
        return [time.perf_counter() - start]

    def cpu(self, *command: str) -> list[float]:
        """Processor time of one run, with all that it starts and waits for."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.run(*command)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return [after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime]

    def items(self, python: str, *arguments: str, **environ: str) -> Sequence[float]:
        """Run pytest; its time from item to item, without the first ones."""
        times: list[float] = self._pytest("item_clock", python, arguments, environ)
        return times[_COLD:]

    def phases(self, python: str, *arguments: str) -> dict[str, float]:
        """Run pytest with trials; median duration of every phase."""
        phases: dict[str, float] = self._pytest("trial_clock", python, arguments, {})
        return phases

    def _pytest(self, clock: str, python: str, arguments: Sequence[str], environ: dict[str, str]) -> Any:
        output = self.folder / "output.json"
        output.unlink(missing_ok=True)
        shutil.rmtree(self.folder / "results", ignore_errors=True)
        self.run(python, "-m", "pytest", "-q", "-p", clock, *arguments, BENCHMARK_OUTPUT=str(output), **environ)
        return json.loads(output.read_text())
