"""``--aorta-command``: any command is a workload, and what becomes of it is what becomes of a trial."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from typing import Any

import pytest
from support.processes import free_port
from support.stage import Stage, counts, make_venv, text

from pytest_aorta import RequestError, RunRequest, run_trials

pytestmark = pytest.mark.usefixtures("as_users_have_it")

PYTHON = shlex.quote(sys.executable)

#: Ends as the number of its trial says.
ENDS = """
import ctypes, os, signal, sys
print("begins")
print("to stderr", file=sys.stderr)
way = int(sys.argv[1])
if way == 1: sys.exit(3)
if way == 2: raise ValueError("too bad")
if way == 3: os.kill(os.getpid(), signal.SIGKILL)
if way == 4: ctypes.string_at(0)
"""

#: Says what its arguments say.
SAYS = """
import sys
for word in sys.argv[2:]:
    print(word)
sys.exit(int(sys.argv[1]))
"""

#: Two ranks, of which rank 1 does at step 3 what the argument says.
RANKS = r"""
import os, sys
import torch, torch.distributed as dist
how = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(1, 5):
    dist.all_reduce(torch.ones(1))
    print(f"step {step}/4 loss {rank}.{step}", flush=True)
    if step == 3 and rank == 1:
        if how == "says":
            print("NaN in gradient")
        if how == "again" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(9)
    dist.barrier()
