"""A trial is as random as a fresh process, from its first byte to its exit, and what it drew can be drawn again."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
from support.stage import Stage, text

pytestmark = pytest.mark.usefixtures("as_users_have_it")

#: Of twelve trials with this seed, some have the one order of a set, and some the other one.
SEED = ("--aorta-seed", "1")

#: Fails by the order of a set, in half of all processes.
_BY_ORDER = """
import sys
print("step 1 loss 0.5")
sys.exit(list({"left", "right"})[0] == "left")
"""

_CLASS = """
import random
DRAWN = random.Random().random()

class Draws:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        left = list({"left", "right"})[0] == "left"
        return {"passed": not left, "metrics": {"drawn": DRAWN}}
"""


def outcomes(stage: Stage, cell: str) -> dict[int, tuple[str, Any]]:
    by_index = {}
    for path, trial in stage.trials().items():
        if f"/{cell}/" in path:
            by_index[trial["trial_index"]] = trial["exit_status"], trial["seeds"]["hash"]
    return by_index


@pytest.mark.slow
def test_commands_draw_as_fresh_processes_and_alike_in_each_cell(stage: Stage) -> None:
    stage.write(order=_BY_ORDER)
    stage.run(
        *("--aorta-command", "python order.py", "--aorta-trials", "12", *SEED),
        *("--aorta-mitigations", "none", "--aorta-mitigations", "SOME_VARIABLE=1"),
    )
    none, other = outcomes(stage, "local-none"), outcomes(stage, "local-SOME_VARIABLE=1")
    assert none == other
    assert len({seed for _, seed in none.values()}) == 12
    assert {status for status, _ in none.values()} == {"ok", "workload_failed"}
    assert {trial["zygote"] for trial in stage.trials().values()} == {None}


@pytest.mark.slow
def test_the_trials_of_a_class_whose_import_is_quick_are_processes_of_their_own(stage: Stage) -> None:
    stage.write(draws=_CLASS)
    stage.run("draws.py", "--aorta-trials", "6", "--aorta-mitigations", "none", "--aorta-mitigations", "X_Y=1")
    drawn: dict[int, int] = {}
    other: dict[int, int] = {}
    for path, trial in stage.trials().items():
        of_cell = drawn if "/local-none/" in path else other
        of_cell[trial["trial_index"]] = trial["seeds"]["hash"]
        assert trial["zygote"] is None or trial["trial_index"] == 0  # of the first, the costs are not known before
    assert drawn == other
    assert len(set(drawn.values())) == 6
    metrics = {trial["result"]["metrics"]["drawn"] for trial in stage.trials().values()}
    assert len(metrics) == 12


@pytest.mark.parametrize(
    ("options", "starts"),
    [(("--aorta-isolation", "fork"), [0, 0, 0, 0]), (("-o", "aorta_zygotes=2"), [0, 0, 1, 1])],
    ids=["fork", "a number"],
)
def test_the_number_of_starts_may_be_given(stage: Stage, options: tuple[str, str], starts: list[int]) -> None:
    stage.write(draws=_CLASS)
    result = stage.run("draws.py", "--aorta-trials", "4", *options)
    assert sorted(trial["zygote"] for trial in stage.trials().values()) == starts
    says = "what a process draws once (hash seed, addresses, imports) is the same in all trials" in text(result)
    assert says == ("fork" in options)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["command", "class"])
def test_a_failure_by_the_order_of_a_set_fails_again_when_it_is_replayed(stage: Stage, source: str) -> None:
    stage.write(order=_BY_ORDER, draws=_CLASS)
    what = ("--aorta-command", "python order.py") if source == "command" else ("draws.py",)
    stage.run(*what, "--aorta-trials", "12", *SEED)
    by_end = {trial["exit_status"]: (path, trial) for path, trial in stage.trials().items()}
    assert by_end.keys() == {"ok", "workload_failed"}
    for path, trial in by_end.values():
        stage.run("--aorta-replay", f"results/{path}", "--aorta-results-dir", "again")
        (again,) = stage.trials("again").values()
        assert again["exit_status"] == trial["exit_status"]
        assert again["seeds"]["hash"] == trial["seeds"]["hash"]
        shutil.rmtree(stage.path / "again")


@pytest.mark.slow
def test_the_users_own_hash_seed_wins(stage: Stage) -> None:
    stage.write(order=_BY_ORDER, draws=_CLASS)
    stage.run("draws.py", "--aorta-command", "python order.py", "--aorta-trials", "3", env={"PYTHONHASHSEED": "7"})
    assert {trial["seeds"]["hash"] for trial in stage.trials().values()} == {7}


def test_what_a_program_starts_draws_hashes_of_its_own(stage: Stage) -> None:
    stage.write(
        parent="""
        import os, subprocess, sys
        ask = [sys.executable, "-c", "print(hash('x'))"]
        hashes = {subprocess.run(ask, capture_output=True, text=True).stdout for _ in range(4)}
        assert len(hashes) == 4 and "PYTHONHASHSEED" not in os.environ, hashes
        """,
        below="""
        import subprocess, sys

        class Below:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self):
                ask = [sys.executable, "-c", "print(hash('x'))"]
                hashes = {subprocess.run(ask, capture_output=True, text=True).stdout for _ in range(4)}
                return {"passed": len(hashes) == 4}
        """,
    )
    result = stage.run("below.py", "--aorta-trials", "2")
    result.assert_outcomes(passed=2)
    stage.run("--aorta-command", "python parent.py", "--aorta-trials", "2").assert_outcomes(passed=2)


_AT_EXIT = """
import atexit, os, threading, time

