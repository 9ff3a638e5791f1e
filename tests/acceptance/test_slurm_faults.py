"""A recipe as jobs of a real SLURM, of which some are cancelled, requeued, too long, or lose their node."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.slurm import Slurm
from support.slurm_jobs import SubmittingStage
from support.slurm_steps import slurm, slurm_server  # noqa: F401  (fixtures)
from support.stage import Stage

CLUSTERS = """
[[cluster]]
name = "two"
identify.always = true
scheduler = "slurm"
array_throttle = 2
[[cluster.partition]]
name = "main"
[[cluster.partition]]
name = "short"
prevent_auto_select = true
"""

ACTION = """
[[action]]
name = "{name}"
workload = "short"
trials = 40
config = {{hang = "hang-{name}", sec = 0.02}}
group.maximum_size = 8
resources.walltime.per_submission = "{walltime}"
submit_options.two = {{{options}}}
"""

RECIPE = (
    ACTION.format(name="one", walltime="00:10:00", options='custom = ["--no-requeue"]')
    + ACTION.format(name="two", walltime="00:10:00", options="")
    + ACTION.format(name="three", walltime="00:01:00", options='partition = "short"')
)

#: Seconds in which SLURM has done what it does by itself; a requeued job waits for two minutes.
MINUTES = 420.0


def current(stage: Stage) -> dict[str, dict[str, Any]]:
    """All trial files but earlier ones, by path."""
    return {path: trial for path, trial in stage.trials("workspace").items() if ".history" not in path}


def wait(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + MINUTES
    while not condition():
        assert time.monotonic() < give_up, f"no {what}"
        time.sleep(1)


@pytest.mark.slow
@pytest.mark.long
def test_what_was_lost_is_told_and_submitted_again_until_all_is_as_after_a_local_run(
    stage: Stage,
    slurm: Slurm,  # noqa: F811
    tmp_path: Path,
) -> None:
    stage.write_file("clusters.toml", CLUSTERS)
    stage.write_file("aorta.toml", RECIPE)
    jobs = SubmittingStage(stage, slurm)
    for name in ("one", "two", "three"):
        (stage.path / f"hang-{name}").touch()
    submitted = jobs.submit("--cluster", "two")
    submitted.stdout.fnmatch_lines([f"{name}: 5 jobs (40 trials) on two, up to *" for name in ("one", "two", "three")])

    wait(lambda: all(len(jobs.ids(name, "RUNNING")) == 2 for name in ("one", "two", "three")), "six jobs that run")
    wait(lambda: len((stage.path / "began").read_text().splitlines()) >= 6, "trials")
    cancelled, lost = jobs.ids("one", "RUNNING")
    slurm.command("scancel", cancelled)
    slurm.command("scontrol", "requeue", jobs.ids("two", "RUNNING")[0])
    node = slurm.command("squeue", "-h", "-r", "-o", "%N", f"--job={lost}")
    slurm.kill_daemon(node)
    wait(lambda: lost in jobs.ids("one", "NODE_FAIL"), "job whose node has failed")
    slurm.start_node(node)
    wait(lambda: jobs.ids("three", "TIMEOUT"), "job that has reached its time limit")
    for name in ("one", "two", "three"):
        (stage.path / f"hang-{name}").unlink()
    wait(lambda: all(job["over"] for job in jobs.jobs().values()), "end of all jobs")

    ends = {
        name: Counter(job["state"] for job in jobs.jobs().values() if job["action"] == name) for name in jobs.status()
    }
    assert ends["one"] == {"CANCELLED": 1, "NODE_FAIL": 1, "COMPLETED": 3}
    assert set(ends["two"]) <= {"COMPLETED", "NODE_FAIL"}
    assert ends["two"]["COMPLETED"] >= 1
    assert ends["three"]["TIMEOUT"] >= 1
    records = current(stage)
    assert {record["exit_status"] for record in records.values()} == {"ok", "infrastructure_failed"}
    ok = Counter(path.split("/")[0] for path, record in records.items() if record["exit_status"] == "ok")
    status = jobs.status()
    assert {name: row["completed"] for name, row in status.items()} == dict(ok)
    assert all(row["submitted"] == 0 for row in status.values())
    assert (status["one"]["failed"], status["one"]["eligible"] >= 1) == (0, True)

    kept = {path: record for path, record in records.items() if record["exit_status"] == "ok"}
    again = jobs.submit("--cluster", "two")
    counted = [re.search(r"\((\d+) trials?\)", line) for line in again.outlines]
    assert sum(int(found[1]) for found in counted if found) == 120 - len(kept)
    wait(lambda: all(job["over"] for job in jobs.jobs().values()), "end of all jobs")
    assert {name: row["completed"] for name, row in jobs.status().items()} == {"one": 40, "two": 40, "three": 40}
    now = current(stage)
    assert {path: now[path] for path in kept} == kept
    jobs.submit("--cluster", "two").stdout.fnmatch_lines(["one: no job, 40 completed"])

    local = SubmittingStage(Stage(tmp_path / "local"), slurm)
    local.stage.write_file("aorta.toml", RECIPE)
    assert local.pytest("aorta.toml", "-q").ret == 0
    expected = current(local.stage)
    assert _comparable(now) == _comparable(expected)


def _comparable(records: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of each file, what two runs have in common."""
    same = ("trial_id", "workload", "cell", "trial_index", "config", "exit_status", "mitigations_applied")
    return {path: [record[key] for key in same] for path, record in records.items()}
