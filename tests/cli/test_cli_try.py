"""``pytest-aorta try``: what it says of a command that it has never seen, and the line that it proposes."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from support.projects import command
from support.stage import Stage

from pytest_aorta.trials.readers import guessed_options

OWN = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # "python" is this one
TRY = (sys.executable, "-m", "pytest_aorta", "try")


@pytest.mark.parametrize(
    ("lines", "options"),
    [
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
        (["step 1 loss 11.0"], {}),  # one line says nothing about others
        (["loading 2 files", "done in 3 s"], {}),
    ],
)
def test_steps_and_metrics_are_guessed_from_lines(lines: list[str], options: dict[str, str]) -> None:
    assert guessed_options(lines) == options
    for expression in filter(None, [options.get("metric")]):
        assert all(re.search(expression, line) for line in lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Missing argument 'PROGRAM"),
        (["--time", "soon", "--", "true"], "--time: 'soon' is not valid; expected a number of seconds above 0"),
        (["python train.py | tee log"], "no '|' outside of quotes"),
        (["--", "OMP_NUM_THREADS=1", "python"], "for variables, --aorta-extra-env NAME=VALUE"),
    ],
)
def test_a_wrong_line_is_refused(words: list[str], said: str) -> None:
    result = command("try", *words)
    assert result.exit_code == 2
    assert said in result.output


def test_what_a_command_does_is_said_with_the_line_that_measures_it(stage: Stage) -> None:
    stage.write(
        train="""
        import os, pathlib, sys, numpy

        for step in range(1, 6):
            print(f"step {step}/5 loss {1 / step}")
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
            "  metrics  loss ends at 0.2",
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
    left = {path.name for path in stage.path.iterdir()} - {".benchmarks"}  # of pytest-benchmark, where it is installed
    assert left == {"model.pt", "train.py"}


def test_a_command_that_cannot_run_is_no_fault(stage: Stage) -> None:
    result = stage.aorta("try", "--yes", "--", "python", "nowhere.py", env=OWN)
    assert result.ret == 2
    result.stderr.fnmatch_lines(["Error: the command 'python nowhere.py': there is no file 'nowhere.py' in *"])
    assert not list(stage.path.iterdir())


def test_a_file_that_is_missing_sometimes_is_a_fault_and_a_printed_mask_is_none(stage: Stage) -> None:
    """Also where it is missing in the first run."""
    stage.write(
        saves="""
        import os
        print("[0., 0., -inf]")
        open("model.ckpt" if int(os.environ["AORTA_TRIAL_INDEX"]) % 2 == 0 else __file__)
        """
    )
    result = stage.aorta("try", "--", "python", "saves.py", env=OWN)
    assert result.ret == 0, result.stderr.str()
    result.stdout.fnmatch_lines(["It fails sometimes: in * of * runs.", "  fails * FileNotFoundError: *model.ckpt*"])
    assert "NaN" not in result.stdout.str()


def test_what_all_runs_lack_is_said(stage: Stage) -> None:
    stage.write(imports="import no_such_module")
    result = stage.aorta("try", "--", "python", "imports.py", env=OWN)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["It did not run: No module named 'no_such_module'"])


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
        ]
    )
    assert not list(stage.path.glob("tmp/aorta-try-*"))
