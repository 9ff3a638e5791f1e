"""The collector ``numerics`` names the step, module, phase and producer of the first bad tensor."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.stage import Stage

from pytest_aorta.collectors.contract import CollectorSummary, step_name
from pytest_aorta.collectors.numerics import Numerics
from pytest_aorta.launch.host.collecting import first_step
from pytest_aorta.trials.output import OutputFindings, OutputRules

HERE = Path(__file__).parent

#: What is planted in step 4 (see ``numerics_cases.py``), and what is said of it.
SENTENCES = {
    "in_forward": "step 4, forward, layers.2.linear1 output, 1 of 480 elements, its inputs were finite",
    "forward": "step 4, forward, layers.2.linear1 output, 1 of 480 elements, its inputs were finite; a forward hook of "
    "it gave it",
    "mask": "step 4, forward, layers.2.linear1 output, 1 of 480 elements, its inputs were finite",
    "in_backward": "step 4, backward, layers.1.linear2 gradient of input 0, 1 of 480 elements, the gradients of its "
    "outputs were finite",
    "code_between": "step 4, forward, layers.0.self_attn output, 80 of 240 elements; its input was bad already, and no "
    "module gave it: it comes from the code of Net",
    "gradient": "step 4, gradient of layers.1.linear2.weight before the update, 1 of 512 elements; finite as the "
    "backward pass gave it",
    "update": "step 4, layers.3.norm1.weight after the update, 16 of 16 elements; its gradient was finite",
    "parameter": "step 4, forward, layers.0.linear1 output, 15 of 480 elements; its bias had been bad before",
    "alias": "step 4, forward, layers.2.linear1 output, 32 of 480 elements; its input was finite when layers.2.norm1 "
    "gave it and was overwritten, unknown to autograd, before it was read; alias of stale (8,)",
    # What is compiled is seen at its edges.
    "compiled": "step 4, forward, layers.2 output, 16 of 240 elements, its inputs were finite",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CollectorSummary]:
    folder = tmp_path_factory.mktemp("cases")
    script, in_process = HERE / "numerics_cases.py", str(Numerics.in_process)
    done = subprocess.run([sys.executable, str(script), in_process, str(folder)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    problems = [path.read_text() for path in folder.rglob("*.problem")]
    assert not problems
    limits = {"large": {"threshold": 1e4}}
    cases = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    return {case.name: Numerics(limits.get(case.name, {})).summarize(case, [0]) for case in cases}


@pytest.mark.slow
@pytest.mark.parametrize("case", SENTENCES)
def test_the_first_bad_tensor_is_named(found: dict[str, CollectorSummary], case: str) -> None:
    assert found[case].sentence == f"first non-finite tensor: {SENTENCES[case]}"


def test_clean_training_names_nothing_and_has_its_statistics(found: dict[str, CollectorSummary]) -> None:
    assert (found["clean"].sentence, found["clean"].data["ranks"]) == ("", {"0": None})
    [heat] = found["clean"].artifacts
    told = json.loads(heat.read_text())["0"]
    rows = {(row["phase"], row["module"], row["what"]): row["values"] for row in told}
    kept = rows["forward", "layers.2.linear1", "output"]
    assert [step for step, _, _ in kept] == [3, 4, 5, 6]  # three before the last one
    assert all(0 < highest < 100 for _, highest, _ in kept)
    assert {phase for phase, _, _ in rows} == {"forward", "backward"}


def test_a_large_tensor_is_bad_above_the_threshold_and_an_overflow_that_a_scaler_skips_is_none(
    found: dict[str, CollectorSummary],
) -> None:
    assert found["large"].sentence.startswith("first tensor above 10000: step 4, forward, layers.2.linear1 output, ")
    assert (found["scaled"].sentence, found["scaled"].data["scaled_steps"]) == ("", [4])


@pytest.mark.slow
def test_the_record_says_where_a_bad_tensor_lies_and_a_script_runs_its_module_alone(
    found: dict[str, CollectorSummary],
) -> None:
    first = found["in_forward"].data["first"]
    place = {"shape": [3, 5, 32], "dtype": "float32", "device": "cpu", "first": [0, 0, 5], "alias_of": []}
    storage = {"address": first["address"], "bytes": 3 * 5 * 32 * 4, "offset": 0}
    assert first.items() >= {**place, "storage": storage}.items()
    assert [step for step, _, _ in first["window"]] == [1, 2, 3]

    [tensors, script, _] = found["in_forward"].artifacts
    assert tensors.suffix == ".pt"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    # What was planted in the module was a lambda, which cannot be saved with it.
    assert "build it here" in done.stderr or "now: (3, 5, 32) torch.float32" in done.stdout


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([0, 1, 2, 3, 4], "step 3"),  # of 5 steps that an optimizer has made
        ([0, 1, 2, 3], "step 3"),  # it ended before it told the last one
        ([1, 2, 3, 4, 5], "step 4"),
        ([5000, 5001, 5002, 5003, 5004], "step 5003"),
        # Every second step, steps of something else, one line before the first step, no steps at all.
        *((lines, "step 4 (counted from 1)") for lines in ([0, 2, 4], [*range(20)], [*range(6)], [])),
    ],
)
def test_a_step_is_called_what_the_program_printed_for_it_where_that_is_known(lines: list[int], said: str) -> None:
    output = OutputFindings(OutputRules())
    for at, number in enumerate(lines):
        output.take(f"step {number} loss 1.0", float(at))
    assert step_name(4, first_step(5, output.report().get("steps"))) == said


COUNTS_FROM_0 = """
import os, torch
layer, value = torch.nn.Linear(2, 1), torch.ones(2)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(5):
    loss = layer(value * (BAD if step == 3 else 1)).sum()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item()}", flush=True)
