"""Signatures of records, without running trials; test_triage_real_failures.py has those of real ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import record

from pytest_aorta.triage.signatures import Signature, signature_of

RUNNER = '  File "/venv/lib/python3.11/site-packages/pytest_aorta/trials/lifecycle.py", line 79, in run\n'
STEP = '  File "/home/me/train.py", line 88, in step\n    loss.backward()\n'
TORCH = '  File "/venv/lib/python3.11/site-packages/torch/_tensor.py", line 522, in backward\n'
HEADING = "Traceback (most recent call last):\n"

CRASH = """\
Fatal Python error: Segmentation fault

Thread 0x00007f0000000001 (most recent call first):
  File "/home/me/loader.py", line 5 in work

Current thread 0x00007f0000000000 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/nn/functional.py", line 20 in linear
  File "/home/me/train.py", line 88 in step
  File "/venv/lib/python3.11/site-packages/pytest_aorta/trials/lifecycle.py", line 79 in run
  File "/home/me/.local/bin/pytest", line 8 in <module>

"""

NATIVE = """\
Current thread's C stack trace (most recent call first):
  Binary file "/usr/lib/libpython3.14.so", at _Py_DumpStack+0x1f [0x7f1]
  Binary file "/usr/lib/libc.so.6", at +0x3c050 [0x7f2]
  Binary file "/opt/rocm/lib/libhipblaslt.so.0", at hipblasLtMatmul+0x2a [0x7f3]
