"""Scripts and modules under the real torchrun, started by the fixture ``aorta_torchrun``."""

from __future__ import annotations

import pytest
from support.stage import Stage

#: What is wrong with rank 1 is the first argument; rank 0 waits for it to be ended.
SCRIPT = """
import ctypes, os, signal, sys, time

rank = int(os.environ["RANK"])
fault = sys.argv[1]

def stuck():
    time.sleep(1000)

def main():
    print("rank", rank, "of", os.environ["WORLD_SIZE"], flush=True)
    if fault == "none":
        return
    if fault == "first_time_only":
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
            return
    if fault == "stubborn_peer" and rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("ready", "w").close()
    if rank == 1:
        while fault == "stubborn_peer" and not os.path.exists("ready"):
            time.sleep(0.01)
        if fault == "segfault":
            ctypes.string_at(0)
        if fault == "exit":
            sys.exit(3)
        if fault == "hang":
            stuck()
        raise ValueError("what is wrong here")
    if fault == "hang":
        return
    time.sleep(1000)

if fault == "recorded":
    from torch.distributed.elastic.multiprocessing.errors import record
    main = record(main)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def scripts(stage: Stage) -> Stage:
    stage.write(train=SCRIPT)
    return stage


def with_tests(stage: Stage, tests: str) -> None:
    (stage.path / "test_it.py").write_text(tests)


def statuses(stage: Stage) -> dict[str, str]:
    """Exit statuses by the name of the test, which the folder's name begins with, and of the workload."""
    found = {}
    for path, status in stage.statuses().items():
        test, cell, file = path.split("/")
        found[f"{test.removeprefix('test_it.py@')}/{cell.removesuffix('@local-none')}/{file}"] = status
    return found


FAULTS = """
def test_passes(aorta_torchrun):
    done = aorta_torchrun("train.py", "none", nproc=2)
    assert done.ok, done.message
    assert (done.exit_status, done.returncode, done.restarts, done.failure) == ("ok", 0, 0, None)
    assert done.message == "train on 2 ranks: ok"
    assert [done.stdout(rank) for rank in (0, 1)] == ["rank 0 of 2\\\\n", "rank 1 of 2\\\\n"]
    assert [(rank.rank, rank.exit_code, rank.failure) for rank in done.ranks] == [(0, 0, None), (1, 0, None)]
    assert done.elapsed_sec is not None
    assert done.elapsed_sec > 0
    assert (done.folder / "stderr.log").is_file()

def check_exception(done):
    assert (done.exit_status, done.returncode) == ("workload_failed", 1)
    assert (done.failure.rank, done.failure.kind, done.failure.type) == (1, "exception", "ValueError")
    assert done.ranks[1].failure.message == "what is wrong here"
    assert 'raise ValueError("what is wrong here")' in done.ranks[1].failure.traceback
    assert done.message.startswith("train on 2 ranks: workload_failed: rank 1: ValueError: what is wrong here\\\\n")
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

def test_exit(aorta_torchrun):
    done = aorta_torchrun("train.py", "exit", nproc=2)
    assert (done.failure.rank, done.failure.kind, done.failure.exit_code) == (1, "exit_code", 3)
    assert done.ranks[1].exit_code == 3
    assert done.message.startswith("train on 2 ranks: workload_failed: rank 1: ended itself with exit code 3")

def test_restarts(aorta_torchrun):
    done = aorta_torchrun("train.py", "first_time_only", nproc=2, max_restarts=1)
    assert done.ok, done.message
    assert done.restarts == 1
    [attempt] = done.trial.elastic.attempts
    assert (attempt.failure.rank, attempt.failure.type) == (1, "ValueError")

def test_twice(aorta_torchrun):
    assert aorta_torchrun("train.py", "none").ok
    assert not aorta_torchrun("train.py", "exit", nproc=2).ok
""".replace("\\\\n", "\\n")


STATUSES = {
    "test_passes/train/trial_0.json": "ok",
    "test_raises/train/trial_0.json": "workload_failed",
    "test_raises_recorded/train/trial_0.json": "workload_failed",
    "test_segfault/train/trial_0.json": "workload_failed",
    "test_exit/train/trial_0.json": "workload_failed",
    "test_restarts/train/trial_0.json": "ok",
    "test_twice/train/trial_0.json": "ok",
    "test_twice/train/trial_1.json": "workload_failed",
}


def test_a_script_and_its_segfault_are_in_the_result_and_in_a_trial_file(scripts: Stage) -> None:
    with_tests(scripts, FAULTS)
    scripts.run("test_it.py", "-k", "test_passes or test_segfault").assert_outcomes(passed=2)
    found = statuses(scripts)
    assert list(found) == ["test_passes/train/trial_0.json", "test_segfault/train/trial_0.json"]
    assert found.items() <= STATUSES.items()
    assert scripts.left_running() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers",
    [
        pytest.param((), id="here"),
        pytest.param(("-n", "2"), marks=pytest.mark.long, id="xdist"),
        pytest.param(("--aorta-isolation", "spawn"), marks=pytest.mark.long, id="spawn"),
    ],
)
@pytest.mark.long
def test_what_a_script_does_is_in_the_result_and_in_a_trial_file(scripts: Stage, workers: tuple[str, ...]) -> None:
    with_tests(scripts, FAULTS)
    # In parts: eight times torchrun takes minutes on a loaded machine.
    for part, passed in (("passes or raises", 3), ("segfault or exit", 2), ("restarts or twice", 2)):
        scripts.run("test_it.py", "-k", part, *workers).assert_outcomes(passed=passed)
    assert statuses(scripts) == STATUSES
    assert scripts.left_running() == []


