"""Probes that may fail, one by one, without taking the others or the trial with them; the files and tools they ask."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Facts = dict[str, Any]

_LONGEST_MESSAGE = 300


def printable(text: str) -> str:
    r"""``text`` as an exact ``str`` that encodes as UTF-8: the byte 0xff, a lone surrogate here, becomes ``\udcff``."""
    text = str(text)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def plain_data(value: object) -> Any:
    """``value`` rebuilt from dict, list, str, int, float, bool and None; NaN and infinities become their names."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return dict(zip(map(printable, map(str, value)), map(plain_data, value.values()), strict=True))
    if isinstance(value, list | tuple):
        return list(map(plain_data, value))
    if isinstance(value, set | frozenset):
        return sorted(map(plain_data, value), key=str)
    return printable(str(value))


def describe(probe: str, error: BaseException) -> str:
    """``probe: ExceptionType: message`` on one line, at most about 300 characters."""
    try:
        message = printable(" ".join(str(error).split()))
    except Exception:
        message = "(no message)"  # an exception whose __str__ raises is still an exception with a type
    if len(message) > _LONGEST_MESSAGE:
        message = message[: _LONGEST_MESSAGE - 3] + "..."
    return f"{probe}: {type(error).__name__}: {message}"


@dataclass
class Guard:
    reasons: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def probe(self, name: str) -> Iterator[None]:
        """An ``Exception`` in this block is a reason, and ends no more than the block."""
        try:
            yield
        except Exception as error:
            self.reasons.append(describe(name, error))

    def facts(self, section: str, probes: Mapping[str, Callable[[], object]]) -> Facts:
        """One plain value per name; ``None``, and a reason under ``section.name``, for those whose probe raised."""
        facts: Facts = {}
        for name, probe in probes.items():
            facts[name] = None
            with self.probe(f"{section}.{name}"):
                facts[name] = plain_data(probe())
        return facts


def read_text(file: str | os.PathLike[str]) -> str:
    """The text of a small file; empty where there is none."""
    try:
        with open(file, "rb", buffering=0) as opened:
            return opened.read().decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""


def first_line(file: str | os.PathLike[str]) -> str | None:
    return read_text(file).partition("\n")[0].strip() or None


def keyed_lines(file: str | os.PathLike[str], separator: str = ":") -> dict[str, str]:
    values: dict[str, str] = {}
    for line in read_text(file).splitlines():
        key, separates, value = line.partition(separator)
        if separates:
            values.setdefault(key.strip(), value.strip())
    return values


# What a trial sets for itself must not reach the tools that describe its machine: a preloaded library or another
# Python path breaks them, and GIT_DIR (set while git runs a hook) makes git answer about another repository.
_NOT_FOR_TOOLS = ("GIT_", "LD_AUDIT", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH")

_KILL_GRACE_SEC = 1.0


class ToolFailed(RuntimeError): ...


class ToolTimedOut(ToolFailed): ...


def ask(argv: Sequence[str], timeout_sec: float, extra_env: Mapping[str, str] | None = None) -> str:
    """Run ``argv`` and return what it prints; waits also for everything that holds its output open.

    Starts no threads. After ``timeout_sec`` seconds the tool's process group is killed.

    Raises:
        ToolTimedOut: it gave no answer in time.
        ToolFailed: its exit code is not 0; the message has its whole output.
        OSError: it cannot be started.
    """
    environ = dict(os.environ)
    for name in os.environ:
        if name.startswith(_NOT_FOR_TOOLS):
            del environ[name]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environ, "LC_ALL": "C", **(extra_env or {})},
        cwd="/",
        start_new_session=True,
        encoding="utf-8",
        errors="replace",
    )
    # Not subprocess.run(): after its timeout it waits for the killed process without a limit, and a process stuck in a
    # wedged GPU's driver does not die.
    try:
        stdout, stderr = process.communicate(timeout=timeout_sec)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
        left = ""
        try:
            process.wait(timeout=_KILL_GRACE_SEC)
        except subprocess.TimeoutExpired:
            left = f"; process {process.pid} did not die of SIGKILL"
        if isinstance(error, subprocess.TimeoutExpired):
            raise ToolTimedOut(f"{argv[0]} gave no answer within {timeout_sec:g} s{left}") from None
        raise
    if process.returncode != 0:
        said = (stderr.strip() or stdout.strip()).replace("\n", "; ")
        raise ToolFailed(f"{os.path.basename(argv[0])} exited with {process.returncode}{': ' if said else ''}{said}")
    return stdout
