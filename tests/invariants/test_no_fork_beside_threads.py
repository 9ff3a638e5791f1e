"""No process is forked while one of its threads may hold a lock: such a cell gets fresh interpreters."""

from __future__ import annotations

import subprocess
import textwrap

import pytest
from support.processes import free_port
from support.stage import Stage
from support.workloads import GLOO


@pytest.mark.parametrize("arguments", [(), ("--aorta-workload", "threaded")], ids=["file", "name"])
def test_module_that_starts_a_thread_falls_back_to_fresh_interpreters(stage: Stage, arguments: tuple[str, ...]) -> None:
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
    stage.register(threaded="threaded:Threaded")
    result = stage.run(*(arguments if "threaded" in arguments else (*arguments, "threaded.py")), "--aorta-trials", "3")
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
    """Beside how many native threads each fork was of the processes of trials, which are agents; fewest forks first."""
    found: dict[str, list[int]] = {}
    path = stage.path / "forks"
    for line in path.read_text().splitlines() if path.exists() else ():
        pid, native = line.split()
        found.setdefault(pid, []).append(int(native))
    return sorted(found.values(), key=len)


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("rdzv_backend=c10d",), marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param(("rdzv_backend=static",), marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param(("tee=3",), marks=[pytest.mark.slow, pytest.mark.long]),
    ],
    ids=" ".join,
)
def test_ranks_are_forked_beside_no_native_thread_also_when_they_start_again(
    stage: Stage, options: tuple[str, ...]
) -> None:
    stage.write(meets=MEETS)
    elastic = [text for each in ("max_restarts=1", *options) for text in ("--aorta-elastic", each)]
    stage.run("meets.py", "--aorta-nproc", "3", "--aorta-extra-env", "FAIL_FIRST=1", *elastic).assert_outcomes(passed=1)

    assert stage.trial("Meets/trial_0.json")["elastic"]["restarts"] == 1
    (found,) = forks_of_agents(stage)
    assert len(found) >= 6  # the ranks of two attempts, and stores
    assert set(found) == {0}


@pytest.mark.slow
@pytest.mark.long
def test_ranks_are_forked_beside_no_native_thread_when_a_node_comes_late(stage: Stage) -> None:
    stage.write(
        meets=MEETS
        + """
class WaitsForFour(Meets):
    def run(self):
        while dist.get_world_size() < 4:
            dist.barrier()
            open("alone", "w").close()
        return super().run()
"""
    )
    where = f"rdzv_endpoint=localhost:{free_port()}"

    def node(number: int) -> subprocess.Popen[bytes]:
        elastic = [text for each in ("nnodes=1:2", f"node_rank={number}", where) for text in ("--aorta-elastic", each)]
        return stage.start("meets.py::WaitsForFour", "--aorta-nproc", "2", "--aorta-timeout", "50", *elastic)

    nodes = [node(0)]
    stage.wait_until((stage.path / "alone").exists)
    nodes.append(node(1))
    assert [each.wait(110) for each in nodes] == [0, 0]

    trial = stage.trial("WaitsForFour/trial_0.json")
    assert {attempt["reason"] for attempt in trial["elastic"]["attempts"]} == {"membership"}
    found = forks_of_agents(stage)
    assert [len(each) for each in found] == [2, 4]  # node 0 has started its ranks twice
    assert {native for each in found for native in each} == {0}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("starts", "launcher"),
    [
        ("threading.Thread(target=threading.Event().wait, daemon=True, name='prefetcher').start()", "auto"),
        *(
            ("STORE = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)", launcher)
            for launcher in ("auto", "torchrun")
        ),
    ],
    ids=["Python's", "a library's", "a library's, torchrun"],
)
def test_ranks_of_a_workload_with_threads_are_fresh_interpreters(stage: Stage, starts: str, launcher: str) -> None:
    stage.write(meets=f"{MEETS}\n{starts}\n")
    # torchrun's own ranks of a restart would read the addresses of those before.
    variables = ("FAIL_FIRST=1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
    options = [text for each in variables for text in ("--aorta-extra-env", each)]
    result = stage.run("meets.py", "--aorta-launcher", launcher, "--aorta-elastic", "max_restarts=1", *options)
    # torchrun forks no rank; elsewhere another warning names the file that is written at forks.
    result.assert_outcomes(passed=1, warnings=1 if launcher == "torchrun" else 2)

    trial = stage.trial("Meets/trial_0.json")
    assert trial["elastic"]["restarts"] == 1
    assert [rank["result"]["metrics"] for rank in trial["ranks"]] == 2 * [{"forked": False, "seen": 2}]
    assert sum(map(len, forks_of_agents(stage))) <= 1  # which tells the threads apart that end before a fork
    assert stage.left_running() == []


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
    stage.run("meets.py").assert_outcomes(errors=1)

    trial = stage.trial("Meets/trial_0.json")
    assert trial["exit_status"] == "infrastructure_failed"
    assert "the agent has 1 thread(s) that a library has started" in trial["failure"]["message"]
    assert "start_method=spawn" in trial["failure"]["message"]
    assert {rank["failure"]["message"] for rank in trial["ranks"]} == {"the agent ended before this rank did"}
    assert [rank["exit_code"] for rank in trial["ranks"]] == [None, None]
