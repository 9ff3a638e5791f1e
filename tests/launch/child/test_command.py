"""A command as a child process: its end and its output are those that it has anywhere else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.launch.child.command import CommandProcess, Lines

ENDINGS = """
import os, signal, sys
way = sys.argv[1]
signals = {name: number for name, number in vars(signal).items() if name.startswith("SIG") and name[3] != "_"}
print("begins", flush=True)
if way in signals:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signals[way], signal.SIG_DFL) if way not in ("SIGKILL", "SIGSTOP") else None
    os.kill(os.getpid(), signals[way])
elif way.isdecimal():
    os._exit(int(way))
elif way == "raises":
    raise ValueError(way)
elif way == "text":
    sys.exit("a text")
elif way == "closes":
    os.close(1), os.close(2), os._exit(4)
elif way == "executes":
    os.execvp("sh", ["sh", "-c", "echo executed; exit 6"])
elif way == "leaves":
    if os.fork() == 0:
        import time
        while os.path.exists(sys.argv[2]):
            time.sleep(0.01)
        os._exit(0)
    os._exit(8)
elif way == "breaks":
    r, w = os.pipe()
    os.close(r)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.write(w, b"x")
print("ends")
"""

WAYS = [
    *("nothing", "raises", "text", "closes", "executes", "leaves", "breaks"),
    *("1", "77", "255", "SIGTERM", "SIGKILL", "SIGSEGV", "SIGRTMIN"),
]


def follow(words: Sequence[str]) -> tuple[int, list[str], CommandProcess]:
    lines: list[str] = []
    process = CommandProcess(words, os.environ)
    try:
        code = process.follow(lambda line, at: lines.append(line))
    finally:
        process.end()
    return code, lines, process


@pytest.mark.parametrize("way", WAYS)
def test_it_ends_as_subprocess_says(way: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    here = tmp_path / "here"  # as long as what is left behind has to run
    here.touch()
    words = [sys.executable, "-S", "-E", "-c", ENDINGS, way, str(here)]
    code, lines, process = follow(words)
    passed_on = capfd.readouterr()

    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as plain:
        assert plain.stdout is not None
        assert plain.stderr is not None
        assert code == plain.wait()
        if way != "leaves":  # what it has left holds the pipes
            stdout, stderr = plain.stdout.read().decode(), plain.stderr.read().decode()
            assert (passed_on.out, passed_on.err) == (stdout, stderr)
            assert sorted(lines) == sorted((stdout + stderr).splitlines())
            assert process.errors.decode() == stderr
    here.unlink()


def test_no_byte_is_lost_between_the_streams(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    script = """
import os
for i in range(300):
    os.write(1 + i % 2, bytes([i % 256]) * (i * 7) + b"\\n")
"""
    words = [sys.executable, "-S", "-E", "-c", script]
    code, _, _ = follow(words)
    passed_on = capfdbinary.readouterr()
    plain = subprocess.run(words, capture_output=True, check=True)
    assert code == 0
    assert (passed_on.out, passed_on.err) == (plain.stdout, plain.stderr)


def test_a_line_is_taken_when_it_is_written_and_not_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    script = "import sys; print('first', flush=True); sys.stdin = open(sys.argv[1]); sys.stdin.read(); print('last')"
    read, write = os.pipe()
    process = CommandProcess([sys.executable, "-c", script, f"/proc/{os.getpid()}/fd/{read}"], os.environ)
    seen: list[str] = []

    def take(line: str, at: float) -> None:
        seen.append(line)
        if line == "first":
            os.close(write)  # only now can it go on

    assert process.follow(take) == 0
    os.close(read)
    assert seen == ["first", "last"]


@given(st.lists(st.binary(max_size=30)), st.integers(0, 2**32))
def test_lines_do_not_depend_on_how_the_output_is_cut_into_chunks(parts: list[bytes], seed: int) -> None:
    output, source = b"\n".join(parts), random.Random(seed)
    lines = Lines()
    found = []
    rest = output
    while rest:
        size = source.randint(1, len(rest))
        found += lines.feed(rest[:size])
        rest = rest[size:]
    found += lines.close()
    expected = [part for part in output.replace(b"\r", b"\n").split(b"\n") if part]
    assert found == [part.decode(errors="replace") for part in expected]


def test_a_line_without_an_end_takes_no_more_memory_than_a_bound() -> None:
    lines = Lines()
    found = [line for _ in range(64) for line in lines.feed(b"x" * 2**14)]
    assert sum(map(len, [*found, *lines.close()])) == 64 * 2**14
    assert max(map(len, found)) <= 2**17


def test_a_program_that_cannot_be_executed_is_an_error_of_its_start() -> None:
    with pytest.raises(OSError):
        CommandProcess([os.devnull], os.environ)


def test_what_is_not_waited_for_is_ended() -> None:
    process = CommandProcess(["sleep", "1000"], os.environ)
    process.end()
    process.end()
    assert "sleep" not in [child.name() for child in psutil.Process().children()]
