"""Files in which Python processes of a command report, written by real processes without torch; logs of ranks."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rank_events import returned

from pytest_aorta.launch.child.bootstrap import bootstrap_variables
from pytest_aorta.launch.child.rank_files import (
    Process,
    adopt_ranks,
    event_log,
    failure_below,
    has_ended,
    log_event,
    read_new,
    read_processes,
    read_rank,
    write_exit,
)
from pytest_aorta.launch.diagnosis.evidence import RankEvidence, RankExit
from pytest_aorta.launch.diagnosis.judge import Judgement, judge
from pytest_aorta.trials.records import Failure, to_json

RANK = """
import os, signal, sys, time
part, rank = sys.argv[1], os.environ["RANK"]
os.system(sys.executable + " -c pass")  # a helper has the same variables
open("started" + rank, "w").close()
while rank == "1" and not (os.path.exists("started0") and os.path.exists("started2")):
    time.sleep(0.01)
if rank == "1":
    if part == "raises": raise KeyError("of rank 1")
    if part == "killed": os.kill(os.getpid(), signal.SIGKILL)
    if part == "exits": os._exit(3)
    if part == "says": sys.exit("loss is NaN at step 4")
    if part == "logs":
        try: raise ValueError("corrupt batch 17")
        except ValueError:
            print("failed")
            sys.exit(1)
    if part == "forks":
        if os.fork() == 0: raise ValueError("of a fork")
        os.wait()
        sys.exit(4)
time.sleep(60)
"""

#: As launchers do that are Python programs: ends the others once one has failed.
LAUNCHER = """
import os, subprocess, sys, time
ranks = []
for rank in range(3):
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "MASTER_PORT": "7"}
    ranks.append(subprocess.Popen([sys.executable, "rank.py", sys.argv[1]], env={**os.environ, **place}))
while not any(rank.poll() for rank in ranks):
    time.sleep(0.01)
for rank in ranks:
    if rank.poll() is None:
        rank.terminate()
        rank.wait()
sys.exit(1)
"""


def run(folder: Path, program: str, *words: str) -> tuple[str, str]:
    """Run a program as a command does, in the ``folder`` of a trial; what it has printed."""
    (folder / "rank.py").write_text(RANK)
    (folder / "program.py").write_text(program)
    environ = {**os.environ, "AORTA_TRIAL_INDEX": "0"}
    armed = bootstrap_variables(environ, folder=str(folder / "trial"), stacks=str(folder / "trial" / "stacks.log"))
    done = subprocess.run(
        [sys.executable, "program.py", *words],
        cwd=folder,
        env={**environ, **armed},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.stdout, done.stderr


def judged(folder: Path, said: str = "", code: int = 1) -> Judgement:
    trial = folder / "trial"
    [attempt] = adopt_ranks(trial, read_processes(trial), said, code)
    return judge(attempt)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("raises", {"kind": "exception", "type": "KeyError", "message": "rank 1: 'of rank 1'", "exit_code": 1}),
        ("killed", {"kind": "signal", "signal": "SIGKILL"}),
        ("exits", {"kind": "exit_code", "exit_code": 3}),
        ("says", {"kind": "exception", "type": "SystemExit", "message": "rank 1: loss is NaN at step 4"}),
        ("logs", {"kind": "exception", "type": "ValueError", "message": "rank 1: corrupt batch 17", "exit_code": 1}),
        ("forks", {"kind": "exit_code", "exit_code": 4}),
    ],
)
def test_a_launcher_that_is_a_python_program_tells_how_each_rank_has_ended(
    tmp_path: Path, part: str, said: dict[str, Any]
) -> None:
    run(tmp_path, LAUNCHER, part)

    found = judged(tmp_path)

    assert found.failure is not None
    assert {name: getattr(found.failure, name) for name in said} == said
    assert [rank.blame for rank in found.ranks] == ["collateral", "cause", "collateral"]
    assert [rank.signal for rank in (found.ranks[0], found.ranks[2])] == ["SIGTERM", "SIGTERM"]


def test_own_processes_tell_what_they_have_raised_and_their_parent_how_they_ended(tmp_path: Path) -> None:
    program = """
import multiprocessing, os, sys
def raises(): raise KeyError("of a child")
def caught():
    try: raise ValueError("caught")
    except ValueError: sys.exit(1)
def leaves(): os._exit(3)
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        for target in (raises, caught, leaves):
            child = multiprocessing.get_context(method).Process(target=target)
            child.start()
            child.join()
"""
    run(tmp_path, program)
    processes = read_processes(tmp_path / "trial")
    failures = [process.failure() for process in processes if process.end is not None]
    told = [(failure.kind, failure.type, failure.exit_code) for failure in failures if failure is not None]
    assert told == 2 * [("exception", "KeyError", 1), ("exception", "ValueError", 1), ("exit_code", None, 3)]
    assert processes[0].lived is not None


def test_a_program_and_its_children_do_not_notice(tmp_path: Path) -> None:
    seen = "[sorted(os.environ), os.environ.get('PYTHONPATH'), sys.path[1:]]"
    looks = f"import json, os, sys; print(json.dumps({seen}), flush=True)"
    program = f"""
