"""What scripts of jobs say to sbatch, tried by the real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.slurm import Slurm
from support.slurm_steps import slurm, slurm_server  # noqa: F401  (fixtures)

from pytest_aorta.workflow.scripts import quoted

GOLDEN = sorted((Path(__file__).parents[1] / "workflow/golden").glob("*.sh"))


@pytest.mark.slow
def test_sbatch_takes_all_golden_scripts(slurm: Slurm, tmp_path: Path) -> None:  # noqa: F811
    for file in GOLDEN:
        text = file.read_text().replace("act-NAME", "act").replace("#SBATCH --qos=low\n", "")  # needs accounting
        script = tmp_path / file.name
        script.write_text(text)
        slurm.command("sbatch", "--test-only", script)


@pytest.mark.slow
def test_sbatch_reads_quoted_words_as_they_were(slurm: Slurm, tmp_path: Path) -> None:  # noqa: F811
    words = ["plain", "two words", 'a "b" c', "it's", "back\\slash", "$(touch x) `y` $HOME", "#hash # in", "ä;|&*?"]
    for word in words:
        script = tmp_path / "job.sh"
        script.write_text(
            f"#!/bin/bash\n#SBATCH --hold\n#SBATCH --comment={quoted(word)}\n#SBATCH --output=/dev/null\n"
        )
        number = slurm.command("sbatch", "--parsable", script)
        shown = json.loads(slurm.command("squeue", "--json"))
        assert [job["comment"] for job in shown["jobs"] if job["job_id"] == int(number)] == [word]