dist.destroy_process_group()
"""

STEPS = ("--aorta-metric", r"step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>\S+)")


def command(words: str) -> tuple[str, str]:
    return "--aorta-command", f"{PYTHON} {words}"


def test_its_exit_status_is_the_outcome_of_the_trial(stage: Stage) -> None:
    stage.write(ends=ENDS)
    result = stage.run_here(*command("ends.py {trial}"), "--aorta-trials", "5", "-v")
    result.assert_outcomes(passed=1, failed=4)
    assert list(stage.words(result)) == [f"command-ends[local-none-{index}]" for index in range(5)]
    trials = list(stage.trials().values())
    assert [trial["exit_status"] for trial in trials] == ["ok"] + ["workload_failed"] * 4
    assert [trial["result"]["metrics"]["returncode"] for trial in trials] == [0, 3, 1, -9, -11]
    failures = [trial["failure"] for trial in trials[1:]]
    assert [failure["kind"] for failure in failures] == ["exit_code", "exception", "signal", "signal"]
    assert failures[0]["message"] == "ended itself with exit code 3: to stderr"
    assert (failures[1]["type"], failures[1]["message"]) == ("ValueError", "too bad")
    assert "ends.py" in failures[1]["traceback"]
    assert [failure["signal"] for failure in failures[2:]] == ["SIGKILL", "SIGSEGV"]
    assert "ends.py" in failures[3]["traceback"]
    for trial in trials:
        assert (stage.results / "command-ends" / trial["artifacts"]["stdout"]).read_text() == "begins\n"
        assert "to stderr\n" in (stage.results / "command-ends" / trial["artifacts"]["stderr"]).read_text()


def test_it_is_the_same_where_pytest_was_started_with_sigchld_ignored(stage: Stage) -> None:
    stage.write(ends=ENDS)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        result = stage.run_here(*command("ends.py {trial}"), "--aorta-trials", "2")
    finally:
        signal.signal(signal.SIGCHLD, before)
    result.assert_outcomes(passed=1, failed=1)
    assert stage.trial("command-ends/trial_1.json")["failure"]["exit_code"] == 3


def test_a_script_without_a_first_line_runs_in_sh_as_in_a_shell(stage: Stage) -> None:
    script = stage.write_file("go", 'test "$1" = "a b" && test "$AORTA_TRIAL" = "$AORTA_TRIAL_INDEX" && exit 3')
    script.chmod(0o755)
    stage.run_here("--aorta-command", "./go 'a b'").assert_outcomes(failed=1)
    assert stage.trial("command-go/trial_0.json")["failure"]["exit_code"] == 3


def test_steps_metrics_and_the_step_of_the_first_failure_are_in_the_result(stage: Stage) -> None:
    stage.write(
        train="""
        import time
        for step, loss in enumerate([0.5, 0.25, float("nan"), 0.125], 1):
            print(f"step {step}/4 loss {loss}")
            time.sleep(0.02)
        """
    )
    result = stage.run_here(*command("train.py"), *STEPS)
    result.stdout.fnmatch_lines(["workload_failed in run: loss is nan at step 3", "*1x NaN in loss*"])
    (trial,) = stage.trials().values()
    result = trial["result"]
    assert result["metrics"] == {"loss": 0.125, "returncode": 0}
    assert (result["failure_count"], result["first_failure_iteration"]) == (1, 3)
    assert (result["total_iterations"], result["executed_iterations"], result["configured_iterations"]) == (4, 4, 4)
    assert len(result["step_times_ms"]) == 3
    assert result["elapsed_sec"] >= 0.08
    # No process of the trial has imported torch for it.
    assert "torch" not in trial["env"]["end"].get("imported", {})
    assert trial["preloaded"] == []


def test_the_variables_of_a_cell_are_there_and_nothing_else_has_changed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    stage.write(
        looks="""
        import json, os, sys
        json.dump([sys.argv, sys.path, dict(os.environ), os.getcwd()], open(sys.argv[1] + "/seen.json", "w"))
        """
    )
    stage.run_here(*command("looks.py {dir} '{\"a\": {trial}}' x{seed}"), "--aorta-mitigations", "omp_1")
    trial = stage.trial("command-looks/trial_0.json")
    folder = stage.results / "command-looks" / "trial_0" / "files"
    argv, path, variables, cwd = json.loads((folder / "seen.json").read_text())
    assert argv[1:] == [str(folder), '{"a": 0}', f"x{trial['result']['metrics']['seed']}"]
    assert (path[0], cwd) == (str(stage.path), str(stage.path))
    assert not any("bootstrap" in each for each in path)
    added = {"AORTA_TRIAL_INDEX", "AORTA_TRIAL", "AORTA_TRIAL_DIR", "AORTA_TRIAL_SEED", "TMPDIR", "PYTHONUNBUFFERED"}
    added |= {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    changed = {name for name in variables.keys() | os.environ.keys() if variables.get(name) != os.environ.get(name)}
    own = {"PYTEST_AORTA_ZYGOTE", "PYTEST_CURRENT_TEST", "PYTEST_VERSION", "PYTEST_AORTA_GRACE"}
    assert changed - own - {name for name in changed if name.startswith("PYTEST_XDIST")} == added
    assert variables["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("words", "ranks", "missing"),
    [
        ("trian --steps 4", (), "program 'trian' in the folders of PATH: */*"),
        (f"{PYTHON} -u trian.py --steps 4", (), "file 'trian.py' in */*"),
        (f"{PYTHON} -u trian.py --steps 4", ("--aorta-nproc", "2"), "file 'trian.py' in */*"),
    ],
)
def test_what_is_not_there_has_not_run(stage: Stage, words: str, ranks: tuple[str, ...], missing: str) -> None:
    result = stage.run_here("--aorta-workload", "command", "--aorta-config", f"command={words}", *ranks)
    assert counts(result) == {"errors": 1}
    result.stdout.fnmatch_lines([f"infrastructure_failed in setup: CommandNotFound: there is no {missing}"])
    assert "Traceback" not in text(result)
    assert set(stage.statuses().values()) == {"infrastructure_failed"}


#: Does one step, or what its argument says before it.
LACKS = """
import sys
way = sys.argv[1]
if way == "driver": raise RuntimeError("Found no NVIDIA driver on your system.")
if way == "module": import nowhere
if way == "file": open("nowhere.bin")
if way == "says": print("Unable to locate sufficient 2 gpus")
if way == "nothing": sys.exit(0)
if way.isdigit(): sys.exit(int(way))
print("step 1/1 loss", 1 if way != "nan" else "\x1b[31mtensor(nan, device='cuda:0')\x1b[0m")
print("CUDA out of memory." if way == "oom" else "")
if way == "late": open("nowhere.bin")
if way == "oom": sys.exit(3)
"""


@pytest.mark.slow
def test_what_says_nothing_about_the_workload_is_not_counted(stage: Stage) -> None:
    stage.write(lacks=LACKS)
    ways = ("driver", "module", "file", "127", "nothing", "says", "77", "125", "late", "oom", "nan", "fine")
    commands = [option for way in ways for option in command(f"lacks.py {way}")]
    commands[7] = "bash -c './nowhere {trial}'"
    given = ("--aorta-skip-on", "Unable to locate", *STEPS, "--aorta-metric", "never (?P<said>x)", "-rs")
    result = stage.run_here(*commands, *given)
    assert counts(result) == {"skipped": 3, "failed": 7, "passed": 2}
    trials = {path.split("/")[0].removeprefix("command-lacks-"): trial for path, trial in stage.trials().items()}
    assert [trials[way]["failure"]["type"] for way in ("driver", "module", "file")] == [
        *("RuntimeError", "ModuleNotFoundError", "FileNotFoundError"),
    ]
    status = {way: trial["exit_status"] for way, trial in trials.items()}
    assert [way for way in status if status[way] == "infrastructure_failed"] == ["125", "77", "says"]
    assert [way for way in status if status[way] == "ok"] == ["fine", "nothing"]
    assert trials["nothing"]["warnings"] == ["passed=True, but no line of its output says a step"]
    assert trials["nan"]["failure"]["message"] == "loss is nan at step 1"
    assert trials["oom"]["result"]["output"]["detected"]["oom"] == {
        "lines": 1,
        "first": "CUDA out of memory.",
        "step": 1,
    }
    assert trials["fine"]["result"]["output"]["matched"][f"metric '{STEPS[1]}'"] == 1
    result.stdout.fnmatch_lines(
        [
            "    not counted: 1 did not run",
            "    why: cannot judge: exit code 77",
            "*oom 1",
            "*1x exit code 3 (oom)*",
            "warning: --aorta-metric 'never (?P<said>x)' matched in 0 of * trials",
            "SKIPPED*: cannot judge: Unable to locate sufficient 2 gpus",
        ]
    )
    matrix = json.loads((stage.results / "matrix.json").read_text())
    counted = {cell["workload"].removeprefix("command-lacks-"): cell["counted"] for cell in matrix["cells"]}
    # Those of which each trial lacked the same before its first step did not run.
    assert {way for way, trials in counted.items() if not trials} >= {"77", "125", "driver", "module", "file", "says"}
    assert {way for way, trials in counted.items() if trials} == {"late", "oom", "nan", "fine", "nothing"}


def test_the_gpus_that_a_command_has_open_at_its_end_are_in_the_record(stage: Stage) -> None:
    stage.write(
        train="""
        import itertools, os
        # A stand-in for what a process with a CUDA context has open.
        opened = ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia-caps/nvidia-cap1", "dri/renderD128", "dri/card0"]
        names = itertools.cycle("/dev/" + name for name in opened)
        held = [open(os.devnull) for _ in opened]
        os.readlink = lambda path: next(names)
        """
    )
    stage.run_here(*command("train.py"), "--aorta-trials", "1")
    (trial,) = stage.trials().values()
    assert trial["result"]["output"]["devices"] == ["nvidia0", "renderD128"]


def test_what_a_program_does_after_its_deadline_does_not_say_where_it_hung(stage: Stage) -> None:
    # SIGTERM ends the child that it waits for, and it goes on to its last line.
    stage.write(
        hangs="""
        import signal, subprocess, sys
        signal.signal(signal.SIGTERM, lambda *_: None)
        def waits():
            subprocess.run([sys.executable, "-c", "import time; time.sleep(1000)"])
        waits()
        """
    )
    result = stage.run_here(*command("hangs.py"), "--aorta-timeout", "5", "-o", "aorta_grace=5")
    result.stdout.fnmatch_lines(["timeout in run: the deadline of 5 s passed in run()*waits() at hangs.py*"])


def test_a_hang_is_ended_with_all_its_processes_and_its_stacks_are_kept(stage: Stage) -> None:
    stage.write(
        hangs="""
        import subprocess, sys, time
        def waits():
            subprocess.run([sys.executable, "-c", "import time; time.sleep(1000)"])
        print("step 7/9 loss 1")
        waits()
        """,
        locks="""
        import threading
        a, b, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
        def takes(first, second):
            with first:
                both.wait()
                with second:
                    pass
        threads = [threading.Thread(target=takes, args=locks) for locks in ((a, b), (b, a))]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
    )
    result = stage.run_here(
        *command("hangs.py"), *command("locks.py"), *STEPS, "--aorta-timeout", "5", "--aorta-slots", "2"
    )
    result.stdout.fnmatch_lines(
        ["timeout in run: the deadline of 5 s passed in run(), after step 7 of 9; *waits() at hangs.py*"]
    )
    result.stdout.fnmatch_lines(
        [
            "*the deadline of 5 s passed in run(); takes waits for lock second at locks.py:6 (2 threads)",
            "--- stacks (trial_0/stacks.log) ---",
            "Thread 0x* (most recent call first):",
            '  File "*/locks.py", line 6 in takes',
            "*1x timeout in wait for locks (locks.py:6 in takes)",
        ]
    )
    assert list(stage.statuses().values()) == ["timeout", "timeout"]
    assert "step 7/9" in (stage.results / "command-hangs" / "trial_0" / "stdout.log").read_text()
    stacks = (stage.results / "command-hangs" / "trial_0" / "stacks.log").read_text()
    assert "in waits" in stacks
    (below,) = (stage.results / "command-hangs" / "trial_0" / "processes").glob("*.stacks.log")
    assert 'File "<string>", line 1 in <module>' in below.read_text()  # of the process that it has started
    stage.wait_until_alone()