import os, subprocess, sys
here = [sys.executable, "-c", {looks!r}]
{looks}
subprocess.run(here)
subprocess.run(here, env=dict(os.environ))
subprocess.run(here, env={{**os.environ, "PYTHONPATH": "/of/the/child"}})
os.environ["PYTHONPATH"] = "/of/the/program"
os.system(sys.executable + " -c 'print()'")
try: os.kill(2**22 + 1, 15)
except ProcessLookupError as error: assert error.__traceback__.tb_next.tb_frame.f_code.co_filename == "<aorta>"
"""
    out, errors = run(tmp_path, program)
    assert errors == ""
    own, *children = [json.loads(line) for line in out.splitlines() if line]
    assert not {"AORTA_BOOTSTRAP"} & set(own[0])
    assert own[1] == os.environ.get("PYTHONPATH")
    assert [child[1] for child in children] == [own[1], own[1], "/of/the/child"]
    assert children[0] == children[1] == own
    assert not any("bootstrap" in path for each in (own, *children) for path in each[2])
    assert len(read_processes(tmp_path / "trial")) == 4


@pytest.mark.parametrize(
    ("program", "printed", "failure"),
    [
        # A program fails because of the one that it has started.
        (
            "import subprocess, sys; subprocess.run([sys.executable, '-c', '1/0'], check=True)",
            ("CalledProcessError", "Command '['"),
            ("ZeroDivisionError", "division by zero"),
        ),
        # What is printed of an exception does not show where its message ends.
        ("raise ValueError('one\\n\\ntwo')", ("ValueError", "one"), ("ValueError", "one\n\ntwo")),
        ("raise ValueError('one')", ("KeyError", "one"), None),
    ],
)
def test_processes_may_know_better_than_the_output_why_a_program_has_failed(
    tmp_path: Path, program: str, printed: tuple[str, str], failure: tuple[str, str] | None
) -> None:
    run(tmp_path, program)
    own = Failure("run", "exception", printed[1], printed[0], exit_code=1)
    found = failure_below(read_processes(tmp_path / "trial"), own)
    assert (found and (found.type, found.message)) == failure
    assert found is None or found.exit_code == 1
    assert failure_below(read_processes(tmp_path), own) is None


#: Of launchers that are no Python programs.
SRUN = "srun: error: node7: task 1: Segmentation fault (core dumped)\nsrun: error: node7: task 0: Terminated\n"
OPEN_MPI = "prterun noticed that process rank 1 with PID 815 on node vm exited on signal 11 (Segmentation fault).\n"
MPICH = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)\n"


@pytest.mark.parametrize(
    ("said", "code"), [(SRUN, 139), (OPEN_MPI, 139), (MPICH, 11), ("", 139)], ids=["srun", "mpirun", "mpich", "silent"]
)
def test_what_other_launchers_say_of_a_rank_is_its_end(tmp_path: Path, said: str, code: int) -> None:
    trial = tmp_path / "trial"
    processes = [Process(f"host.{rank}", rank + 10, 1, "host", 5.0 + rank) for rank in range(2)]
    lost = "Connection closed by peer"
    trace = 'File "/x/torch/distributed/distributed_c10d.py", line 1, in all_reduce'
    processes[0].raised = {"raised": 8.0, "type": "RuntimeError", "message": lost, "traceback": trace}
    for rank, process in enumerate(processes):
        process.place = {"rank": rank, "world": 2, "local": rank, "attempt": 0, "group": ""}
    [attempt] = adopt_ranks(trial, processes, said, code)
    found = judge(attempt)
    assert found.failure is not None
    assert (found.failure.rank, found.failure.signal) == (1, "SIGSEGV")


# The event log of a rank.


@given(st.data())
def test_an_event_log_that_was_torn_at_any_byte_is_read_up_to_there(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    lines = [to_json(event).encode() + b"\n" for event in returned(True)]
    text = b"".join(lines)
    cut = data.draw(st.integers(0, len(text)))
    event_log(folder, 0).write_bytes(text[:cut])

    ends = list(itertools.accumulate(len(line) for line in lines))
    # A line counts once its last brace is there; the newline may be missing.
    complete = sum(1 for end in ends if cut >= end - 1)
    assert read_rank(RankEvidence(0), folder).events == returned(True)[:complete]


def test_complete_lines_of_a_growing_log_are_read_once(tmp_path: Path) -> None:
    path = event_log(tmp_path, 0)
    assert read_new(path, 0) == ([], 0)
    path.write_text('{"type": "lived"}\n{"type": "beg')
    events, offset = read_new(path, 0)
    assert events == [{"type": "lived"}]
    with path.open("a") as file:
        file.write('in", "phase": "run"}\n')
    events, offset = read_new(path, offset)
    assert events == [{"type": "begin", "phase": "run"}]
    assert read_new(path, offset) == ([], offset)


def test_the_end_of_a_rank_is_read_after_a_line_that_its_process_has_torn(tmp_path: Path) -> None:
    event_log(tmp_path, 0).write_text('{"type": "lived"}\n{"type": "e')
    assert not has_ended(tmp_path, 0)
    write_exit(tmp_path, 0, RankExit(-9, at=2.0), overdue=1.0)
    found = read_rank(RankEvidence(0), tmp_path)
    assert has_ended(tmp_path, 0)
    assert (found.events, found.exit, found.overdue) == ([{"type": "lived"}], RankExit(-9, at=2.0), 1.0)

    assert [event["type"] for event in read_new(event_log(tmp_path, 0), 0)[0]] == ["lived", "over"]


def test_the_end_that_an_earlier_pytest_has_written_is_not_that_of_the_rank(tmp_path: Path) -> None:
    write_exit(tmp_path, 0, RankExit(1, at=2.0), overdue=1.0)
    log_event(tmp_path, 0, {"type": "begin", "phase": "run"})
    found = read_rank(RankEvidence(0), tmp_path)
    assert not has_ended(tmp_path, 0)
    assert (found.exit, found.overdue) == (None, None)