class Registers:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        atexit.register(lambda: open(os.environ["AORTA_TRIAL_DIR"] + "/left", "w").close())
        return {"passed": True}

class Dies(Registers):
    def run(self):
        atexit.register(os.abort)
        return {"passed": True}

class Stays(Registers):
    def run(self):
        threading.Thread(target=time.sleep, args=(600,)).start()
        return {"passed": True}
"""


@pytest.mark.slow
def test_the_exit_of_a_class_is_that_of_an_interpreter(stage: Stage) -> None:
    stage.write(ends=_AT_EXIT)
    result = stage.run("ends.py", "--aorta-trials", "1", "--aorta-timeout", "5")
    result.assert_outcomes(passed=3, errors=2)
    assert (stage.path / "results/Registers/trial_0/files/left").exists()
    dies, stays = stage.trial("Dies/trial_0.json"), stage.trial("Stays/trial_0.json")
    assert (dies["exit_status"], dies["failure"]["phase"], dies["failure"]["signal"]) == ("ok", "exit", "SIGABRT")
    assert (stays["exit_status"], stays["failure"]["phase"], stays["failure"]["kind"]) == ("ok", "exit", "timeout")
    assert "exit failed: ended by SIGABRT at exit" in text(result)
    assert "1 trial of Dies local-none ok, but not its end: ended by SIGABRT at exit" in text(result)


def test_the_only_trial_of_a_start_ends_as_an_interpreter_does_however_slow_the_import(stage: Stage) -> None:
    burns = "import time\nwhile time.process_time() < 1: pass\n"
    stage.write(ends=burns + _AT_EXIT)
    stage.run("ends.py", "-k", "Dies", "--aorta-trials", "1").assert_outcomes(passed=1, errors=1)
    dies = stage.trial("Dies/trial_0.json")
    assert (dies["failure"]["phase"], dies["failure"]["signal"]) == ("exit", "SIGABRT")


def test_starts_after_the_first_import_nothing_for_the_description_of_the_machine(stage: Stage) -> None:
    stage.write(
        tells="""
        import sys

        class Tells:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self):
                heavy = {"importlib.metadata", "logging", "psutil", "pydantic", "pytest_aorta.registry"}
                return {"passed": True, "metrics": {"heavy": sorted(heavy & set(sys.modules))}}
        """
    )
    stage.run("tells.py", "--aorta-trials", "2").assert_outcomes(passed=2)
    first, second = stage.trials().values()
    assert second["result"]["metrics"]["heavy"] == []
    for section in ("host", "packages", "compilers", "python"):  # they are in the record all the same
        assert second["env"][section] == first["env"][section] != {}


@pytest.mark.slow
def test_a_command_that_dies_or_hangs_after_its_last_line_fails_at_exit(stage: Stage) -> None:
    stage.write(
        dies="""
        import ctypes
        libc = ctypes.CDLL(None)
        libc.__cxa_atexit(libc.abort, None, None)  # as a destructor of a static object does
        print("done")
        """,
        stays="""
        import atexit, threading
        atexit.register(threading.Event().wait)
        print("done")
        """,
    )
    result = stage.run(
        *("--aorta-command", "python dies.py", "--aorta-command", "python stays.py", "--aorta-timeout", "5"),
    )
    result.assert_outcomes(failed=2)
    dies, stays = stage.trial("command-dies/trial_0.json"), stage.trial("command-stays/trial_0.json")
    assert (dies["exit_status"], dies["failure"]["phase"]) == ("workload_failed", "exit")
    assert (stays["exit_status"], stays["failure"]["phase"]) == ("timeout", "exit")
    assert "SIGABRT at exit" in text(result)
    assert "timeout" in text(result)
    assert "at exit" in text(result)


def test_a_commands_exit_code_is_the_interpreters_own(stage: Stage) -> None:
    stage.write(
        code="""
        import atexit, os
        atexit.register(os._exit, 9)
        """
    )
    stage.run("--aorta-command", "python code.py")
    assert stage.trial("command-code/trial_0.json")["result"]["metrics"]["returncode"] == 9
    assert subprocess.run(["python", str(stage.path / "code.py")], check=False).returncode == 9


@pytest.mark.slow
def test_each_rank_has_hashes_of_its_own_and_a_start_serves_several_trials(stage: Stage) -> None:
    stage.write(
        ranks="""
        import torch.distributed as dist

        class Ranks:
            launch_mode, min_world_size, result_scope = "distributed", 2, "rank_local"
            def __init__(self, config): pass
            def setup(self): dist.init_process_group("gloo")
            def run(self):
                dist.barrier()  # connecting fails in the other rank if one has left by then
                return {"passed": True, "metrics": {"hash": hash("x")}}
            def cleanup(self): dist.destroy_process_group()
        """
    )
    stage.run("ranks.py", "--aorta-trials", "4").assert_outcomes(passed=4)
    trials = list(stage.trials().values())
    seeds = {tuple(rank["seeds"]["hash"] for rank in trial["ranks"]) for trial in trials}
    assert {trial["zygote"] for trial in trials} == {0}
    assert len(seeds) == 1
    assert all(first != second for first, second in seeds)
    for trial in trials:
        assert len({rank["result"]["metrics"]["hash"] for rank in trial["ranks"]}) == 2