def test_several_commands_are_several_workloads_that_can_be_chosen(stage: Stage) -> None:
    stage.write(says=SAYS, other="print(1)")
    words = ("says.py 0 x", "says.py 0 y", "other.py")
    commands = [*(option for each in words for option in command(each)), "--aorta-trials", "2", "-v"]
    collected = stage.run_here(*commands, "--collect-only", "-qq")
    names = [f"command-{name}[local-none-{trial}]" for trial in "01" for name in ("says-x", "says-y", "other")]
    listed = [line.removeprefix("aorta::") for line in collected.outlines if line.startswith("aorta::")]
    assert listed[:3] == names[:3]
    assert sorted(listed[3:]) == sorted(names[3:])
    result = stage.run_here(*commands, "-k", "says-y or other")
    assert sorted(stage.words(result)) == sorted(name for name in names if "says-x" not in name)
    assert stage.files() == [f"command-{name}/trial_{trial}.json" for name in ("other", "says-y") for trial in "01"]
    result = stage.run_here(*commands, "aorta::command-says-x[local-none-1]")
    assert list(stage.words(result)) == ["command-says-x[local-none-1]"]


def test_the_workload_has_the_same_as_typed_options(stage: Stage) -> None:
    stage.write(says=SAYS)
    given = {
        "command": f"{PYTHON} says.py 0 'step 1 loss inf' bad",
        "fail_on": ["b[a]d", "worse"],
        "pass_on": ["bad; or better", "bad"],
        "metric": [r"step (?P<step>\d+) loss (?P<loss>\S+)"],
        "fail_on_nonfinite": True,
    }
    (record,) = run_trials(RunRequest("command", 1, config_overrides=given, results_dir=stage.results))
    rest = {"skip_on": [], "metrics_from": [], "allow_nonfinite": [], "depends": [], "stdin": "", "observe": "auto"}
    assert record.config == {**given, **rest, "unbuffered": True}
    assert (record.result.failure_count, record.result.metrics["returncode"]) == (2, 0)

    texts = {"command": f"{PYTHON} says.py 0 x", "fail_on": "[xy]", "pass_on": '["a", "b"]'}
    (record,) = run_trials(RunRequest("command", 1, config_overrides=texts, results_dir=stage.results))
    assert (record.config["fail_on"], record.config["pass_on"]) == (["[xy]"], ["a", "b"])
    with pytest.raises(RequestError, match=r"command=\{\}: Field required"):
        run_trials(RunRequest("command", 1, results_dir=stage.results))


