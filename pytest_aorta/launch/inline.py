"""Environments given as a list of packages (``uv:...``): made once, and kept in the user's cache folder."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from pytest_aorta.common.texts import one_line, read_tail
from pytest_aorta.registry import INLINE, Environment, requirements_of

#: Seconds that an installation may take.
_LONGEST = 3600.0

#: Variables of this process that would lead an installation elsewhere.
_NOT_PASSED_ON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")

_lock = threading.Lock()

#: Errors by folder; making each environment is tried once.
_problems: dict[str, str] = {}


def is_made(environment: Environment) -> bool:
    return environment.source_package != INLINE or _complete(environment).exists()


def make(environment: Environment) -> str:
    """Make an inline environment if it does not exist; return why that failed, or an empty text.

    Uses ``uv`` if it is on ``PATH``, else ``venv`` and ``pip``. Processes and threads that make the same one wait.
    """
    if is_made(environment):
        return ""
    folder = _complete(environment).parent
    with _lock:
        if problem := _problems.get(str(folder), ""):
            return problem
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with folder.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                problem = "" if is_made(environment) else _install(folder, requirements_of(environment.name))
        except (OSError, subprocess.SubprocessError) as error:
            problem = f"cannot be made: {error}"
        if problem:
            _problems[str(folder)] = problem
            shutil.rmtree(folder, ignore_errors=True)
        return problem


def _complete(environment: Environment) -> Path:
    """The file that says that an environment is complete."""
    return Path(environment.venv or "") / "complete"


def _install(folder: Path, requirements: list[str]) -> str:
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    python, uv = str(folder / "bin" / "python"), shutil.which("uv")
    steps = [[sys.executable, "-m", "venv", str(folder)], [python, "-m", "pip", "install", *requirements]]
    if uv is not None:
        steps = [
            [uv, "venv", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--python", python, *requirements],
        ]
    environ = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        for words in steps:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environ,
                timeout=_LONGEST,
                check=False,
            )
            if done.returncode != 0:
                why = one_line(_reason_in(read_tail(log, 4000)))
                return f"{' '.join(words)!r} ended with exit code {done.returncode}: {why}; see {log}"
    (folder / "complete").touch()
    return ""


def _reason_in(output: str) -> str:
    """The last error in what pip or uv has printed, with the indented lines that explain it."""
    lines = [line for line in output.splitlines() if line.strip()]
    start = next((at for at in reversed(range(len(lines))) if "error" in lines[at].lower()), len(lines) - 1)
    explained = itertools.takewhile(lambda line: line[0].isspace(), lines[start + 1 :])
    return " ".join(map(str.strip, [*lines[max(0, start) : start + 1], *explained]))
