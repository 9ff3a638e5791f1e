"""No process is forked while one of its threads may hold a lock: such a cell gets fresh interpreters."""

from __future__ import annotations

import textwrap

import pytest
from support.stage import Stage
from support.workloads import GLOO


def test_module_that_starts_a_thread_falls_back_to_fresh_interpreters(stage: Stage) -> None:
    stage.write(
        threaded="""
        import os
        import threading
        import time

        threading.Thread(target=time.sleep, args=(1000,), daemon=True, name="prefetcher").start()
        PID = os.getpid()

        class Threaded:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self): return {"passed": PID == os.getpid(), "metrics": {"pid": PID}}
        """
    )
    result = stage.run("threaded.py", "--aorta-trials", "3")
    result.assert_outcomes(passed=3, warnings=1)
    result.stdout.fnmatch_lines(["*PytestWarning: importing *threaded.py started Python threads: prefetcher; *"])
    assert len({trial["result"]["metrics"]["pid"] for trial in stage.trials().values()}) == 3
    assert stage.left_running() == []


MEETS = (
    GLOO
    + """
import threading

PID = os.getpid()


def note_fork():
    if "AORTA_TRIAL_DIR" not in os.environ:  # a zygote
        return
    with open("forks", "a") as file:
        print(os.getpid(), len(os.listdir("/proc/self/task")) - threading.active_count(), file=file)


class Meets(Gloo):
    def run(self):
        dist.barrier()
        if os.environ.get("FAIL_FIRST") and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
            raise RuntimeError("once")
        return {"passed": True, "metrics": {"forked": PID != os.getpid(), "seen": dist.get_world_size()}}


os.register_at_fork(before=note_fork)
"""
)


def forks_of_agents(stage: Stage) -> list[list[int]]:
    """Beside how many native threads each fork was of the processes of trials, which are agents."""
    found: dict[str, list[int]] = {}
    path = stage.path / "forks"
    for line in path.read_text().splitlines() if path.exists() else ():
        pid, native = line.split()
        found.setdefault(pid, []).append(int(native))
    return list(found.values())


@pytest.mark.slow
def test_ranks_are_forked_beside_no_native_thread_also_when_they_start_again(stage: Stage) -> None:
    stage.write(meets=MEETS)
    options = (
        "--aorta-isolation",
        "fork",
        "--aorta-nproc",
        "3",
        "--aorta-extra-env",
        "FAIL_FIRST=1",
        "--aorta-elastic",
        "max_restarts=1",
    )
    stage.run("meets.py", *options).assert_outcomes(passed=1)

    assert stage.trial("Meets/trial_0.json")["elastic"]["restarts"] == 1
    (found,) = forks_of_agents(stage)
    assert len(found) >= 6  # the ranks of two attempts, and stores
    assert set(found) == {0}


@pytest.mark.slow
@pytest.mark.long
def test_ranks_of_a_workload_with_threads_are_fresh_interpreters(stage: Stage) -> None:
    starts = "STORE = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)"
    stage.write(meets=f"{MEETS}\n{starts}\n")
    # Ranks of a restart would read the addresses of those before.
    variables = ("FAIL_FIRST=1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
    options = [text for each in variables for text in ("--aorta-extra-env", each)]
    result = stage.run("meets.py", "--aorta-elastic", "max_restarts=1", *options)
    result.assert_outcomes(passed=1, warnings=2)  # the other one names the file that is written at forks

    trial = stage.trial("Meets/trial_0.json")
    assert trial["elastic"]["restarts"] == 1
    assert [rank["result"]["metrics"] for rank in trial["ranks"]] == 2 * [{"forked": False, "seen": 2}]
    assert sum(map(len, forks_of_agents(stage))) <= 1  # which tells the threads apart that end before a fork
    assert stage.left_running() == []


@pytest.mark.slow
def test_a_store_in_an_agent_that_forks_is_refused(stage: Stage) -> None:
    """The engine's own hang: a thread of the store holds a lock of libc when a rank is forked."""
    stage.write(
        meets=f"""
        from pytest_aorta.launch.child import rendezvous

        open_store = rendezvous.open_store
        rendezvous.open_store = lambda port=0, *, forks: open_store(port, forks=False)
        {textwrap.indent(MEETS, 8 * " ")}
        """
    )
    stage.run("meets.py", "--aorta-isolation", "fork").assert_outcomes(errors=1)

    trial = stage.trial("Meets/trial_0.json")
    assert trial["exit_status"] == "infrastructure_failed"
    assert "the agent has 1 thread(s) that a library has started" in trial["failure"]["message"]
    assert "start_method=spawn" in trial["failure"]["message"]
    assert {rank["failure"]["message"] for rank in trial["ranks"]} == {"the agent ended before this rank did"}
    assert [rank["exit_code"] for rank in trial["ranks"]] == [None, None]