@pytest.mark.slow
def test_resume_knows_the_modules_of_the_processes_of_a_trial_and_what_it_is_told(stage: Stage) -> None:
    """Through shells, and of modules that no word names."""
    stage.write(
        a="""
        import importlib, subprocess, sys
        importlib.import_module("plug" + "in")
        subprocess.run([sys.executable, "b.py"], check=True)
        """,
        b="import other",
        plugin="x = 1",
        other="",
    )
    stage.write_file("go", f"where=.\n{PYTHON} $where/a.py && true\n").chmod(0o755)
    given = ("--aorta-command", "./go", "--aorta-resume", "--aorta-depends", "go", "--aorta-cwd")

    def start(cwd: str) -> object:
        stage.run_here(*given, cwd).assert_outcomes(passed=1)
        return stage.trial("command-go/trial_0.json")["started_at"]

    for cwd, changed in (("here", ("plugin.py", "other.py")), ("copy", ("a.py",))):
        last = start(cwd)
        for name in changed:
            path = stage.path / name
            path.write_text(path.read_text() + "\n# changed")
            before, last = last, start(cwd)
            assert last != before, name
    assert start(cwd) == last


def test_a_command_of_which_that_cannot_be_known_is_kept_only_with_depends(stage: Stage) -> None:
    stage.write_file("Makefile", "all:\n\tcat input")
    stage.write_file("input", "1")
    given = ("--aorta-command", "sh -c 'cat input'", "--aorta-resume")
    stage.run_here(*given)
    again = stage.run_here(*given)
    again.stdout.fnmatch_lines(["1 earlier result not kept: what 'sh' reads is not known; --aorta-depends PATH says *"])
    kept = "1 of 1 trial had a result already*"
    stage.run_here(*given, "--aorta-depends", "input", "--aorta-depends", "Makefile")
    stage.run_here(*given, "--aorta-depends", "input", "--aorta-depends", "Makefile").stdout.fnmatch_lines([kept])
    stage.write_file("input", "2")
    again = stage.run_here(*given, "--aorta-depends", "input", "--aorta-depends", "Makefile")
    again.stdout.fnmatch_lines(["1 earlier result not kept: input changed"])


