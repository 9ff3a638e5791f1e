"""Where a process was, read from the stacks that it wrote."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_aorta.common.texts import stacks_excerpt
from pytest_aorta.launch.diagnosis.traces import Frame, locate, read_dump

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed"

#: A rank in a collective, with a thread of torch's beside it; then another process's dump.
DUMP = f"""\
Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f0000000002 (most recent call first):
  File "{TORCH}/distributed_c10d.py", line 2806 in all_reduce
  File "{TORCH}/c10d_logger.py", line 81 in wrapper
  File "/home/me/steps.py", line 88 in step
  File "/home/me/fsdp.py", line 12 in run
  File "/venv/lib/python3.11/site-packages/pytest_aorta/trials/lifecycle.py", line 58 in <lambda>
  File "<string>", line 1 in <module>
Thread 0x00007f0000000003 (most recent call first):
  File "/home/me/other.py", line 1 in other
"""


def dumped(path: Path, text: str) -> list[list[Frame]]:
    (path / "stacks.log").write_text(text)
    return read_dump(path / "stacks.log")


def test_the_location_is_a_frame_of_the_workload(tmp_path: Path) -> None:
    location = locate(dumped(tmp_path, DUMP))

    assert location is not None
    assert location.text == "all_reduce in step() at steps.py line 88"
    assert location.collective == "all_reduce"


def test_in_an_import_it_is_the_line_of_the_module(tmp_path: Path) -> None:
    dump = 'Current thread 0x1 (most recent call first):\n  File "/x/hang.py", line 9 in <module>\n'

    location = locate(dumped(tmp_path, dump + '  File "<frozen importlib._bootstrap>", line 241 in _call\n'))

    assert location is not None
    assert location.text == "hang.py line 9"


def test_an_installed_workload_is_known_by_its_file(tmp_path: Path) -> None:
    own = "/venv/lib/python3.11/site-packages/aorta_workloads/fsdp.py"
    text = DUMP.replace("/home/me/steps.py", own).replace("/home/me/fsdp.py", own)

    location = locate(dumped(tmp_path, text), own)

    assert location is not None
    assert location.text == "all_reduce in step() at fsdp.py line 88"
    # Unknown, it looks like any library, and the innermost call counts.
    location = locate(dumped(tmp_path, text))
    assert location is not None
    assert location.text == "all_reduce() at distributed_c10d.py line 2806"


@pytest.mark.parametrize(
    "text", ["", "\n", "Fatal Python error\n", "\x00\xff", "Thread 0x1 (most recent call first):\n"]
)
def test_what_is_no_dump_says_nothing(tmp_path: Path, text: str) -> None:
    assert locate(dumped(tmp_path, text)) is None


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
    assert location.text.startswith("test_it_reads_what_this_interpreter_writes() at test_stacks.py line ")
