"""How a command is watched can be chosen, down to nothing, and the record says it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage

pytestmark = pytest.mark.usefixtures("as_users_have_it")

#: Tells what of its process is not as Python makes it.
_TELLS = """
import os, subprocess, sys
import helper
changed = [name for name in ("kill", "killpg", "waitpid") if getattr(os, name).__module__ != "posix"]
changed += ["excepthook"] if sys.excepthook.__module__ != "sys" else []
import _posixsubprocess
changed += ["fork_exec"] if type(_posixsubprocess.fork_exec).__name__ != "builtin_function_or_method" else []
changed += ["injected"] if "bootstrap" in str(getattr(sys.modules.get("sitecustomize"), "__file__", "")) else []
print("changed:", *changed)
"""


def told(stage: Stage, *options: str) -> tuple[list[str], dict[str, Any]]:
    stage.write(tells=_TELLS, helper="")
    stage.run("--aorta-command", "python tells.py", *options).assert_outcomes(passed=1)
    log = (stage.results / "command-tells/trial_0/stdout.log").read_text()
    return log.removeprefix("changed:").split(), stage.trial("command-tells/trial_0.json")


def test_nothing_of_a_plain_command_is_replaced(stage: Stage) -> None:
    changed, trial = told(stage)
    assert (changed, trial["result"]["output"]["observed"]) == (["injected"], "exits")
    assert {Path(name).name for name in trial["fingerprint_parts"]["imported_later"]} == {"tells.py", "helper.py"}


def test_all_of_it_is_watched_where_that_is_asked_for(stage: Stage) -> None:
    changed, trial = told(stage, "--aorta-observe", "full")
    assert {"kill", "waitpid", "fork_exec", "excepthook"} <= set(changed)
    assert trial["result"]["output"]["observed"] == "full"


@pytest.mark.parametrize("options", [("--aorta-observe", "none"), ("--aorta-launcher", "as-typed")])
def test_a_command_may_run_with_nothing_of_ours_in_it(stage: Stage, options: tuple[str, str]) -> None:
    changed, trial = told(stage, *options)
    assert (changed, trial["result"]["output"]["observed"], trial["seeds"]["hash"]) == ([], "none", None)
    assert "devices" not in trial["result"]["output"]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_command_that_is_not_observed_opens_what_it_opens_alone(stage: Stage) -> None:
    stage.write(plain="import json\nprint('done')")
    trace = ("strace", "-f", "-qq", "-e", "trace=execve,openat")
    words = [*trace, "-o", str(stage.path / "alone"), sys.executable, "plain.py"]
    subprocess.run(words, cwd=stage.path, env=stage.environ(), check=True, stdout=subprocess.DEVNULL)
    command = f"{' '.join(trace)} -o {stage.path / 'ours'} {sys.executable} plain.py"
    stage.run("--aorta-command", command, "--aorta-observe", "none").assert_outcomes(passed=1)

    def opens(name: str) -> list[str]:
        lines = (stage.path / name).read_text().splitlines()
        # Pids and the number of variables differ, and so may the caches of bytecode of a first run.
        return [re.sub(r"^\d+ +|/\* \d+ vars \*/|0x[0-9a-f]+", "", line) for line in lines if "pycache" not in line]

    assert opens("ours") == opens("alone")


def test_how_it_is_watched_is_for_commands_only(stage: Stage) -> None:
    result = stage.run("--aorta-workload", "gemm", "--aorta-observe", "none")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--aorta-observe: is about a command; add --aorta-command*"])
