"""A command as a child process, whose end and output are those that it has anywhere else; and its result."""

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

from pytest_aorta.launch.child.command import CommandProcess, Lines, command_failure, command_result
from pytest_aorta.trials.output import OutputFindings, OutputRules

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


def test_what_is_not_waited_for_is_ended() -> None:
    process = CommandProcess(["sleep", "1000"], os.environ)
    process.end()
    process.end()
    assert "sleep" not in [child.name() for child in psutil.Process().children()]


# What it has failed of: its end, or what it has said.

LOSS = r"loss (?P<loss>\S+)"
RAISED = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: bad\n'


def said(lines: list[str], rules: OutputRules) -> OutputFindings:
    found = OutputFindings(rules)
    for at, line in enumerate(lines):
        found.take(line, at)
    return found


def test_the_first_reason_decides() -> None:
    cases: list[tuple[int, list[str], OutputRules, str | None]] = [
        (0, ["fine"], OutputRules(), None),
        (0, ["loss nan"], OutputRules(fail_on=("nan|inf",)), "its output matches 'nan|inf': loss nan"),
        (7, ["loss nan"], OutputRules(fail_on=("nan|inf",)), "its output matches 'nan|inf': loss nan"),
        (7, ["nan", "fine"], OutputRules(fail_on=("nan",), pass_on=("fine",)), "its output matches 'nan': nan"),
        (7, [" fine"], OutputRules(pass_on=("^ *fine$",)), "ended itself with exit code 7: fine"),
        (7, ["other"], OutputRules(pass_on=("fine",)), "ended itself with exit code 7: other"),
        (0, [" fine"], OutputRules(pass_on=("^ *fine$",)), None),
        (0, ["other"], OutputRules(pass_on=("a", "b")), "no line of its output matches 'a' or 'b'"),
        (7, ["step 3 loss 0.5"], OutputRules(fail_on=("nan",)), "ended itself with exit code 7"),
        (0, ["loss nan"], OutputRules(metric=(LOSS,), allow_nonfinite=("loss",)), None),
        (0, ["loss nan"], OutputRules(metric=(LOSS,)), "loss is nan"),
        (0, ["loss inf"], OutputRules(metric=(LOSS,), pass_on=("loss",)), "loss is inf"),
        (-11, ["fine"], OutputRules(pass_on=("fine",)), "ended by SIGSEGV"),
        (-9, ["nan"], OutputRules(fail_on=("nan",)), "ended by SIGKILL"),
        (
            77,
            ["fine"],
            OutputRules(),
            "ended itself with exit code 77: fine",
        ),  # of which the outcome is decided elsewhere
        (1, ["no gpus"], OutputRules(skip_on=("no gpu",)), "cannot judge: no gpus"),
        (0, ["no gpus"], OutputRules(skip_on=("no gpu",), pass_on=("no",)), "cannot judge: no gpus"),
        (0, ["no gpus", "bad"], OutputRules(skip_on=("no gpu",), fail_on=("bad",)), "its output matches 'bad': bad"),
        (0, ["fine"], OutputRules(metric=("(?P<step>x)",)), None),
        (0, ["fine"], OutputRules(metric=("(?P<step>x)",), pass_on=("fine",)), None),
        (0, ["loss nan"], OutputRules(fail_on_nonfinite=True), "its output says nan: loss nan"),
        (-9, ["3/9"], OutputRules(metric=(r"(?P<step>\d+)/(?P<total>\d+)",)), "ended by SIGKILL, after step 3 of 9"),
    ]
    for code, lines, rules, message in cases:
        failure = command_failure(code, said(lines, rules), "")
        assert (failure and failure.message) == message
        result = command_result(code, said(lines, rules), "", 1.5)
        assert (result.passed, result.metrics["returncode"]) == (failure is None, code)


def test_an_exception_that_does_not_fail_the_program_is_told() -> None:
    lines = ["step 1 loss 0.5", *RAISED.splitlines(), "step 2 loss 0.4", "[rank1]: Traceback (most recent call last):"]
    lines += ["[rank1]:   File 'a.py', line 3, in f", "step 3 loss 0.3", "[rank1]: a.Error: shapes differ in batch 5"]
    seen = command_result(0, said(lines, OutputRules()), "", 1.5).output["detected"]
    assert seen == {"traceback": {"lines": 2, "first": "ValueError: bad"}}
    assert command_result(1, said(lines, OutputRules()), RAISED, 1.5).output["detected"] == {}
    failure = command_failure(0, said(lines, OutputRules(fail_on=("@traceback",))), "")
    assert failure is not None
    assert failure.message == "its output matches '@traceback': ValueError: bad"


def test_an_exception_is_read_from_what_it_has_printed() -> None:
    failure = command_failure(1, said(["step 3"], OutputRules(metric=(r"step (?P<step>\d+)",))), RAISED)
    assert failure is not None
    assert (failure.kind, failure.type, failure.message, failure.exit_code) == (
        *("exception", "ValueError", "bad"),
        1,
    )
