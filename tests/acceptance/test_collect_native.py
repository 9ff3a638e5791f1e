"""``--aorta-collect native``: the C functions in which processes crash and hang, read by a real gdb."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from support.stage import Stage, text

pytestmark = pytest.mark.skipif(
    shutil.which("gdb") is None or shutil.which("g++") is None, reason="needs gdb, and a compiler for a faulty library"
)

LIBRARY = """
#include <cstdlib>
namespace { struct Loader { void corrupt(char *at) { at[-8] = 1; free(at); } }; }
static int inner(int *at) { return *at; }
static volatile bool never;
extern "C" int fill_buffer(int *at) { return inner(at) + 1; }
extern "C" void corrupt_heap() { Loader().corrupt((char*) malloc(100)); }
extern "C" void wait_forever() { while (!never); }
extern "C" int overflow_stack(int n) {
    volatile char b[4096];
    b[0] = n;
    return n < 0 ? 0 : overflow_stack(n + 1) + b[0];
}
"""

WORKLOADS = """
import ctypes, os, signal
from pathlib import Path
from pytest_aorta import Workload, WorkloadResult

def library():
    return ctypes.CDLL(str(Path(__file__).with_name("libfaulty.so")))

class _Idle(Workload):
    def setup(self): pass

class Reads(_Idle):
    def run(self):
        library().fill_buffer(None)

class Corrupts(_Idle):
    def run(self):
        library().corrupt_heap()

class Hangs(_Idle):
    def run(self):
        library().wait_forever()

class Overflows(_Idle):
    def run(self):
        library().overflow_stack(0)

class Kills(_Idle):
    def run(self):
        os.kill(os.getpid(), signal.SIGSEGV)

class Forks(_Idle):
    # No gdb watches a fork of the workload: its crash is as without; then the parent waits for all its children.
    def run(self):
        if (pid := os.fork()) == 0:
            library().fill_buffer(None)
        ended, status = os.wait()
        try:
            os.wait()
        except ChildProcessError:
            return WorkloadResult(passed=ended == pid and os.WTERMSIG(status) == signal.SIGSEGV)
"""


@pytest.fixture
def faulty(stage: Stage) -> Stage:
    source = stage.write_file("faulty.cpp", LIBRARY)
    subprocess.run(["g++", "-O0", "-shared", "-fPIC", "-o", source.with_name("libfaulty.so"), source], check=True)
    return stage


@pytest.mark.slow
def test_a_crash_or_a_hang_names_the_c_function_and_stays_what_it_is(faulty: Stage) -> None:
    faulty.write(faults=WORKLOADS)
    options = ("--aorta-collect", "native", "--aorta-timeout", "15", "--aorta-slots", "2")
    result = faulty.run_here("faults.py", *options)

    trials = {path.partition("/")[0]: trial for path, trial in faulty.trials().items()}
    sentences = {name: trial["collected"]["native"]["sentence"] for name, trial in trials.items()}
    assert sentences == {
        "Reads": "rank 0: SIGSEGV in inner() of libfaulty.so",
        "Corrupts": "rank 0: SIGABRT in Loader::corrupt() of libfaulty.so",
        "Hangs": "rank 0: hung in wait_forever() of libfaulty.so",
        "Overflows": "rank 0: SIGSEGV in overflow_stack() of libfaulty.so",
        "Kills": "rank 0: SIGSEGV in kill() of libc.so.6",
        "Forks": "",
    }
    assert [trial["collected"]["native"]["problems"] for trial in trials.values()] == [[]] * len(trials)
    ends = {name: (trial["exit_status"], (trial["failure"] or {}).get("signal")) for name, trial in trials.items()}
    assert ends == {
        "Reads": ("workload_failed", "SIGSEGV"),
        "Corrupts": ("workload_failed", "SIGABRT"),
        "Hangs": ("timeout", None),
        "Overflows": ("workload_failed", "SIGSEGV"),
        "Kills": ("workload_failed", "SIGSEGV"),
        "Forks": ("ok", None),
    }
    table = text(result)
    assert "SIGSEGV in inner (faults.py:13 in run)" in table
    assert "SIGABRT: heap corruption (faults.py:17 in run)" in table
    assert "timeout in wait_forever (faults.py:21 in run)" in table
    assert "left running" not in table
    # With all threads, and the Python frames beside.
    (artifact,) = trials["Reads"]["collected"]["native"]["artifacts"]
    assert '"python"' in (faulty.results / "Reads" / artifact).read_text()
    assert "in run" in (faulty.results / "Reads" / artifact).read_text()


def test_it_starts_in_a_script_that_never_imports_torch(faulty: Stage) -> None:
    faulty.write(train="import ctypes\nctypes.CDLL('./libfaulty.so').fill_buffer(None)")
    faulty.run_here("--aorta-command", "python train.py", "--aorta-collect", "native")
    (trial,) = faulty.trials().values()
    assert trial["collected"]["native"]["sentence"] == "rank 0: SIGSEGV in inner() of libfaulty.so"
    assert trial["failure"]["signal"] == "SIGSEGV"