"""


def failed(kind: str = "exception", phase: str = "run", status: str = "workload_failed", **more: Any) -> dict[str, Any]:
    failure = {"kind": kind, "phase": phase, **more}
    return record(exit_status=status, failure=failure, request={"workload": {"target": "/home/me/train.py:Train"}})


def signature(*arguments: Any, **more: Any) -> Signature:
    found = signature_of(failed(*arguments, **more))
    assert found is not None
    return found


def raised(type_: str, message: str, frames: str = RUNNER + STEP + TORCH, **more: Any) -> Signature:
    return signature(type=type_, message=message, traceback=f"{HEADING}{frames}{type_}: {message}\n", **more)


def test_a_trial_that_is_ok_has_none() -> None:
    assert signature_of(record()) is None
    assert signature_of(failed(phase="cleanup", status="ok")) is None


def test_an_exception_is_placed_in_the_users_code() -> None:
    found = raised("RuntimeError", "loss is nan at step 17")
    assert found == Signature("exception", "run", "RuntimeError", "", "train.py:88 in step", "loss is nan at step #")


def crash(name: str, text: str) -> Signature:
    return signature("signal", signal=name, message=f"ended by {name} in run(), after step 7", traceback=text)


def hang(kind: str, message: str) -> Signature:
    return signature(kind, status="timeout", message=message)


def test_the_text_of_a_failure() -> None:
    cases: list[tuple[Signature, str]] = [
        (raised("RuntimeError", "loss is nan at step 17"), "loss is nan at step # (train.py:88 in step)"),
        # The type is shown where the message alone says less.
        (raised("KeyError", "'a'"), "KeyError: 'a' (train.py:88 in step)"),
        (raised("KeyError", ""), "KeyError (train.py:88 in step)"),
        (raised("SystemExit", "sys.exit('no 3')", exit_code="no 3"), "sys.exit('no #') (train.py:88 in step)"),
        # In the thread that has crashed, in the innermost function that is known.
        (crash("SIGSEGV", CRASH), "SIGSEGV in linear (train.py:88 in step)"),
        (crash("SIGSEGV", CRASH + NATIVE), "SIGSEGV in hipblasLtMatmul (train.py:88 in step)"),
        (signature("signal", "launch", signal="SIGKILL", message="..."), "SIGKILL in launch"),
        *(
            (crash("SIGABRT", f"{said}\n{CRASH}"), f"SIGABRT: {message} (train.py:88 in step)")
            for said, message in {
                "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error 7": "CUDA error 7",
                "terminate called without an active exception": "terminate called without an active exception",
                "double free or corruption (out)": "heap corruption",
                "*** stack smashing detected ***: terminated": "*** stack smashing detected ***",
                "a.out: x.c:12: main: Assertion `n > 0' failed.": "Assertion `n > #' failed",
                "Memory access fault by GPU node-1 (Agent handle: 0x55) on address 0x7f. Reason: Unknown.": (
                    "Memory access fault by GPU"
                ),
            }.items()
        ),
        *(
            (hang(kind, f"{message}{location}"), f"{kind}{where}")
            for kind, message in {
                "timeout": "the deadline of 8 s passed in run(), after step 3 of 10",
                "stall": "no progress for 5 s in run()",
            }.items()
            for location, where in {
                "": " in run()",
                "; step() at train.py line 88": " (train.py:88 in step)",
                "; all_reduce in step() at train.py line 88": " in all_reduce (train.py:88 in step)",
                "; train.py line 3": " (train.py:3)",
            }.items()
        ),
    ]
    for found, text in cases:
        assert found.text == text


def test_which_code_is_the_users() -> None:
    cases: list[tuple[str, str, bool]] = [
        ("/home/me/train.py", "", True),
        ("/home/me/pytest_aorta/train.py", "", True),
        ("/usr/lib/python3.11/json/decoder.py", "/home/me/train.py:Train", False),
        ("/venv/lib/python3.11/site-packages/torch/nn/functional.py", "train:Train", False),
        ("/usr/lib/python3/dist-packages/yaml/reader.py", "train:Train", False),
        ("<frozen importlib._bootstrap>", "train:Train", False),
        ("/venv/lib/python3.11/site-packages/mine/loops/train.py", "mine.cli:Train", True),
        ("/venv/lib/python3.11/site-packages/mine.py", "mine:Train", True),
        ("/venv/lib/python3.11/site-packages/mine_other/train.py", "mine.cli:Train", False),
        ("/venv/lib/python3.11/site-packages/train.py", "/venv/lib/python3.11/site-packages/train.py:Train", True),
    ]
    for file, target, is_own in cases:
        trial = failed(type="E", traceback=f'{HEADING}{RUNNER}  File "{file}", line 3, in f\nE\n')
        trial["request"]["workload"]["target"] = target
        found = signature_of(trial)
        assert found is not None
        assert bool(found.where) == is_own


def test_an_exception_says_with_which_it_began() -> None:
    first = f"{HEADING}{RUNNER}{STEP.replace('88', '80')}ZeroDivisionError: division by zero\n"
    for link in (
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    ):
        text = f"{first}\n{link}\n\n{HEADING}{RUNNER}{STEP}mine.StepError: step 7\n"
        found = signature(type="StepError", message="step 7", traceback=text)
        assert found.cause == "ZeroDivisionError: division by zero (train.py:80 in step)"
        assert found.text == f"StepError: step # (train.py:88 in step) after {found.cause}"


def test_an_exit_code_is_told_apart_by_what_the_output_says_but_for_that_of_a_rank() -> None:
    def said(**more: Any) -> str:
        trial = failed("exit_code", exit_code=1, **more)
        trial["result"]["output"] = {"detected": {"oom": {"lines": 1}, "assert": {"lines": 2}}}
        found = signature_of(trial)
        assert found is not None
        return found.text

    assert said() == "exit code 1 (oom) in run()"
    assert said(rank=1) == "exit code 1 in run() of a rank"  # the lines are of all ranks


KILLED = "DataLoader worker (pid 3217) is killed by signal: Bus error. It is possible that"
GONE = "DataLoader worker (pid(s) 3217, 3220) exited unexpectedly"
SAID = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."


def test_a_worker_that_a_signal_has_ended_is_one_signature() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"kind": "exception", "type": "RuntimeError", "message": KILLED, "traceback": HEADING + STEP}, ""),
        ({"kind": "exception", "type": "RuntimeError", "message": GONE, "traceback": f"RuntimeError: {KILLED}\n"}, ""),
        ({"kind": "exception", "type": "RuntimeError", "message": GONE}, SAID),
        ({"kind": "exception", "type": "ConnectionResetError", "message": "[Errno 104] reset by peer"}, SAID),
        ({"kind": "exception", "type": "EOFError", "message": ""}, SAID),
        ({"kind": "exit_code", "exit_code": 1, "message": "ended itself with exit code 1: bye"}, SAID),
        ({"kind": "signal", "signal": "SIGBUS", "message": "ended by SIGBUS"}, SAID),
    ]
    for failure, said in cases:
        trial = failed(**failure)
        trial["result"]["output"] = {"detected": {"worker": {"lines": 1, "first": said}} if said else {}}
        found = signature_of(trial)
        assert found is not None
        assert found.text == "a DataLoader worker ended: bus error"
        trial["failure"] |= {"kind": "exception", "type": "ValueError", "message": "loss is nan"}  # of something else
        assert "worker" not in getattr(signature_of(trial), "text", "worker")


def test_what_a_program_says_last_tells_exit_codes_apart() -> None:
    messages = [
        "ended itself with exit code 1, after step 3 of 9: checksum mismatch: 3 != 7",
        "ended itself with exit code 1",
    ]
    texts = [signature("exit_code", exit_code=1, message=message).text for message in messages]
    assert texts == ["exit code 1: checksum mismatch: # != #", "exit code 1 in run()"]


@pytest.mark.parametrize(("blamed", "where"), [(1, "train.py:12 in load"), (None, "train.py:88 in step")])
def test_a_hang_of_ranks_is_that_of_the_one_that_others_wait_for(blamed: int | None, where: str) -> None:
    message = "the deadline of 8 s passed in run(); {} (last: gloo:all_reduce number 5)"
    places = ("all_reduce in step() at train.py line 88", "load() at train.py line 12")
    trial = failed("timeout", status="timeout", rank=blamed, message=f"...; rank 0: {places[0]}; rank 1: {places[1]}")
    trial["ranks"] = [
        {"rank": rank, "failure": {"kind": "timeout", "message": message.format(place)}}
        for rank, place in enumerate(places)
    ]
    found = signature_of(trial)
    assert found is not None
    assert (found.where, found.role) == (where, "rank")


def test_a_failed_result_has_the_words_of_its_first_detail() -> None:
    cases: list[tuple[list[dict[str, Any]], str]] = [
        ([], "passed=False"),
        ([{"iteration": 3, "max_abs_diff": 0.5}], "passed=False"),
        ([{"note": "12 bytes were cut"}], "passed=False"),
        ([{"iteration": 3, "operation": "matmul", "kind": "non_finite"}], "non_finite, operation matmul"),
        ([{"kind": "rank_lost", "rank": 3, "error": "OSError: pid 4711"}], "rank_lost, OSError: pid #"),
    ]
    for details, text in cases:
        message = "run() returned passed=False, 3 failure(s), first at iteration 7"
        trial = {**failed("result", message=message), "result": {"passed": False, "failure_details": details}}
        assert getattr(signature_of(trial), "text", None) == text


def test_which_rank_has_failed_does_not_matter() -> None:
    text = f"{HEADING}{RUNNER}{STEP}ValueError: loss is nan\n"
    one, other = (
        signature(type="ValueError", message=f"rank {rank}: loss is nan", traceback=text, rank=rank) for rank in (0, 3)
    )
    assert one == other
    assert (one.role, one.message) == ("rank", "loss is nan")
    assert signature("signal", signal="SIGKILL", rank=2).text == "SIGKILL in run() of a rank"


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ("workload_failed", "non_finite"),
        ("timeout", "timeout in run()"),
        ("infrastructure_failed", "exception"),
    ],
)
def test_a_record_of_aortas_own_has_the_words_of_its_result(status: str, text: str) -> None:
    trial = record(exit_status=status, result={"passed": False, "failure_details": [{"kind": "non_finite"}]})
    found = signature_of(trial)
    assert found is not None
    assert found.text == text


def test_a_user_names_what_belongs_together() -> None:
    """By what is shown, by any line of the message, by the traceback, and by what a result says; the first counts."""
    rules = [
        ("cable", "^reason: pulled"),
        ("link", "link .* is down"),
        ("link", "in backward$"),
        ("link", "down: \\d+"),
    ]
    text = f"{HEADING}{STEP}{TORCH}ValueError: x\n"
    result = {"passed": False, "failure_details": [{"error": "down: 12"}]}
    trials = [
        failed(type="OSError", message="link 3 is down"),
        failed("signal", signal="SIGABRT", message="ended by SIGABRT", traceback=text),
        {**failed("result", message="passed=False"), "result": result},
        failed(type="OSError", message="link 3 is down\nreason: pulled"),
        failed(type="OSError", message="link 3 is up"),
    ]
    found = [signature_of(trial, rules) for trial in trials]
    assert found[0] == found[1] == found[2] == Signature("named", "", message="link")
    assert [each.text for each in found if each] == ["link", "link", "link", "cable", "OSError: link # is up"]
    assert signature_of(record(), rules) is None


@given(st.text(max_size=400), st.text(max_size=400), st.sampled_from(["exception", "signal", "timeout", "result"]))
def test_a_signature_is_one_short_line_whatever_a_trial_writes(message: str, text: str, kind: str) -> None:
    frames = (
        f'{HEADING}  File "{text}", line 3, in {message}\n{message}\nCurrent thread 0x1 (most recent call first):\n'
    )
    details = [{"kind": message, text: text}]
    trial = failed(kind, type=message, message=message, traceback=frames + text, signal=text)
    found = signature_of({**trial, "result": {"passed": False, "failure_details": details}})
    assert found is not None
    assert found.text.isprintable()
    assert len(found.text) <= 260
