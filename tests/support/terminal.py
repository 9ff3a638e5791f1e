"""A terminal with a screen, on which pytest runs as a user sees it: a pseudo-terminal, and pyte, which emulates one."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import termios
from collections.abc import Callable
from typing import TextIO

import pytest

from support.processes import PATIENCE, wait_until
from support.stage import PYTEST, Argument, Stage

pyte = pytest.importorskip("pyte")


class Terminal:
    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self._master, self.slave = os.openpty()
        self.screen = pyte.HistoryScreen(columns, lines, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        #: All that was written.
        self.written = b""
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def file(self) -> TextIO:
        """For writing to it from this process, as pytest writes to its own."""
        return os.fdopen(os.dup(self.slave), "w", buffering=1, encoding="utf-8")

    def read(self) -> None:
        while select.select([self._master], [], [], 0)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other end was closed by all
                return
            if not data:
                return
            self.written += data
            self._stream.feed(data)

    def lines(self) -> list[str]:
        """What is on the screen now, without what is empty below it."""
        self.read()
        return _without_empty([line.rstrip() for line in self.screen.display])

    def transcript(self) -> list[str]:
        shown = self.lines()
        columns = range(self.screen.columns)
        above = ["".join(line[column].data for column in columns).rstrip() for line in self.screen.history.top]
        found = [*above, *shown]
        while found and not found[-1]:  # as of those on the screen
            found.pop()
        return found

    def wait_until(self, condition: Callable[[list[str]], object]) -> list[str]:
        seen: list[list[str]] = []

        def is_so() -> object:
            seen[:] = [self.lines()]
            return condition(seen[0])

        try:
            wait_until(is_so)
        except AssertionError:
            raise AssertionError("\n".join(["the screen is", *seen[0]])) from None
        return seen[0]

    def wait_for(self, *texts: str) -> list[str]:
        """Wait until its last lines have these texts, one each; all lines."""
        return self.wait_until(
            lambda lines: (
                len(lines) >= len(texts)
                and all(text in line for text, line in zip(texts, lines[-len(texts) :], strict=True))
            )
        )

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def close(self) -> None:
        os.close(self.slave)
        os.close(self._master)


def _without_empty(lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines.pop()
    return lines


def start_pytest(stage: Stage, terminal: Terminal, *arguments: Argument, **env: str) -> subprocess.Popen[bytes]:
    size = {"COLUMNS": str(terminal.screen.columns), "LINES": str(terminal.screen.lines)}
    variables = {"TERM": "xterm", "CI": "", "BUILD_NUMBER": "", **size, **env}
    output = {"stdout": terminal.slave, "stderr": terminal.slave}
    return stage.start_command(*PYTEST, *arguments, env=variables, **output)


def finish(process: subprocess.Popen[bytes], terminal: Terminal) -> list[str]:
    """Wait for its end; all that it has left on the terminal."""
    terminal.wait_until(lambda lines: process.poll() is not None)
    process.wait(PATIENCE)
    return terminal.transcript()