def test_a_replay_runs_the_same_command_with_the_same_seed(stage: Stage) -> None:
    stage.write(draws="import sys\nprint('seed', sys.argv[1])")
    stage.run_here(*command("draws.py {seed}"), "--aorta-trials", "2", "--aorta-metric", r"seed (?P<drawn>\d+)")
    one, two = (trial["result"]["metrics"] for trial in stage.trials().values())
    assert one["drawn"] == one["seed"] != two["seed"]
    assert 0 <= one["seed"] < 2**31
    stage.run_here("--aorta-replay", "results/command-draws/trial_1.json").assert_outcomes(passed=1)
    replayed = stage.trial("replay/command-draws/local-none/trial_1.json")
    assert (replayed["result"]["metrics"], replayed["replay_of"]["differences"]) == (two, [])


@pytest.mark.slow
@pytest.mark.long
def test_output_or_steps_keep_the_stall_limit_away(stage: Stage) -> None:
    stage.write(prints="import time\nfor i in range(60):\n    print('line', i)\n    time.sleep(0.25)")
    limit = (*command("prints.py"), "-o", "aorta_stall_timeout=10")
    stage.run_here(*limit).assert_outcomes(passed=1)
    stage.run_here(*limit, "--aorta-metric", r"line (?P<step>\d+)").assert_outcomes(passed=1)
    stage.run_here(*limit, "--aorta-metric", r"step (?P<step>\d+)").assert_outcomes(failed=1)
    assert stage.trial("command-prints/trial_0.json")["failure"]["kind"] == "stall"


