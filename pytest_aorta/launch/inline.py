"""Environments that are given by what is in them, packages or a commit: made once, kept in the user's cache folder."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

from pytest_aorta.common.texts import one_line, read_tail
from pytest_aorta.registry import INLINE, Environment, is_over_ours, requirements_of

#: Seconds that an installation may take.
_LONGEST = 3600.0

#: Working trees of commits that are kept: those that were used last.
_TREES = 128

#: Variables of this process that would lead an installation elsewhere.
_NOT_PASSED_ON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")

_lock = threading.Lock()

#: Errors by folder; making each environment is tried once.
_problems: dict[str, str] = {}


def is_made(environment: Environment) -> bool:
    return environment.source_package != INLINE or _complete(environment).exists()


def make(environment: Environment) -> str:
    """Make an inline environment if it does not exist; return why that failed, or an empty text.

    Packages by ``uv``, where it is on ``PATH``, else by ``venv`` and ``pip``; commits by ``git clone --shared``, which
    leaves their repository as it is. Processes and threads wait for each other.
    """
    if is_made(environment):
        if environment.commit is not None:
            os.utime(_complete(environment))
        return ""
    folder = _complete(environment).parent
    with _lock:
        if problem := _problems.get(str(folder), ""):
            return problem
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with folder.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                problem = "" if is_made(environment) else _fill(folder, environment)
        except (OSError, subprocess.SubprocessError) as error:
            problem = f"cannot be made: {error}"
        if problem:
            _problems[str(folder)] = problem
            shutil.rmtree(folder, ignore_errors=True)
        return problem


def _complete(environment: Environment) -> Path:
    """The file that says that an environment is complete."""
    return Path(environment.venv or os.path.dirname(environment.folder or "")) / "complete"


def _fill(folder: Path, environment: Environment) -> str:
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    if environment.commit is None:
        return _install(folder, requirements_of(environment.name), over=is_over_ours(environment.name))
    folder.mkdir()
    tree, repository = str(environment.folder), str(environment.repository)
    steps = [
        ["git", "clone", "--quiet", "--shared", "--no-checkout", repository, tree],
        ["git", "-C", tree, "checkout", "--quiet", "--detach", environment.commit],
        *([["sh", "-c", f'cd "$0" && {environment.build}', tree]] if environment.build else []),
    ]
    problem = _run_steps(steps, folder.with_suffix(".log"))
    if not problem:
        (folder / "complete").touch()
        others = sorted(folder.parent.glob("*/complete"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in others[_TREES:]:
            shutil.rmtree(path.parent, ignore_errors=True)
    return problem


def _install(folder: Path, requirements: list[str], *, over: bool) -> str:
    """``over``: the packages of this Python as well, below these; so the latter come without what they depend on."""
    python, uv = str(folder / "bin" / "python"), shutil.which("uv")
    words = [*["--no-deps"] * over, *requirements]
    steps = [[sys.executable, "-m", "venv", str(folder)], [python, "-m", "pip", "install", *words]]
    if uv is not None:
        steps = [
            [uv, "venv", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--python", python, *words],
        ]
    problem = _run_steps(steps, folder.with_suffix(".log"))
    if not problem:
        if over:
            own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
            ours = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
            # Not the folder alone: addsitedir also reads its .pth files, as those of editable packages.
            calls = "; ".join(f"site.addsitedir({each!r})" for each in ours)
            (own / "ours.pth").write_text(f"import site; {calls}\n")
        (folder / "complete").touch()
    return problem


def _run_steps(steps: list[list[str]], log: Path) -> str:
    """Why one of these commands has failed, else empty."""
    environ = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
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
                said = words[2].partition("&& ")[2] if words[0] == "sh" else " ".join(words)
                return f"{said!r} ended with exit code {done.returncode}: {why}; see {log}"
    return ""


def _reason_in(output: str) -> str:
    """The last error in what pip or uv has printed, with the indented lines that explain it."""
    lines = [line for line in output.splitlines() if line.strip()]
    start = next((at for at in reversed(range(len(lines))) if "error" in lines[at].lower()), len(lines) - 1)
    explained = itertools.takewhile(lambda line: line[0].isspace(), lines[start + 1 :])
    return " ".join(map(str.strip, [*lines[max(0, start) : start + 1], *explained]))