"""


@pytest.mark.slow
def test_a_command_that_counts_from_0_finds_its_own_numbers_in_the_table(stage: Stage) -> None:
    (stage.path / "train.py").write_text(COUNTS_FROM_0.replace("BAD", "float('nan')"))
    command = f"--aorta-command={sys.executable} train.py"
    stage.run(command, "--aorta-trials=1", "--aorta-collect=numerics")
    [trial] = stage.trials().values()
    assert trial["collected"]["numerics"]["sentence"].startswith("first non-finite tensor: step 3, forward, ")
    stage.aorta("show", "collected", "results").stdout.fnmatch_lines(["* step  *1  *2  *3"])

    (stage.path / "train.py").write_text(COUNTS_FROM_0.replace("BAD", "int(os.environ['AORTA_TRIAL'])"))
    done = stage.run(
        command, "--aorta-trials=2", "--aorta-collect=divergence:zoom=0", "--aorta-results-dir=differ", "-v"
    )
    done.stdout.fnmatch_lines(["*: first in step 3, the input of *"])
    done = stage.aorta("show", "collected", "differ")
    done.stdout.fnmatch_lines(
        ["*: first in step 3, the input of *", "* step  *1  *2  *3  *4", "  > Linear input *differs*first"]
    )


@pytest.mark.slow
@pytest.mark.long
def test_two_ranks_say_which_was_first_and_how_the_other_got_it(stage: Stage) -> None:
    shutil.copy(HERE / "numerics_ranks.py", stage.path / "train.py")
    command = "torchrun --nproc-per-node 2 train.py"
    done = stage.run("--aorta-command", command, "--aorta-trials", "4", "--aorta-collect", "numerics")
    said = [trial["collected"]["numerics"] for _, trial in sorted(stage.trials().items())]
    assert [each["problems"] for each in said] == [[]] * 4
    start, reduced = (
        "first non-finite tensor: step 3 (counted from 1), rank 1, ",
        "; rank 0 had it by the reduction of gradients in step 3 (counted from 1)",
    )
    forward, backward, reduction, clean = (each["sentence"] for each in said)
    assert forward == f"{start}forward, 2.linear1 output, 1 of 480 elements, its inputs were finite{reduced}"
    finite = "480 of 480 elements, the gradients of its outputs were finite"
    assert backward == f"{start}backward, 1.linear2 gradient of input 0, {finite}{reduced}"
    assert reduction.startswith(f"{start}gradient of 0.")
    assert "; finite before it was reduced; rank 0 had it in step 4 (counted from 1), forward, 0." in reduction
    assert (clean, done.ret) == ("", 0)
