"""Why a process ended that sends no events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.launch.diagnosis.traces import infer_exit_reason
from pytest_aorta.trials.records import Failure

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise RuntimeError("bad")
{raised}
"""


def failure_of(folder: Path, text: str, code: int = 1) -> Failure:
    (folder / "stderr.log").write_text(text)
    return infer_exit_reason(code, None, folder / "stderr.log")


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        ("RuntimeError: bad", "RuntimeError", "bad"),
        ("torch.cuda.OutOfMemoryError: HIP out of memory: 2 GiB", "OutOfMemoryError", "HIP out of memory: 2 GiB"),
        ("KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("AssertionError: ", "AssertionError", ""),
    ],
)
def test_an_exception_is_read_from_standard_error(tmp_path: Path, raised: str, kind: str, message: str) -> None:
    said = failure_of(
        tmp_path, "a line\n" + TRACEBACK.format(raised=raised) + "[W ProcessGroup.cpp:1] Warning: not destroyed\n"
    )
    assert (said.kind, said.type, said.message) == ("exception", kind, message)
    assert said.exit_code == 1
    assert said.traceback == TRACEBACK.format(raised=raised).rstrip("\n")


def test_torchs_prefix_of_a_rank_is_no_part_of_it(tmp_path: Path) -> None:
    text = "".join(f"[rank3]: {line}\n" for line in TRACEBACK.format(raised="ValueError: no").splitlines())
    assert failure_of(tmp_path, text).type == "ValueError"


def test_of_chained_exceptions_the_last_counts(tmp_path: Path) -> None:
    first, second = (TRACEBACK.format(raised=raised) for raised in ("KeyError: 'a'", "ValueError: b"))
    text = f"{first}\nDuring handling of the above exception, another exception occurred:\n\n{second}"
    assert failure_of(tmp_path, text).message == "b"


@pytest.mark.parametrize("text", ["", "usage: train.py\n", "Traceback (most recent call last):\n  File"])
def test_without_one_there_is_the_exit_code(tmp_path: Path, text: str) -> None:
    assert failure_of(tmp_path, text) == Failure(
        phase="run", kind="exit_code", exit_code=1, message="ended itself with exit code 1"
    )


def test_a_traceback_that_was_only_logged_explains_no_other_exit_code(tmp_path: Path) -> None:
    assert failure_of(tmp_path, TRACEBACK.format(raised="ValueError: caught"), code=3).kind == "exit_code"


ABORT = """terminate called without an active exception
Fatal Python error: Aborted

Thread 0x00007f43bb7c5b80 (most recent call first):
{frame}

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""


def test_an_exception_counts_where_the_interpreter_crashes_while_it_ends(tmp_path: Path) -> None:
    text = TRACEBACK.format(raised="ValueError: bad") + ABORT.format(frame="  <no Python frame>")
    assert failure_of(tmp_path, text, code=-6) == Failure(
        phase="run",
        kind="exception",
        type="ValueError",
        message="bad",
        traceback=TRACEBACK.format(raised="ValueError: bad").rstrip("\n"),
        signal="SIGABRT",
    )


def test_a_traceback_that_was_logged_before_explains_no_other_crash(tmp_path: Path) -> None:
    logged = TRACEBACK.format(raised="ValueError: caught")
    in_a_call = ABORT.format(frame='  File "train.py", line 9 in step')
    beside_one = ABORT.format(
        frame='  <no Python frame>\n\nThread 0x1 (most recent call first):\n  File "t.py", line 1 in f'
    )
    for crash in ("", in_a_call, beside_one):
        assert failure_of(tmp_path, logged + crash, code=-6).kind == "signal"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"message": "plain"}, {"message": "plain"}),
        (
            {"message": {"message": "OSError: x: y", "extraInfo": {"py_callstack": "T"}}},
            {"type": "OSError", "message": "x: y", "traceback": "T"},
        ),
        ({"message": {"message": "a b", "extraInfo": 3}}, {"message": "a b"}),
        ({"message": {}}, {"message": ""}),
    ],
)
def test_an_error_file_comes_first(content: dict[str, object], expected: dict[str, Any]) -> None:
    assert infer_exit_reason(7, content, None) == Failure("run", "exception", exit_code=7, **expected)
