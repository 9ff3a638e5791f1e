"""What becomes of a stranger's command: a failure is one, and so is a NaN, and what has failed alike is alike."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import pytest
from support.stage import Stage, counts

pytestmark = pytest.mark.usefixtures("as_users_have_it")

PYTHON = shlex.quote(sys.executable)

#: Prints what its trial's file of lines says, and ends with the code in its last line.
PRINTS = """
import sys, time
for line in open(sys.argv[1]):
    if line.startswith("exit "):
        sys.exit(int(line.split()[1]))
    print(line, end="")
"""


def command(words: str) -> tuple[str, str]:
    return "--aorta-command", f"{PYTHON} {words}"


def signatures(stage: Stage) -> list[list[str]]:
    matrix = json.loads((stage.results / "matrix.json").read_text())
    return [[each["signature"]["text"] for each in cell["signatures"]] for cell in matrix["cells"]]


def cells(stage: Stage) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads((stage.results / "matrix.json").read_text())["cells"]
    return listed


# A failure is a failure


def test_a_file_that_is_missing_in_some_runs_is_a_failure(stage: Stage) -> None:
    """Of a program that says its steps, or says nothing before it looks for the file."""
    stage.write(
        saves="""
        import os, sys
        for step in range(12 if sys.argv[1] == "says" else 0):
            print(f"step {step} loss 0.5")
        open(__file__ if int(sys.argv[2]) % 2 else "model_3.ckpt").read()
        """
    )
    result = stage.run_here(*command("saves.py says {trial}"), *command("saves.py quiet {trial}"), "--aorta-trials=4")
    assert counts(result) == {"passed": 4, "failed": 4}
    assert [(cell["failures"], cell["counted"], cell["verdict"]["kind"]) for cell in cells(stage)] == [
        (2, 4, "baseline")
    ] * 2
    assert "did not run" not in result.stdout.str()
    assert [len(each) for each in signatures(stage)] == [1, 1]


#: Each fails before its first step in every trial: as it says, and by what.
LACKS = {
    "import no_such_module": "No module named 'no_such_module'",
    "open('no/such/file.bin')": "FileNotFoundError: *'no/such/file.bin'",
    "raise RuntimeError('No CUDA GPUs are available')": "No CUDA GPUs are available",
    "raise RuntimeError('HIP error: invalid device ordinal')": "invalid device ordinal",
    "import argparse; p = argparse.ArgumentParser(); p.add_argument('--data', required=True); p.parse_args()": (
        "exit code 2: lacks4.py: *arguments are required: --data"
    ),
}


@pytest.mark.slow
def test_a_cell_of_which_all_trials_lack_the_same_did_not_run(stage: Stage) -> None:
    options: list[str] = []
    for number, code in enumerate(LACKS):
        stage.write_file(f"lacks{number}.py", code)
        options += command(f"lacks{number}.py")
    result = stage.run_here(*options, "--aorta-trials=2")
    assert counts(result) == {"failed": 2 * len(LACKS)}
    assert set(stage.statuses().values()) == {"workload_failed"}  # the record says what has happened
    assert [cell["verdict"]["kind"] for cell in cells(stage)] == ["did not run"] * len(LACKS)
    for why in LACKS.values():
        result.stdout.fnmatch_lines([f"    why: *{why}*"])


@pytest.mark.parametrize(
    "loses",
    ['import tempfile; open(tempfile.mkdtemp() + "/model.ckpt")', 'print("step 1 of 3"); open("model.ckpt")'],
    ids=["of the trial's own", "after the first step"],
)
def test_such_a_missing_file_is_a_failure_in_each(stage: Stage, loses: str) -> None:
    stage.write(loses=loses)
    stage.run_here(*command("loses.py"), "--aorta-trials=2")
    assert [(cell["failures"], cell["verdict"]["kind"]) for cell in cells(stage)] == [(2, "baseline")]


def test_an_exit_code_counts_also_where_a_line_matches(stage: Stage) -> None:
    stage.write(prints=PRINTS)
    stage.write_file("a.txt", "all ranks agree\nexit 3")
    stage.run_here(*command("prints.py a.txt"), "--aorta-pass-on", "agree").assert_outcomes(failed=1)
    assert stage.trial("command-prints/trial_0.json")["failure"]["exit_code"] == 3


def test_a_cell_that_did_not_run_runs_again(stage: Stage) -> None:
    stage.write(reads='print(open("data.bin").read())')
    options = [*command("reads.py"), "--aorta-trials=2", "--aorta-resume"]
    stage.run_here(*options).assert_outcomes(failed=2)
    stage.write_file("data.bin", "1")
    stage.run_here(*options).assert_outcomes(passed=2)


# Values that are not finite


@pytest.mark.slow
def test_a_nan_fails_whatever_its_name_is(stage: Stage) -> None:
    lines = ("policy_loss", "clip_grad_norm", "window loss", "best_loss", "value_loss", "entropy")
    bad = [*(f"{name}: nan" for name in lines), "skip: loss is nan", '{"step": 3, "q": NaN}']
    good = ["[0., 0., -inf]", "tensor([[nan, 0.5]])", "number of nan iterations:   0 |", "best: inf", "no NaN found"]
    stage.write(prints=PRINTS)
    words: list[str] = []
    for number, line in enumerate([*bad, "\n".join(good)]):
        stage.write_file(f"{number}.txt", line)
        words += command(f"prints.py {number}.txt")
    result = stage.run_here(*words, "--aorta-fail-on-nonfinite")
    result.assert_outcomes(failed=len(bad), passed=1)
    (passed,) = (trial for trial in stage.trials().values() if trial["exit_status"] == "ok")
    assert (passed["warnings"], passed["result"]["output"]["detected"]) == ([], {})


def test_a_metric_that_was_not_finite_once_fails_unless_it_may_be(stage: Stage) -> None:
    stage.write(prints=PRINTS)
    stage.write_file("once.txt", "step 1 loss 0.5 best inf\nstep 2 loss nan best 0.5\nstep 3 loss 0.25 best 0.25")
    metric = ("--aorta-metric", r"step (?P<step>\d+) loss (?P<loss>\S+) best (?P<best>\S+)")
    for allowed, status in ((["best"], "workload_failed"), (["best", "loss"], "ok")):
        options = [f"--aorta-allow-nonfinite={name}" for name in allowed]
        stage.run_here(*command("prints.py once.txt"), *metric, *options)
        assert set(stage.statuses().values()) == {status}
    stage.run_here(*command("prints.py once.txt"), *metric, "-o", "aorta_allow_nonfinite=best\nloss")
    assert set(stage.statuses().values()) == {"ok"}
    stage.write_file("json.txt", '{"step": 1, "loss": NaN}\n{"step": 2, "loss": 0.5}')
    stage.run_here(*command("prints.py json.txt"), "--aorta-metrics-from=auto", "--aorta-results-dir=other")
    record = json.loads((stage.path / "other/command-prints/trial_0.json").read_text())
    assert (record["failure"]["message"], record["result"]["metrics"]["loss"]) == ("loss is nan at step 1", 0.5)


@pytest.mark.slow
def test_advice_is_no_fault(stage: Stage) -> None:
    stage.write(prints=PRINTS)
    advice = "If you run out of memory, try --batch-size 8\nFor an NCCL error set NCCL_DEBUG=INFO\nloss 1"
    stage.write_file("advice.txt", advice)
    stage.write_file("fault.txt", "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    given = [*command("prints.py advice.txt"), *command("prints.py fault.txt"), "--aorta-fail-on=@oom"]
    stage.run_here(*given, "--aorta-fail-on=@nccl").assert_outcomes(passed=1, failed=1)


# Formats


LOGS: dict[str, tuple[str, dict[str, float], int]] = {
    "torchtitan": (
        "[rank0]:[titan] - INFO - \x1b[31mstep: {}  \x1b[32mloss:  3.24405  \x1b[36mgrad_norm:  0.8319  tps: 7,282",
        {"loss": 3.24405, "grad_norm": 0.8319, "tps": 7282},
        14,
    ),
    "megatron": (
        " iteration      {}/  250000 | elapsed time per iteration (ms): 86545.2 | lm loss: 1.0E+01 | grad norm: 0.2 |",
        {"lm_loss": 10.0, "grad_norm": 0.2},
        122,
    ),
    "mmengine": ("2025/05/02 - mmengine - INFO - Epoch [1][{}/7330]  lr: 1.9e-03  loss: 1.031", {"loss": 1.031}, 50),
    "fairseq": (
        "2025-08-20 | INFO | train_inner | epoch 001:  {} / 1102 loss=14.2, ppl=18929.4",
        {"ppl": 18929.4},
        100,
    ),
    "keras": ("{}/1875 [=====>........] - ETA: 3s - loss: 0.2203 - accuracy: 0.9344", {"accuracy": 0.9344}, 1800),
    "detectron2": (
        "[d2.utils.events]:  eta: 0:12:34  iter: {}  total_loss: 1.25  lr: 0.0003",
        {"total_loss": 1.25},
        19,
    ),
}


@pytest.mark.slow
def test_each_format_is_read_by_its_name_and_by_itself(stage: Stage) -> None:
    stage.write(prints=PRINTS)
    words: list[str] = []
    for name, (line, _, step) in LOGS.items():
        stage.write_file(f"{name}.txt", line.format(step - 1) + "\n" + line.format(step) + "\n")
        words += command(f"prints.py {name}.txt")
    named = [option for name in LOGS for option in ("--aorta-metrics-from", name)]
    for sources in (named, ["--aorta-metrics-from", "auto"]):
        stage.run_here(*words, *sources)
        for name, (_, metrics, step) in LOGS.items():
            trial = stage.trial(f"command-prints-{name}.txt/trial_0.json")
            result = trial["result"]
            assert (trial["exit_status"], result["executed_iterations"]) == ("ok", step), name
            assert {key: result["metrics"][key] for key in metrics} == metrics


# Grouping


def test_what_a_program_prints_last_tells_its_failures_apart(stage: Stage) -> None:
    stage.write(
        checks="""
        import sys
        way = int(sys.argv[1])
        print("step 1 loss nan" if way == 4 else "step 1 loss 0.5")
        if way < 2: print(f"checksum mismatch: {way} != 7")
        if way in (2, 3): sys.exit(f"golden value differs: 0.8{way}")
        print(f"step 12/12 loss 0.{way}")
        sys.exit(1)
        """
    )
    stage.run_here(*command("checks.py {trial}"), "--aorta-trials=5", "--aorta-fail-on=@nan")
    assert sorted(signatures(stage)[0]) == [
        *("NaN in loss", "exit code 1: checksum mismatch: # != #", "exit code 1: golden value differs: #"),
    ]
    assert [cell["failures"] for cell in cells(stage)] == [5]


def test_a_line_that_a_user_looks_for_is_a_signature_without_its_values(stage: Stage) -> None:
    stage.write(prints=PRINTS)
    stage.write_file("0.txt", "step 3 loss nan\n")
    stage.write_file("1.txt", "step 4 loss 31.0\n")
    stage.run_here(*command("prints.py {trial}.txt"), "--aorta-trials=2", "--aorta-fail-on=loss (nan|3)")
    assert sorted(signatures(stage)[0]) == ["NaN in loss", "output matches loss (nan|#)"]


LOADER = """
import os, signal, sys, time
import torch

way = int(sys.argv[1])


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        if i == 9 and way != 3:
            os.kill(os.getpid(), signal.SIGBUS)
        return torch.zeros(2)


if way == 3:  # as a parent that reads from a worker which is gone
    print("ERROR: Unexpected bus error encountered in worker. This might be caused by", file=sys.stderr)
    raise ConnectionResetError(104, "Connection reset by peer")
try:
    for batch in torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2):
        if way == 1:
            time.sleep(0.2)
except RuntimeError as error:
    if way == 2:
        sys.exit(1)
    raise
"""


@pytest.mark.slow
def test_a_worker_that_a_signal_ends_is_one_signature_whatever_its_parent_says(stage: Stage) -> None:
    stage.write(loads=LOADER)
    stage.run_here(*command("loads.py {trial}"), "--aorta-trials=4")
    assert [cell["failures"] for cell in cells(stage)] == [4]
    assert signatures(stage) == [["a DataLoader worker ended: bus error"]]