@pytest.mark.slow
def test_a_command_runs_in_its_environment(stage: Stage) -> None:
    make_venv(stage.path / "venv", with_ours=True)
    stage.write(where="import os, sys; print('prefix', sys.prefix); print('launched', os.environ.get('LAUNCHED'))")
    behind = {"launcher": ["env", "LAUNCHED=yes"]}
    stage.write_registry(environments={"own": {"venv": str(stage.path / "venv")}, "behind": behind})
    stage.run_here(
        *("--aorta-command", "python where.py", "--aorta-registry-file", "registry.json"),
        *("--aorta-environment", "own", "--aorta-environment", "behind"),
        *("--aorta-metric", r"prefix (?P<prefix>\S+)", "--aorta-metric", r"launched (?P<launched>\S+)"),
    ).assert_outcomes(passed=2)
    seen = {trial["cell"]: trial["result"]["metrics"] for trial in stage.trials().values()}
    assert seen["own-none"]["prefix"] == str(stage.path / "venv")
    assert seen["behind-none"]["launched"] == "yes"


@pytest.mark.slow
@pytest.mark.long
def test_what_any_rank_says_or_does_fails_the_trial(stage: Stage) -> None:
    stage.write(ranks=RANKS)

    def played(how: str, *options: str) -> dict[str, Any]:
        stage.run_here(*command(f"ranks.py {how} --log x"), "--aorta-nproc", "2", *STEPS, *options)
        return stage.trial("command-ranks/trial_0.json")

    trial = played("says", "--aorta-fail-on", "NaN")
    assert trial["exit_status"] == "workload_failed"
    assert trial["failure"]["message"] == "rank 1: its output matches 'NaN' at step 3: NaN in gradient"
    assert trial["result"]["failure_details"][0] == {"message": "NaN in gradient", "step": 3, "rank": 1}
    trial = played("again", "--aorta-elastic", "max_restarts=1")
    assert (trial["exit_status"], trial["elastic"]["restarts"]) == ("ok", 1)
    assert played("passes", "--aorta-pass-on", "loss 1.4")["exit_status"] == "ok"


def test_a_command_that_waits_for_a_child_hangs_where_the_child_does(stage: Stage) -> None:
    stage.write(
        child="import time\ndef load():\n    time.sleep(600)\nload()\n",
        train="import subprocess, sys\nprint('step 1', flush=True)\nsubprocess.run([sys.executable, 'child.py'])\n",
    )
    stage.run("--aorta-command", "python train.py", "--aorta-timeout", "4")
    trial = stage.trial("command-train/trial_0.json")
    assert trial["failure"]["message"].endswith("; run in train.py line 3 waits for a child; load() at child.py line 3")


def test_a_deadline_that_passes_in_the_import_of_a_library_says_nothing_of_the_program(stage: Stage) -> None:
    library = stage.path / "lib/python3.11/site-packages"
    library.mkdir(parents=True)
    (library / "heavy.py").write_text("import time\ntime.sleep(600)\n")
    stage.write(train=f"import sys\nsys.path.append({str(library)!r})\nimport heavy\nprint('step 1')\n")
    result = stage.run("--aorta-command", "python train.py", "--aorta-timeout", "4")
    trial = stage.trial("command-train/trial_0.json")
    assert (trial["exit_status"], trial["failure"]["phase"]) == ("timeout", "import")
    result.stdout.fnmatch_lines(["*did not run", "*timeout in import of heavy (train.py:3)"])


def test_a_port_that_a_trial_beside_it_has_is_hinted_at(stage: Stage) -> None:
    port = free_port()
    stage.write(
        serve=f"import socket, time\ns = socket.create_server(('127.0.0.1', {port}))\nprint('step 1')\ntime.sleep(1)\n"
    )
    beside = stage.run("--aorta-command", "python serve.py", "--aorta-trials", "2", "--aorta-slots", "2")
    beside.stdout.fnmatch_lines(["warning: *a port was in use, perhaps by a trial beside it: run one at a time*"])
    alone = stage.run("--aorta-command", "python serve.py", "--aorta-trials", "2", "--aorta-results-dir", "alone")
    assert "a port was in use" not in text(alone)
