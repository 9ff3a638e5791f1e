"""Every error message names the bad value, the place it came from and what would be valid.

It comes before anything is written, and before torch is imported, which takes seconds.
"""

from __future__ import annotations

import re

import pytest
from support.stage import Stage

#: Leaves a file where it is imported.
TORCH = "import pathlib; pathlib.Path(__file__).with_name('imported').touch()"

PLAIN = ("--aorta-workload", "plain")

TYPED = ("--aorta-workload", "typed")

COMMAND = ("--aorta-command",)

TWO_RANKS = (*COMMAND, "true", "--aorta-nproc", "2")

#: A workload that takes long to import, as those of torch do.
HEAVY = """
import torch
from pydantic import BaseModel

class Heavy:
    class Config(BaseModel, extra="forbid"):
        size: int = 1
        steps: int = 1

    def __init__(self, config): pass
    def setup(self): pass
    def run(self): return {"passed": True}
"""

#: Arguments, and what the one line of the error has to say.
BAD = {
    "workload": (("--aorta-workload", "plian"), "unknown workload 'plian'; available: .*plain.*did you mean 'plain'"),
    "config key": ((*TYPED, "--aorta-config", "siez=2"), "Typed has no option 'siez'; valid: mode, size"),
    "steps": ((*TYPED, "--aorta-steps", "3"), "Typed has no option 'steps'; valid: mode, size"),
    "same set": (
        (*PLAIN, "--aorta-mitigations", "omp_1", "--aorta-mitigations", "omp_1"),
        "mitigation set 'omp_1' is given twice; for more trials use --aorta-trials",
    ),
    "broken registry file": ((*PLAIN, "--aorta-registry-file", "broken.json"), r"broken.json:2:1: not valid JSON"),
    "share": ((*PLAIN, "--aorta-speed-margin", "10"), "--aorta-speed-margin: '10' .* a share .* such as 5% or 0.05"),
    "stop": ((*PLAIN, "--aorta-stop", "decide"), "--aorta-stop: 'decide' is not valid; expected decided, first-fix"),
    "shard": ((*PLAIN, "--aorta-shard", "5/4"), "--aorta-shard: '5/4' is not valid; expected I/N with I from 1 to N"),
    "vary": ((*PLAIN, "--aorta-vary", "A=1"), "--aorta-vary: 'A=1' is not valid; expected a variable and at least two"),
    "gate on no cell": (
        (*PLAIN, "--aorta-gate", "failures(omp_1)<=1"),
        r"--aorta-gate 'failures\(omp_1\)<=1': there is no cell 'omp_1'; there are local-none",
    ),
    "no baseline": ((*PLAIN, "--aorta-baseline", "omp"), "--aorta-baseline: there is no cell 'omp'; there are local-n"),
    "where nothing is": (
        (*PLAIN, "--aorta-where", "/lr<1"),
        "--aorta-where '/lr<1': no trial .* has /lr; there are /wor",
    ),
    "replay": (("--aorta-replay", "none.json"), "--aorta-replay: .*/none.json: No such file or directory"),
    "broken replay": (("--aorta-replay", "broken.json"), "--aorta-replay: .*/broken.json: no record of a trial: it is"),
    "report": ((*PLAIN, "--aorta-report", "x/y.html"), "--aorta-report x/y.html: the folder .*/x does not exist; exp"),
    "config of torch's": (("heavy.py", "--aorta-config", "siez=2"), "Heavy has no option 'siez'; valid: size, steps"),
    "no script": (
        (*COMMAND, "python hevy.py"),
        "--aorta-command 'python hevy.py': .* no file .*; did you mean 'heavy.py'",
    ),
    "no python": (
        (*COMMAND, "heavy.py"),
        "'heavy.py' is no program in PATH, but a file here: python heavy.py, or ./hea",
    ),
    "no program": ((*COMMAND, "pyton heavy.py"), "--aorta-command 'pyton heavy.py': there is no program 'pyton' in"),
    "variables": (
        (*COMMAND, "A=secret python heavy.py"),
        "--aorta-command: 'A=... python heavy.py' .* --aorta-extra-env",
    ),
    "depends": (
        (*COMMAND, "python heavy.py", "--aorta-depends", "a.yaml"),
        "--aorta-depends 'a.yaml': there is no such f",
    ),
    "pattern": (
        (*COMMAND, "python heavy.py", "--aorta-fail-on", "(nan"),
        r"--aorta-fail-on: '\(nan' .* \(missing \), unter",
    ),
    "detector": (
        (*COMMAND, "python heavy.py", "--aorta-fail-on=@nann"),
        "--aorta-fail-on: '@nann' .* or one of @nan, @oom",
    ),
    "metric": (
        (*COMMAND, "python heavy.py", "--aorta-metric", "a"),
        "--aorta-metric: 'a' .* with named groups, such as",
    ),
    "metrics": (
        (*COMMAND, "python heavy.py", "--aorta-metrics-from", "hff"),
        "--aorta-metrics-from: 'hff' .* auto, torchtitan, m",
    ),
    "output of none": (
        (*PLAIN, "--aorta-fail-on", "nan"),
        "--aorta-fail-on: is about the output of a command; add --aort",
    ),
    "ranks here": ((*TWO_RANKS, "--aorta-isolation", "none"), "the ranks of command-true are p"),
    "launcher of a command": ((*TWO_RANKS, "--aorta-launcher", "elastic"), "are started by torchrun"),
    "options of its launcher": ((*TWO_RANKS, "--aorta-elastic", "tee=3"), "a command, take max_restarts only"),
    "same command": ((*COMMAND, "true", *COMMAND, "true"), "workload 'command-true' is given twice; for more"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_value_is_one_line_that_names_it_and_what_is_valid(offered: Stage, name: str) -> None:
    (offered.path / "broken.json").write_text("{\n")
    offered.write(heavy=HEAVY, torch=TORCH)
    arguments, message = BAD[name]
    result = offered.run_here(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.errlines if line.strip()]
    assert len(lines) == 1
    assert re.search(f"^ERROR: .*{message}", lines[0])
    assert "secret" not in lines[0]
    assert not any(line.startswith(("Traceback", "INTERNALERROR")) for line in result.outlines)
    assert offered.everything() == []
    assert not (offered.path / "imported").exists()
    assert offered.left_running() == []


#: Recipes, and what is said of each.
BAD_RECIPES = {
    "mitigation": (
        "workload = 'typed'\nmitigations = 'omp1'",
        "mitigation.aorta.toml:1: .*unknown mitigation 'omp1'; avai",
    ),
    "gate": (
        "workload = 'typed'\ngate = 'failures(x)<1'",
        "gate.aorta.toml:1: gate .*: there is no cell 'x'; there are lo",
    ),
    "baseline": ("workload = 'typed'\nbaseline = 'other'", "baseline.aorta.toml:1: .*baseline.*other"),
    "each": ("command = 'ls {directory} {cell}'", "each.aorta.toml:1: .*{cell}, which is for each = 'trial' or 'cell'"),
}


def test_bad_recipes_say_so_with_file_and_line(offered: Stage) -> None:
    offered.write(heavy=HEAVY, torch=TORCH)
    for name, (text, _) in BAD_RECIPES.items():
        offered.write_file(f"{name}.aorta.toml", text)
    result = offered.run_here(*(f"{name}.aorta.toml" for name in BAD_RECIPES))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(errors=len(BAD_RECIPES))
    for name, (_, message) in BAD_RECIPES.items():
        assert [line for line in result.outlines if re.search(f"^.*/{message}", line)], name
    assert not (offered.path / "imported").exists()


def test_bad_value_names_the_ini_file_or_the_variable_it_came_from(
    offered: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (offered.path / "pytest.ini").write_text("[pytest]\naorta_trials = many\n")
    result = offered.run_here(*PLAIN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: aorta_trials in */pytest.ini: 'many' is not valid; expected a whole number *"])
    monkeypatch.setenv("PYTEST_AORTA_TRIALS", "few")
    result = offered.run_here(*PLAIN)
    result.stderr.fnmatch_lines(["ERROR: the environment variable PYTEST_AORTA_TRIALS: 'few' is not valid; expected *"])
    # Not even a look at the value when it is overruled, and none when pytest is only asked for help.
    offered.run_here(*PLAIN, "--aorta-trials", "2").assert_outcomes(passed=2)
    for flag in ("--help", "--version"):
        assert offered.run_here(flag).ret == pytest.ExitCode.OK
