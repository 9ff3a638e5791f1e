"""What is read from stacks, tracebacks and logs: where a process was, why it ended, and whether a peer was to blame."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.launch.diagnosis.traces import (
    complaint_in,
    crash_text,
    imports_a_library,
    infer_exit_reason,
    last_line,
    last_words,
    locate,
    read_dump,
    relation_to_a_peer,
)
from pytest_aorta.trials.records import Failure
from pytest_aorta.trials.tracebacks import Frame, stacks_excerpt

TORCH = "/venv/lib/python3.11/site-packages/torch"

# Where a process was.

#: A rank in a collective, with a thread of torch's beside it; then another process's dump.
DUMP = f"""\
Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f0000000002 (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "{TORCH}/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/me/steps.py", line 88 in step
  File "/home/me/fsdp.py", line 12 in run
  File "/venv/lib/python3.11/site-packages/pytest_aorta/trials/lifecycle.py", line 58 in <lambda>
  File "<string>", line 1 in <module>
Thread 0x00007f0000000003 (most recent call first):
  File "/home/me/other.py", line 1 in other
"""
INSTALLED = "/venv/lib/python3.11/site-packages/aorta_workloads/fsdp.py"
OF_INSTALLED = DUMP.replace("/home/me/steps.py", INSTALLED).replace("/home/me/fsdp.py", INSTALLED)
IMPORT = """\
Current thread 0x1 (most recent call first):
  File "/x/hang.py", line 9 in <module>
  File "<frozen importlib._bootstrap>", line 241 in _call
"""


def dumped(path: Path, text: str) -> list[list[Frame]]:
    (path / "stacks.log").write_text(text)
    return read_dump(path / "stacks.log")


@pytest.mark.parametrize(
    ("dump", "source", "text"),
    [
        (DUMP, None, "all_reduce in step() at steps.py line 88"),
        (IMPORT, None, "hang.py line 9"),
        (OF_INSTALLED, INSTALLED, "all_reduce in step() at fsdp.py line 88"),
        # Unknown, it looks like any library, and the innermost call counts.
        (OF_INSTALLED, None, "all_reduce() at distributed_c10d.py line 2806"),
        ("", None, None),
        ("Fatal Python error\n", None, None),
        ("\x00\xff", None, None),
        ("Thread 0x1 (most recent call first):\n", None, None),
    ],
)
def test_the_location_is_a_frame_of_the_workload(
    tmp_path: Path, dump: str, source: str | None, text: str | None
) -> None:
    location = locate(dumped(tmp_path, dump), source)

    assert (location and location.text) == text
    assert (location and location.collective) == ("all_reduce" if text and "all_reduce" in text else None)


#: Two threads that wait for each other's locks, a third that takes one in another way, and the main thread.
DEADLOCK = """\
import faulthandler, signal, sys, threading, time
a, b, taken = threading.Lock(), threading.RLock(), threading.Barrier(2)
def left():
    with a:
        taken.wait()
        with b: pass
def right():
    with b:
        taken.wait()
        with open(__file__), a:
            pass
def third():
    time.sleep(0.2)
    a.acquire(timeout=60)
threads = [threading.Thread(target=each, daemon=True) for each in (left, right, third)]
for thread in threads: thread.start()
faulthandler.register(signal.SIGALRM, open(sys.argv[1], "w"), chain=True)
signal.setitimer(signal.ITIMER_REAL, 0.6)
if sys.argv[2] == "waits": threads[0].join()
while sys.argv[2] == "works": pass
with a: pass
"""


@pytest.mark.parametrize(
    ("main", "text"),
    [
        ("waits", "left waits for lock b at hang.py:6, third for lock a at :14"),
        ("works", "hang.py line 20"),
        ("takes", "left waits for lock b at hang.py:6, third for lock a at :14, main for lock a at :21"),
    ],
)
def test_where_all_wait_for_locks_each_is_named(tmp_path: Path, main: str, text: str) -> None:
    (tmp_path / "hang.py").write_text(DEADLOCK)
    stacks = tmp_path / "stacks.log"
    subprocess.run([sys.executable, tmp_path / "hang.py", stacks, main], check=False)
    location = locate(read_dump(stacks))
    assert location is not None
    assert location.text == text
    excerpt = "\n".join(stacks_excerpt(stacks))
    assert excerpt.count("(most recent call first):") == 4
    assert "line 6 in left\n" in excerpt
    assert "_bootstrap" not in excerpt


def test_it_reads_what_this_interpreter_writes(tmp_path: Path) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="a name (of its own)")
    thread.start()
    with (tmp_path / "stacks.log").open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        faulthandler.dump_traceback(file, all_threads=True)
    over.set()
    thread.join()

    threads = read_dump(tmp_path / "stacks.log")

    assert [frames[0].name for frames in threads].count("test_it_reads_what_this_interpreter_writes") == 1
    assert threads[-1][0].name == "test_it_reads_what_this_interpreter_writes"
    location = locate(threads)
    assert location is not None
    assert location.text.startswith("test_it_reads_what_this_interpreter_writes() at test_traces.py line ")


# What a process has written as it crashed.

STACKS = 'Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File "a.py", line 1 in run'
TERMINATE = "terminate called after throwing an instance of 'E'\n  what():  no\n"
GPU_FAULT = "Memory access fault by GPU node-1. Reason: Unknown."


@pytest.mark.parametrize(
    ("log", "text"),
    [
        ("step 3, loss 0.5\n", None),
        (f"step 3, loss 0.5\n{STACKS}\n", STACKS),
        (f"free(): invalid pointer\n{STACKS}\n", f"free(): invalid pointer\n{STACKS}"),
        ("free(): a word of the workload's\n" + "step\n" * 100 + STACKS, STACKS),
        (f"{TERMINATE}frame #0: f\n{STACKS}\n", TERMINATE + STACKS),
        (f"{GPU_FAULT}\n", GPU_FAULT),
        (f"{STACKS}\n{STACKS}, again\n", f"{STACKS}, again"),
        (f"[rank1]: {STACKS}\n", f"[rank1]: {STACKS}"),
    ],
)
def test_what_a_process_has_written_as_it_crashed(tmp_path: Path, log: str, text: str | None) -> None:
    path = tmp_path / "stderr.log"
    path.write_text(log)
    assert crash_text(path) == text


# Why a process ended that sends no events.

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
@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_the_last_exception_is_read_from_standard_error(
    tmp_path: Path, prefix: str, raised: str, kind: str, message: str
) -> None:
    last = TRACEBACK.format(raised=raised)
    text = f"a line\n{TRACEBACK.format(raised='KeyError: 1')}\nDuring handling of the above exception, ...:\n\n{last}"
    text = "".join(f"{prefix}{line}\n" for line in text.splitlines())
    said = failure_of(tmp_path, f"{text}[W ProcessGroup.cpp:1] Warning: not destroyed\n")
    assert (said.kind, said.type, said.message) == ("exception", kind, message)
    assert said.exit_code == 1
    assert said.traceback == last.rstrip("\n")


CAUGHT = TRACEBACK.format(raised="ValueError: caught")


@pytest.mark.parametrize(
    ("text", "code"), [("usage: train.py\n", 1), ("Traceback (most recent call last):\n  File", 1), (CAUGHT, 3)]
)
def test_without_one_or_where_it_was_only_logged_there_is_the_exit_code(tmp_path: Path, text: str, code: int) -> None:
    message = f"ended itself with exit code {code}"
    assert failure_of(tmp_path, text, code) == Failure("run", "exit_code", message, exit_code=code)


ABORT = """terminate called without an active exception
Fatal Python error: Aborted

Thread 0x00007f43bb7c5b80 (most recent call first):
{frame}

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""


def test_of_a_crash_an_exception_counts_where_the_interpreter_was_ending(tmp_path: Path) -> None:
    text = CAUGHT + ABORT.format(frame="  <no Python frame>")
    failure = failure_of(tmp_path, text, code=-6)
    assert (failure.kind, failure.type, failure.message) == ("exception", "ValueError", "caught")
    assert (failure.traceback, failure.signal) == (CAUGHT.rstrip("\n"), "SIGABRT")

    in_a_call = ABORT.format(frame='  File "train.py", line 9 in step')
    beside_one = ABORT.format(
        frame='  <no Python frame>\n\nThread 0x1 (most recent call first):\n  File "t.py", line 1 in f'
    )
    for crash in ("", in_a_call, beside_one):
        assert failure_of(tmp_path, CAUGHT + crash, code=-6).kind == "signal"


def test_an_error_file_comes_first() -> None:
    cases: list[tuple[dict[str, object], dict[str, Any]]] = [
        ({"message": "plain"}, {"message": "plain"}),
        (
            {"message": {"message": "OSError: x: y", "extraInfo": {"py_callstack": "T"}}},
            {"type": "OSError", "message": "x: y", "traceback": "T"},
        ),
        ({"message": {"message": "a b", "extraInfo": 3}}, {"message": "a b"}),
        ({"message": {}}, {"message": ""}),
    ]
    for content, expected in cases:
        assert infer_exit_reason(7, content, None) == Failure("run", "exception", exit_code=7, **expected)


# Whether the failure of a rank follows from another rank: that of torch.distributed may, the rank's own does not.


def frames(*files: str) -> str:
    calls = "".join(f'  File "{file}", line {line}, in f\n    call()\n' for line, file in enumerate(files, 1))
    return f"Traceback (most recent call last):\n{calls}"


ALL_REDUCE = frames("/me/train.py", f"{TORCH}/distributed/c10d_logger.py", f"{TORCH}/distributed/distributed_c10d.py")
OWN = frames("/me/train.py", "/me/shards.py")
SOCKET = frames("/me/shards.py", "/usr/lib/python3.11/socket.py")
BACKWARD = frames("/me/train.py", f"{TORCH}/_tensor.py", f"{TORCH}/autograd/graph.py")
LOADER = frames("/me/a.py", f"{TORCH}/utils/data/dataloader.py")
AFTER = "\nDuring handling of the above exception, another exception occurred:\n\n"

TIMED_OUT = "[/__w/pytorch/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv"
CLOSED = "[/__w/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:1"
OF_NCCL = "NCCL error in: NCCLUtils.hpp:275, remote process exited or there was a network error"
CONNECTS = "The client socket has timed out after 1000ms while trying to connect to (a, 1)"


def test_what_an_exception_says_of_a_peer() -> None:
    cases: list[tuple[str, str, str | None, str | None]] = [
        # Of its own: a server, a connection, a worker of a DataLoader, a wrong argument, an error of the GPU.
        ("TimeoutError", "Timed out waiting for shard server", OWN, None),
        ("TimeoutError", "Timed out waiting for shard server", None, None),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", SOCKET, None),
        ("RuntimeError", "DataLoader timed out after 5 s", LOADER, None),
        ("ValueError", "tensor list must be the group's size", ALL_REDUCE, None),
        ("DistBackendError", "NCCL error: unhandled cuda error", ALL_REDUCE, None),
        ("RuntimeError", TIMED_OUT, ALL_REDUCE, "gave up"),
        ("RuntimeError", TIMED_OUT, None, "gave up"),
        ("RuntimeError", CLOSED, ALL_REDUCE, "peer lost"),
        ("RuntimeError", CLOSED, BACKWARD, "peer lost"),  # in the gradient hooks of DDP
        ("RuntimeError", "Connection reset by peer", ALL_REDUCE, "peer lost"),  # by its frame
        ("DistStoreError", "wait timeout after 10000ms, keys: /default_pg/0", OWN, "gave up"),  # by its type
        ("DistNetworkError", CONNECTS, None, "gave up"),
        ("DistStoreError", "Timed out after 61 seconds waiting for clients. 1/2 clients joined.", None, "gave up"),
        ("DistBackendError", OF_NCCL, BACKWARD, "peer lost"),
        ("RuntimeError", "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms", ALL_REDUCE, "gave up"),
        ("RuntimeError", "Detected mismatch between collectives on ranks. Rank 1 is ...", ALL_REDUCE, "gave up"),
        # What a trainer made of it, and of its own.
        ("TrainingFailed", "step 3 failed", f"{ALL_REDUCE}RuntimeError: {CLOSED}\n{AFTER}{OWN}", "peer lost"),
        ("TrainingFailed", "step 3 failed", f"{OWN}TimeoutError: Timed out waiting for shards\n{AFTER}{OWN}", None),
    ]
    for type_name, message, traceback, relation in cases:
        if traceback is not None:
            traceback += f"{type_name}: {message}\n"

        assert relation_to_a_peer(Failure("run", "exception", message, type_name, traceback)) == relation


@pytest.mark.parametrize(
    ("log", "complains"),
    [
        ("shards.py: Timed out waiting for shard server, trying again\nfree(): invalid pointer\n", False),
        ("[rank0]:[E1123 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation timeout: ...", True),
        ("  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4.", True),
    ],
)
def test_what_a_log_says_of_a_peer(log: str, complains: bool) -> None:
    assert (complaint_in(log) is not None) == complains


# What a process has logged before it ended.


@pytest.mark.parametrize(
    ("log", "most", "found"),
    [
        ("step 3\n[1] training failed: ValueError: corrupt batch 17\n", 3, ("ValueError", "corrupt batch 17")),
        ("ERROR train: giving up: my.pkg.BadBatch\nKeyError('x')\nbye\n", 3, ("KeyError", "x")),
        ("torch.OutOfMemoryError: CUDA out of memory\n", 3, ("OutOfMemoryError", "CUDA out of memory")),
        ("Traceback (most recent call last):\n  File 'a'\nValueError\n", 3, ("ValueError", "ValueError")),
        ("ValueError: retried\nstep 4\nstep 5\nstep 6\n", 3, None),  # it went on
        ("ValueError: retried\nstep 4\nstep 5\nstep 6\n", 40, ("ValueError", "retried")),
        ("RuntimeError: first\nValueError: second\n", 40, ("RuntimeError", "first")),
        ("UserWarning: slow\nno ValueError here\n", 40, None),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15\n", 40, None),
        (
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n",
            40,
            ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed."),
        ),
        ("StopIteration\n", 3, ("StopIteration", "StopIteration")),
        ("Timeout: 5 s\n", 3, None),
        ("[0] gloo/transport/tcp/pair.cc:553 Connection closed by peer\n", 40, (None, None)),
    ],
)
def test_the_exception_that_a_program_has_logged_last_is_known(
    tmp_path: Path, log: str, most: int, found: tuple[str | None, str | None] | None
) -> None:
    (tmp_path / "stdout.log").write_text(log)
    said = last_words([tmp_path / "stdout.log", tmp_path / "none.log"], most)
    if found is None:
        assert said is None
    else:
        assert said is not None
        assert (said.type, said.message) == (found[0], found[1] or log.strip())
        assert said.at == (tmp_path / "stdout.log").stat().st_mtime


def test_the_last_line_of_a_rank_is_its_own_and_says_more_than_metrics(tmp_path: Path) -> None:
    out, err = tmp_path / "stdout.log", tmp_path / "stderr.log"
    assert last_line([out, err]) is None
    out.write_text("training failed: \x1b[31mno licence\x1b[0m\nstep 12 loss 0.5\n\n")
    err.write_text("[rank1]:[W1128 16:41:59.367 ProcessGroup.cpp:1538] process group has NOT been destroyed\n")
    assert last_line([out, err]) == "training failed: no licence"
    err.write_text("cannot connect to the scheduler\n")
    os.utime(out, (1, 1))
    assert last_line([out, err]) == "cannot connect to the scheduler"


def test_what_this_package_does_is_no_place_of_the_workload() -> None:
    ours = Frame("/venv/lib/python3.11/site-packages/pytest_aorta/probe/loaded.py", 88, "libraries")
    library = Frame("<frozen posixpath>", 145, "basename")
    workload = Frame("/home/me/train.py", 3, "run")
    assert locate([[library, ours, workload]]) is None
    assert locate([[ours, workload]]) is None
    found = locate([[library, workload, ours]])
    assert found is not None
    assert found.text == "basename in run() at train.py line 3"


def test_what_this_package_puts_into_a_program_is_no_place_either() -> None:
    hooked, spent = Frame("<aorta>", 293, "excepthook"), Frame("/usr/lib/python3.12/threading.py", 9, "join")

    assert locate([[spent, hooked]]) is None
    assert locate([[hooked]]) is None


OF_TORCH = Frame("/venv/lib/python3.12/site-packages/torch/__init__.py", 9, "<module>")
IMPORTING = Frame("<frozen importlib._bootstrap>", 1360, "_find_and_load")
OF_PROGRAM = Frame("/home/me/train.py", 3, "<module>")
OF_MODEL = Frame("/home/me/model.py", 2, "<module>")


def test_an_import_of_a_library_is_told_from_code_of_the_program() -> None:
    cases: list[tuple[list[Frame], bool]] = [
        ([OF_TORCH, IMPORTING, OF_PROGRAM], True),
        ([OF_TORCH, IMPORTING, OF_MODEL, IMPORTING, OF_PROGRAM], True),
        ([OF_MODEL, IMPORTING, OF_PROGRAM], False),  # its own code, which may be all of it
        ([OF_TORCH, OF_PROGRAM], False),
        ([], False),
    ]
    for frames, imports in cases:
        assert imports_a_library([frames] if frames else []) is imports


def test_an_import_is_called_by_its_package() -> None:
    location = locate([[OF_TORCH, IMPORTING, OF_PROGRAM]])

    assert location is not None
    assert location.text == "import of torch in train.py line 3"