HANG = """
def test_hang(aorta_torchrun):
    done = aorta_torchrun("train.py", "hang", nproc=2{own})
    assert (done.exit_status, done.returncode, done.failure.rank) == ("timeout", None, 1)
    where = "rank 0: exited 0; rank 1: stuck() at train.py line 7"
    assert f"the deadline of {limit} s passed in run(); {{where}}" in done.message
    assert (done.ranks[0].exit_code, done.ranks[0].failure) == (0, None)
    assert (done.ranks[1].exit_code, done.ranks[1].failure.kind) == (None, "timeout")
    assert "in stuck" in (done.folder.parent / done.failure.stacks).read_text()
    assert done.stdout(1) == "rank 1 of 2\\n"
"""


@pytest.mark.parametrize(
    ("own", "general"),
    [("", "25"), pytest.param(", timeout=25", "6", marks=pytest.mark.long)],
    ids=["general", "own"],
)
@pytest.mark.slow
@pytest.mark.long
def test_a_rank_that_hangs_is_ended_and_says_where_it_was(scripts: Stage, own: str, general: str) -> None:
    """The deadline counts from the start of torchrun, which alone takes more than 6 s on a loaded machine."""
    with_tests(scripts, HANG.format(own=own, limit=25))
    scripts.run("test_it.py", "--aorta-timeout", general).assert_outcomes(passed=1)
    assert set(scripts.statuses().values()) == {"timeout"}
    assert scripts.left_running() == []


TELLS = """
import os, sys
with open("told", "w") as file:
    names = ("SEEN_A", "SEEN_B", "PYTHONPATH", "AORTA_BOOTSTRAP", "OMP_NUM_THREADS")
    known = {name: os.environ.get(name) for name in names}
    own = getattr(sys.modules.get("sitecustomize"), "OWN", None)
    bootstrap = [path for path in sys.path if "bootstrap" in path]
    print({"argv": sys.argv[1:], "env": known, "own": own, "bootstrap": bootstrap}, file=file)
"""


def test_modules_variables_and_folders(stage: Stage) -> None:
    (stage.path / "work").mkdir()
    (stage.path / "work" / "json.py").write_text("raise RuntimeError('torchrun itself must not find this')\n")
    package = stage.path / "elsewhere" / "tools"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "tells.py").write_text(TELLS)
    (stage.path / "elsewhere" / "sitecustomize.py").write_text("OWN = 'of the user'\n")
    (stage.path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef aorta_extra_env():\n    return {'SEEN_B': 'from conftest'}\n"
    )
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


def test_what_prevents_the_start_is_an_error_that_says_what_would_be_valid(scripts: Stage) -> None:
    (scripts.path / "package").mkdir()
    (scripts.path / "package" / "__init__.py").write_text("raise RuntimeError('imported')\n")
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
    scripts.run("test_it.py").assert_outcomes(passed=15)
    assert scripts.files() == []


@pytest.mark.slow
def test_ctrl_c_ends_the_ranks_and_leaves_a_record(stage: Stage) -> None:
    stage.write(train="import os, time\nopen('running_' + os.environ['RANK'], 'w').close()\ntime.sleep(1000)\n")
    with_tests(stage, "def test_it(aorta_torchrun):\n    aorta_torchrun('train.py', nproc=2)\n")
    process = stage.start("test_it.py")
    stage.wait_until(lambda: len(list(stage.path.glob("running_*"))) == 2)
    stage.press_ctrl_c(process)
    [record] = stage.trials().values()
    assert (record["exit_status"], record["failure"]["message"]) == (
        "infrastructure_failed",
        "interrupted: KeyboardInterrupt",
    )
    assert stage.left_running() == []


@pytest.mark.slow
def test_a_script_beside_its_test_is_found_and_run_again_when_resuming(stage: Stage) -> None:
    stage.write_file("tests/train.py", "import imported\nprint('hello')\n")
    stage.write_file("tests/imported.py", "")
    test = "def test_it(aorta_torchrun):\n    assert aorta_torchrun('train.py').stdout() == 'hello\\n'\n"
    stage.write_file("tests/test_it.py", test)
    stage.run("tests/test_it.py").assert_outcomes(passed=1)
    stage.write_file("tests/imported.py", "raise SystemExit(1)")
    stage.run("tests/test_it.py", "--aorta-resume").assert_outcomes(failed=1)
    assert list(stage.statuses().values()) == ["workload_failed"]
    assert len(stage.earlier()) == 1
