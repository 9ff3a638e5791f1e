"""The first hour: a script with a race, which knows nothing of trials, and the command of docs/command.md."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from support.stage import Stage, counts

PAGE = Path(__file__).parents[2] / "docs" / "command.md"


@pytest.mark.slow
def test_the_command_of_the_docs_finds_what_fixes_the_script_of_the_docs(stage: Stage) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for source in (text for language, text in blocks if language == "python"):
        stage.write_file(source.partition("\n")[0].removeprefix("# "), source)
    command = next(text for language, text in blocks if not language)
    own = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # "python" is this one
    result = stage.run(*shlex.split(command)[1:], env=own)
    found = counts(result)
    assert found["failed"] + found["passed"] == 40
    failed = {path for path, status in stage.statuses().items() if status != "ok"}
    assert failed
    assert all("/local-none/" in path for path in failed)
    result.stdout.fnmatch_lines(["*local-omp_1 * 0 of 20 *"])

    script = stage.command(sys.executable, "nightly.py", env=own)
    assert script.outlines == ["ok 0.0"] * 4
