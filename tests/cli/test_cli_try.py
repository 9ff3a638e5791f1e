"""``pytest-aorta try``: what it says of a command that it has never seen, and the line that it proposes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.projects import command
from support.stage import Stage

from pytest_aorta.cli.try_ import two_groups
from pytest_aorta.trials.readers import guessed_options

OWN = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # "python" is this one
TRY = (sys.executable, "-m", "pytest_aorta", "try")


def test_steps_and_metrics_are_guessed_from_lines() -> None:
    cases: list[tuple[list[str], dict[str, str]]] = [
        (["step 1 loss 11.0", "step 2 loss nan"], {"metric": r"step *(?P<step>\d+).*?\bloss *(?P<loss>\S+)"}),
        (
            ["Epoch 1 | Step 20/100 | loss=0.4", "Epoch 1 | Step 40/100 | loss=0.3"],
            {"metric": r"Step *(?P<step>\d+)/(?P<total>\d+).*?\bloss=(?P<loss>\S+)"},
        ),
        (
            ['{"step": 4, "val/loss": 0.5}', '{"step": 5, "val/loss": 0.4}'],
            {"metrics-from": "jsonl"},
        ),
        (
            ["iteration=1 dt=12 ms", "iteration=2 dt=9 ms"],
            {"metric": r"iteration=(?P<step>\d+).*?\bdt=(?P<step_ms>\S+)"},
        ),
        (["iter 10: loss 4.2, time 12.3ms", "iter 20: loss 4.1, time 12.1ms"], {"metrics-from": "nanogpt"}),
        ([f" 50%|##  | {n}/10 [00:01<00:01, 4.9it/s, loss=0.5]" for n in (5, 6)], {"metrics-from": "tqdm"}),
        ([f"Epoch 0: 50%|# | {n}/10 [00:01<00:01, 4.9it/s]" for n in (5, 6)], {"metrics-from": "lightning"}),
        ([" 5%|# | 1/9 [0:1<0:1]", " 9%|# | 2/9 [0:1<0:1]", "{'loss': 2.3}"], {"metrics-from": "hf"}),
        (
            [
                "update 1: iteration      10/  2500 loss:  3.2 tps: 7",
                "update 2: iteration      20/  2500 loss:  3.1 tps: 7",
            ],
            {"metric": r"iteration *(?P<step>\d+)/ *(?P<total>\d+).*?\bloss: *(?P<loss>\S+).*?\btps: *(?P<tps>\S+)"},
        ),
        (
            [f"{n}%|# | {n}/9 [00:01<00:01, 4.9it/s, loss=0.5, best=inf]" for n in (5, 6)],
            {"metrics-from": "tqdm", "allow-nonfinite": "best"},
        ),
        (
            ["step 1 loss 2.0 best inf", "step 2 loss 1.0 best inf"],
            {"metric": r"step *(?P<step>\d+).*?\bloss *(?P<loss>\S+)"},
        ),
        (["{'loss': '2.3', 'epoch': '0.5'}", "{'loss': '2.1', 'epoch': '1.0'}"], {"metrics-from": "hf"}),
        (  # as of pytorch/examples: the duration of a batch is no number of one
            [f"| epoch   {n} |    20/  229 batches | ms/batch  5.2{n} | loss  7.63 |" for n in (1, 2)],
            {"metric": r"epoch *(?P<step>\d+).*?\bms/batch *(?P<ms_batch>\S+).*?\bloss *(?P<loss>\S+)"},
        ),
        ([f"{n} samples, s/iter {n}.25" for n in (1, 2)], {}),
        (["step 1 loss 11.0"], {}),  # one line says nothing about others
        (["loading 2 files", "done in 3 s"], {}),
    ]
    for lines, options in cases:
        assert guessed_options(lines) == options
        for expression in filter(None, [options.get("metric")]):
            assert all(re.search(expression, line) for line in lines)


def test_a_wrong_line_is_refused() -> None:
    cases: list[tuple[list[str], str]] = [
        ([], "Missing argument 'PROGRAM"),
        (["--time", "soon", "--", "true"], "--time: 'soon' is not valid; expected a number of seconds above 0"),
        (["python train.py | tee log"], "no '|' outside of quotes"),
        (["--", "OMP_NUM_THREADS=1", "python"], "for variables, --aorta-extra-env NAME=VALUE"),
    ]
    for words, said in cases:
        result = command("try", *words)
        assert result.exit_code == 2
        assert said in result.output


def test_what_a_command_does_is_said_with_the_line_that_measures_it(stage: Stage) -> None:
    stage.write(
        train="""
        import os, pathlib, sys, numpy

        is_first = not pathlib.Path("model.pt").exists()
        for step in range(1, 6):
            print(f"step {step}/5 loss {(2 if is_first else 1) / step}")
        pathlib.Path("model.pt").write_text("weights")
        if os.environ["AORTA_TRIAL_INDEX"] == "1":
            print("step 5/5 loss nan")
        """
    )
    result = stage.aorta("try", "--", "python", "train.py", "--name", "a b", env=OWN)
    assert result.ret == 0, result.stderr.str()
    result.stdout.fnmatch_lines(
        [
            "It says NaN sometimes: in 1 of * runs.",
            "  starts   no launcher, no GPU",
            "  steps    the last is 5; * ms each (median of a run)",
            "  metrics  loss ends at 0.2 to 0.4",
            "  files    writes model.pt; so that no run finds what another has left, each gets a copy of this folder",
            "  output   says nan in 1 of * runs, such as 'step 5/5 loss nan'",
            "This line measures what may fix it:",
            "    pytest --aorta-command \"python train.py --name 'a b'\" *",
            "        --aorta-cwd copy *",
            r"        --aorta-metric 'step *(?P<step>\d+)/(?P<total>\d+).*?\bloss *(?P<loss>\S+)' *",
            "        --aorta-fail-on=@nan *",
            "        --aorta-mitigations none *",
            "        --aorta-mitigations omp_1 *",
            "        --aorta-mitigations malloc_perturb",
            "  omp_1 * one thread: *",
        ]
    )
    said = result.stdout.str()
    of_each, cells = re.search(r"--aorta-trials (\d+)", said), said.count("--aorta-mitigations")
    assert of_each is not None
    assert f"  At most {int(of_each[1]) * cells:,} trials in {cells} cells, " in said
    # Of the user, whose home this is, and of pytest-benchmark, where it is installed.
    left = {path.name for path in stage.path.iterdir()} - {".cache", ".benchmarks"}
    assert left == {"model.pt", "train.py"}


def test_a_command_that_cannot_run_is_no_fault(stage: Stage) -> None:
    result = stage.aorta("try", "--yes", "--", "python", "nowhere.py", env=OWN)
    assert result.ret == 2
    result.stderr.fnmatch_lines(["Error: the command 'python nowhere.py': there is no file 'nowhere.py' in *"])
    assert not list(stage.path.iterdir())


@pytest.mark.parametrize(
    ("source", "first"),
    [
        pytest.param(
            "import time\ntime.sleep(60)",
            "no run has ended within 3s: it waits (* % of a core, in time.sleep(60) at *:2).",
            marks=[pytest.mark.slow, pytest.mark.long],
        ),
        pytest.param(
            "import queue, threading\nthreading.Thread(target=lambda: queue.Queue().get()).start()",
            "no run has ended within 3s: it waits (* % of a core, in queue.get at train.py:2).",
            marks=pytest.mark.slow,
        ),
        (
            "def work():\n    while True: pass\nwork()",
            "no run has ended within 3s: it computes (* % of a core, in * at *).",
        ),
        pytest.param(
            "import endless",
            "no run has ended within 3s: it computes (* % of a core, in import endless).",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["sleeps", "thread", "computes", "imports"],
)
def test_a_slow_run_is_no_hang(stage: Stage, source: str, first: str) -> None:
    stage.write(train=source)
    stage.write_file("site-packages/endless.py", "while True: pass")
    result = stage.aorta("try", "--time", "3s", "--", "python", "train.py", env={**OWN, "PYTHONPATH": "site-packages"})
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"Still running; {first}", "To look longer: *pytest-aorta try --time 15s -- python *"])
    assert "hangs" not in result.stdout.str()
    assert "--aorta" not in result.stdout.str()


@pytest.mark.slow
def test_a_run_hangs_when_it_takes_longer_than_the_user_has_said(stage: Stage) -> None:
    stage.write(train="import time\ntime.sleep(60)")
    result = stage.aorta("try", "--time", "3s", "--timeout", "1s", "--", "python", "train.py", env=OWN)
    result.stdout.fnmatch_lines(["It hangs in *", "This line measures what may fix it:"])


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()",
            "its command line is wrong: the following arguments are required: --data",
        ),
        pytest.param(
            "open('weights.bin')",
            "FileNotFoundError: [[]Errno 2] No such file or directory: 'weights.bin'",
            marks=pytest.mark.slow,
        ),
        pytest.param("import nowhere", "ModuleNotFoundError: No module named 'nowhere'", marks=pytest.mark.slow),
        ("input()", "it reads standard input, which is empty (--stdin FILE gives each run one)"),
    ],
    ids=["arguments", "file", "module", "stdin"],
)
def test_what_cannot_run_is_said_without_a_proposal(stage: Stage, source: str, why: str) -> None:
    stage.write(train=source)
    result = stage.aorta("try", "--", "python", "train.py", env=OWN)
    assert result.ret == 1
    assert fnmatch(result.stdout.str(), f"It did not run: {why}")


@pytest.mark.slow
def test_a_file_that_is_missing_sometimes_is_a_failure(stage: Stage) -> None:
    stage.write(train='import os\nif os.environ["AORTA_TRIAL_INDEX"] in ("1", "2"):\n    open("lost")')
    result = stage.aorta("try", "--", "python", "train.py", env=OWN)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["It fails sometimes: in 2 of * runs.", "  fails    2x FileNotFoundError: *"])


@pytest.mark.slow
def test_two_ends_of_a_metric_are_two_outcomes(stage: Stage) -> None:
    stage.write(
        train="""
        import os
        for step in range(1, 4):
            print("step", step, "loss", 0.859 if int(os.environ["AORTA_TRIAL_INDEX"]) % 3 == 2 else 0.841)
        """
    )
    result = stage.aorta("try", "--", "python", "train.py", env=OWN)
    result.stdout.fnmatch_lines(
        [
            "It did not fail in * runs, but has two outcomes: 0.841 in * runs, 0.859 in * (loss).",
            "This line finds the first step that differs:",
            "*--aorta-collect divergence*",
        ]
    )


def test_groups_of_numbers() -> None:
    cases: list[tuple[list[float], tuple[tuple[float, int], ...] | None]] = [
        ([0.841] * 9 + [0.859] * 6, ((0.841, 9), (0.859, 6))),
        ([1.0, 1.001, 1.0005, 1.5, 1.5002, 1.5], ((1.0005, 3), (1.5, 3))),
        ([0.1, 0.22, 0.31, 0.39, 0.5, 0.61], None),
        ([0.841] * 5 + [0.859], None),
        ([0.841] * 9, None),
        ([0.841, 0.841, 0.859, 0.859], None),
    ]
    for values, groups in cases:
        assert two_groups(values) == groups


@pytest.mark.parametrize("way", ["option", pytest.param("file", marks=pytest.mark.slow), "pipe"])
def test_each_run_reads_the_standard_input(stage: Stage, way: str) -> None:
    stage.write(train="print('step 1 loss', input())\nprint('step 2 loss', input())")
    data = stage.write_file("data.txt", "0.5\n0.25")
    given = ["--stdin", "data.txt"] if way == "option" else []
    words = [*TRY, "--time", "3s", *given, "--", "python", "train.py"]
    env = {**OWN, "XDG_CACHE_HOME": str(stage.path / "cache")}
    if way == "pipe":
        process = stage.start_command(*words, env=env, stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(data.read_bytes())
        process.stdin.close()
        process.stdin = None
    else:
        process = stage.start_command(*words, env=env, stdin=data.open() if way == "file" else subprocess.DEVNULL)
    result = stage.finish(process)
    kept = "*/cache/pytest-aorta/stdin/*" if way == "pipe" else data
    result.stdout.fnmatch_lines(
        ["It did not fail in *", "  metrics  loss ends at 0.25", f"  stdin    each run reads {kept}", "*config stdin=*"]
    )


@pytest.mark.slow
def test_told_to_end_it_says_what_it_has_seen(stage: Stage) -> None:
    stage.write(train="import time\ntime.sleep(60)")
    (stage.path / "tmp").mkdir()
    for looked_for, ended in (("first.log", "yet."), ("first/*/trial_0/stdout.log", "*")):
        process = stage.start_command(*TRY, "--", "python", "train.py", env={**OWN, "TMPDIR": "tmp"})
        stage.wait_until(lambda at=looked_for: list(stage.path.glob(f"tmp/aorta-try-*/{at}")))  # type: ignore[misc]
        process.terminate()
        result = stage.finish(process)
        assert result.ret == 143
        result.stdout.fnmatch_lines([f"Stopped; no run has ended {ended}", "To look longer: *"])


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_seen(stage: Stage) -> None:
    stage.write(train='print("fine")')
    (stage.path / "tmp").mkdir()
    process = stage.start_command(*TRY, "--time", "1h", "--", "python", "train.py", env={**OWN, "TMPDIR": "tmp"})
    stage.wait_until(lambda: len(list(stage.path.glob("tmp/aorta-try-*/more/*/trial_*.json"))) >= 2)
    os.killpg(process.pid, signal.SIGINT)
    result = stage.finish(process)
    result.stdout.fnmatch_lines(
        [
            "It did not fail in * run*; its failure rate is below *",
            "This line looks longer, and compares speeds:",
            "*--aorta-stop speed,*",
            "  If it fails rarely, this line runs it until it fails, for 1h at most:",
            "    pytest '--aorta-command=python train.py' --aorta-timeout=* --aorta-trials=10000 *",
        ]
    )
    assert not list(stage.path.glob("tmp/aorta-try-*"))
