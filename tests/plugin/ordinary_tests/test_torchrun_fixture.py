"""Scripts and modules under the real torchrun, started by the fixture ``aorta_torchrun``."""

from __future__ import annotations

import pytest
from support.stage import Stage

#: What is wrong with rank 1 is the first argument; rank 0 waits for it to be ended.
SCRIPT = """
import ctypes
import os
import sys
import time

rank = int(os.environ["RANK"])
fault = sys.argv[1]

def stuck():
    time.sleep(1000)

def main():
    print("rank", rank, "of", os.environ["WORLD_SIZE"], flush=True)
    if fault == "none" or fault == "once" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
        return
    if rank == 0:
        return fault == "hang" or stuck()
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "exit":
        sys.exit(3)
    if fault == "hang":
        stuck()
    raise ValueError("what is wrong here")

if fault == "recorded":
    from torch.distributed.elastic.multiprocessing.errors import record
    main = record(main)

main()
"""

FAULTS = """
def test_passes(aorta_torchrun):
    done = aorta_torchrun("train.py", "none", "--log", "not torchrun's", nproc=2)
    assert done.ok, done.message
    assert (done.exit_status, done.returncode, done.restarts, done.failure) == ("ok", 0, 0, None)
    assert done.message == "train on 2 ranks: ok"
    assert [done.stdout(rank) for rank in (0, 1)] == ["rank 0 of 2\\n", "rank 1 of 2\\n"]
    assert [(rank.rank, rank.exit_code, rank.failure) for rank in done.ranks] == [(0, 0, None), (1, 0, None)]
    assert done.elapsed_sec > 0
    assert (done.folder / "stderr.log").is_file()

def check_exception(done):
    assert (done.exit_status, done.returncode) == ("workload_failed", 1)
    assert (done.failure.rank, done.failure.kind, done.failure.type) == (1, "exception", "ValueError")
    assert done.ranks[1].failure.message == "what is wrong here"
    assert 'raise ValueError("what is wrong here")' in done.ranks[1].failure.traceback
    assert done.message.startswith("train on 2 ranks: workload_failed: rank 1: ValueError: what is wrong here\\n")
    assert (done.ranks[1].exit_code, done.ranks[1].collateral) == (1, False)
    assert (done.ranks[0].signal, done.ranks[0].collateral) == ("SIGTERM", True)

def test_raises(aorta_torchrun):
    done = aorta_torchrun("train.py", "raise", nproc=2)
    check_exception(done)
    assert done.ranks[1].error_file is None

def test_raises_recorded(aorta_torchrun):
    done = aorta_torchrun("train.py", "recorded", nproc=2)
    check_exception(done)
    assert done.ranks[1].error_file["message"]["message"] == "ValueError: what is wrong here"

def test_segfault(aorta_torchrun):
    done = aorta_torchrun("train.py", "segfault", nproc=2)
    assert (done.failure.rank, done.failure.kind, done.failure.signal) == (1, "signal", "SIGSEGV")
    assert (done.ranks[1].exit_code, done.ranks[1].signal) == (None, "SIGSEGV")
    assert "in string_at" in done.stderr(1)
    assert "in string_at" in done.message

def test_twice(aorta_torchrun):
    done = aorta_torchrun("train.py", "exit", nproc=2)
    assert (done.failure.rank, done.failure.kind, done.failure.exit_code) == (1, "exit_code", 3)
    assert done.message.startswith("train on 2 ranks: workload_failed: rank 1: ended itself with exit code 3")
    done = aorta_torchrun("train.py", "once", nproc=2, max_restarts=1)
    assert done.ok, done.message
    assert done.restarts == 1
    [attempt] = done.trial.elastic.attempts
    assert (attempt.failure.rank, attempt.failure.type) == (1, "ValueError")

def test_hang(aorta_torchrun):
    # The deadline counts from the start of torchrun, which alone takes more than 6 s on a loaded machine.
    done = aorta_torchrun("train.py", "hang", nproc=2, timeout=25)
    assert (done.exit_status, done.returncode, done.failure.rank) == ("timeout", None, 1)
    assert "the deadline of 25 s passed in run(); rank 0: exited 0; rank 1: stuck() at train.py line" in done.message
    assert (done.ranks[0].exit_code, done.ranks[0].failure) == (0, None)
    assert (done.ranks[1].exit_code, done.ranks[1].failure.kind) == (None, "timeout")
    assert "in stuck" in (done.folder.parent / done.failure.stacks).read_text()
"""

STATUSES = {
    "test_passes": ["ok"],
    "test_raises": ["workload_failed"],
    "test_raises_recorded": ["workload_failed"],
    "test_segfault": ["workload_failed"],
    "test_twice": ["workload_failed", "ok"],
    "test_hang": ["timeout"],
}


@pytest.fixture
def scripts(stage: Stage) -> Stage:
    stage.write(train=SCRIPT)
    return stage


def with_tests(stage: Stage, tests: str) -> None:
    (stage.path / "test_it.py").write_text(tests)


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", ["passes or segfault", pytest.param("raises or twice or hang", marks=pytest.mark.long)]
)
def test_what_a_script_does_is_in_the_result_and_in_a_trial_file(scripts: Stage, chosen: str) -> None:
    with_tests(scripts, FAULTS)
    assert scripts.run("test_it.py", "-k", chosen).ret == 0
    statuses: dict[str, list[str]] = {}
    for path, status in scripts.statuses().items():
        test, cell, _ = path.split("/")
        assert cell == "train@local-none"
        statuses.setdefault(test.removeprefix("test_it.py@"), []).append(status)
    assert statuses == {name: STATUSES[name] for name in STATUSES if any(word in name for word in chosen.split(" or "))}
    assert scripts.left_running() == []


TELLS = """
import os
import sys

with open("told", "w") as file:
    names = ("SEEN_A", "SEEN_B", "PYTHONPATH", "AORTA_BOOTSTRAP", "OMP_NUM_THREADS")
    known = {name: os.environ.get(name) for name in names}
    own = getattr(sys.modules.get("sitecustomize"), "OWN", None)
    bootstrap = [path for path in sys.path if "bootstrap" in path]
    print({"argv": sys.argv[1:], "env": known, "own": own, "bootstrap": bootstrap}, file=file)
"""


@pytest.mark.slow
def test_modules_variables_and_folders(stage: Stage) -> None:
    stage.write_file("work/json.py", "raise RuntimeError('torchrun itself must not find this')")
    stage.write_file("elsewhere/tools/__init__.py", "")
    stage.write_file("elsewhere/tools/tells.py", TELLS)
    stage.write_file("elsewhere/sitecustomize.py", "OWN = 'of the user'")
    stage.write(conftest="import pytest\n@pytest.fixture\ndef aorta_extra_env(): return {'SEEN_B': 'from conftest'}")
    with_tests(
        stage,
        """
from pathlib import Path

def test_module(aorta_torchrun):
    variables = {"SEEN_A": "1", "PYTHONPATH": str(Path("elsewhere").absolute())}
    arguments = ["--steps", 3, Path("a b")]
    done = aorta_torchrun("-m", "tools.tells", *arguments, cwd="work", env=variables, mitigations=["omp_1"])
    assert done.ok, done.message
    assert (done.trial.workload, done.trial.mitigations_applied) == ("tools.tells", ["omp_1"])
    told = eval(Path("work/told").read_text())
    seen = {"SEEN_B": "from conftest", "AORTA_BOOTSTRAP": None, "OMP_NUM_THREADS": "1", **variables}
    assert told == {"argv": ["--steps", "3", "a b"], "env": seen, "own": "of the user", "bootstrap": []}
    assert done.trial.env["env_vars"]["SEEN_A"] == "1"
""",
    )
    stage.run("test_it.py").assert_outcomes(passed=1)
    [path] = stage.files()
    assert path.split("/")[1:] == ["tools.tells@local-omp_1", "trial_0.json"]
    assert stage.trial(path)["config"]["arguments"] == ["--steps", "3", "a b"]


@pytest.mark.slow
def test_what_prevents_the_start_is_an_error_that_says_what_would_be_valid(scripts: Stage) -> None:
    scripts.write_file("package/__init__.py", "raise RuntimeError('imported')")
    with_tests(
        scripts,
        """
import pytest

@pytest.mark.parametrize("error, arguments, keywords, said", [
    (FileNotFoundError, ["trian.py"], {}, "there is no script 'trian.py' in .*; for a module, '-m' comes first"),
    (FileNotFoundError, ["/no/train.py"], {}, "there is no script '/no/train.py' in "),
    (FileNotFoundError, ["train.py"], {"cwd": "nowhere"}, "cwd='nowhere' is no folder"),
    (ModuleNotFoundError, ["-m", "no_such.train"], {}, "there is no module 'no_such.train' in .* or on sys.path"),
    (ModuleNotFoundError, ["-m", "package.train"], {}, "there is no module 'package.train' in "),
    (ModuleNotFoundError, ["-m", "package"], {}, "'package' is a package without __main__"),
    (ValueError, ["-m"], {}, "'-m' is followed by no module"),
    (ValueError, ["--standalone", "train.py"], {}, "'--standalone' is no script; torchrun's options are the keywords"),
    (ValueError, ["train.py"], {"nproc": 0}, "nproc: 0 is not valid; expected a whole number of at least 1"),
    (ValueError, ["train.py"], {"max_restarts": -1}, "max_restarts: -1 is not valid; expected a whole number"),
    (ValueError, ["train.py"], {"timeout": 0}, "timeout: 0 is not valid; expected a number of seconds above 0"),
    (TypeError, ["train.py", None], {}, "an argument of the script is a NoneType; expected a text, a path or a number"),
    (ValueError, ["train.py"], {"env": {"RANK": "1"}}, "RANK is set by the launcher of the ranks"),
    (Exception, ["train.py"], {"mitigations": ["tf23_off"]}, "tf32_off"),
    (Exception, ["train.py"], {"ranks": 3}, "aorta_torchrun has no keyword 'ranks'; it takes nproc, env, max_restarts"),
])
def test_it(aorta_torchrun, error, arguments, keywords, said):
    with pytest.raises(error, match=said):
        aorta_torchrun(*arguments, **keywords)

def test_index(aorta_torchrun, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="torchrun is to start train, but pytest is a rank already"):
        aorta_torchrun("train.py", "none")
""",
    )
    scripts.run("test_it.py").assert_outcomes(passed=16)
    assert scripts.files() == []


@pytest.mark.slow
def test_ctrl_c_ends_the_ranks_and_leaves_a_record(stage: Stage) -> None:
    stage.write(train="import os, time\nopen('running_' + os.environ['RANK'], 'w').close()\ntime.sleep(1000)\n")
    with_tests(stage, "def test_it(aorta_torchrun):\n    aorta_torchrun('train.py', nproc=2)\n")
    process = stage.start("test_it.py")
    stage.wait_until(lambda: len(list(stage.path.glob("running_*"))) == 2)
    stage.press_ctrl_c(process)
    [record] = stage.trials().values()
    ended = (record["exit_status"], record["failure"]["message"])
    assert ended == ("infrastructure_failed", "interrupted: KeyboardInterrupt")
    assert stage.left_running() == []
