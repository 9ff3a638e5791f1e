"""What every scheduler has to do for us, the same for each: SLURM, the shell, and PSI/J with SLURM or this host."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from support.processes import PATIENCE
from support.slurm import Slurm
from support.slurm_steps import SubmittingStage
from support.stage import Stage

CLUSTER = """
[[cluster]]
name = "it"
identify.always = true
scheduler = "{scheduler}"
"""

COMMANDS = """
[workspace]
value_file = "v.json"

[[action]]
name = "one"
command = "while [ -e hang ]; do sleep 0.1; done; touch workspace/{directory}/one; echo ran {directory}"
products = ["one"]
group.maximum_size = 1
group.include = [{condition = ["/v", "<=", 1]}]
resources.walltime.per_submission = "00:05:00"

[[action]]
name = "sleepers"
command = "sh -c 'echo began >> began; exec sleep 1000'"
trials = 3
group.maximum_size = 1
resources.walltime.per_submission = "00:20:00"
"""

IN_QUEUES = ["slurm", "psij:slurm", "psij:local"]

pytestmark = pytest.mark.slow


def project(stage: Stage, slurm: Slurm, scheduler: str, text: str = COMMANDS) -> SubmittingStage:
    if scheduler.startswith("psij"):
        pytest.importorskip(
            "psij", reason="pip install psij-python; it brings a plugin of pytest, so it is no part of [test]"
        )
    stage.write_file("clusters.toml", CLUSTER.format(scheduler=scheduler))
    stage.write_file("aorta.toml", text)
    for number, name in enumerate("ab"):
        stage.write_file(f"workspace/{name}/v.json", f'{{"v": {number}}}')
    return SubmittingStage(stage, slurm)


def wait(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.5)


@pytest.mark.parametrize("scheduler", ["bash", *IN_QUEUES])
def test_jobs_end_once_and_their_output_is_kept(stage: Stage, slurm: Slurm, scheduler: str) -> None:
    jobs = project(stage, slurm, scheduler)
    assert jobs.submit("--cluster", "it", "-a", "one").ret == 0
    jobs.submit("--cluster", "it", "-a", "one").stdout.fnmatch_lines(["one: no job, 2 *"])
    wait(lambda: all(job["over"] for job in jobs.jobs().values()))
    assert {job["state"] for job in jobs.jobs().values()} == {"COMPLETED"}
    assert jobs.status()["one"]["completed"] == 2
    printed = [path.read_text() for path in (stage.path / ".aorta/jobs").glob("*/output-*.txt")]
    if scheduler != "bash":  # which prints where it runs
        assert sorted(printed) == ["ran a\n", "ran b\n"]


@pytest.mark.parametrize("scheduler", IN_QUEUES)
def test_what_is_cancelled_has_not_failed_and_is_submitted_again(stage: Stage, slurm: Slurm, scheduler: str) -> None:
    jobs = project(stage, slurm, scheduler)
    jobs.submit("--cluster", "it", "-a", "sleepers")
    began = stage.path / "began"
    wait(lambda: began.exists() and len(began.read_text().splitlines()) == 3)
    jobs.command("cancel", "--all")
    wait(lambda: all(job["over"] for job in jobs.jobs().values()))
    assert {job["state"] for job in jobs.jobs().values()} == {"CANCELLED"}
    row = jobs.status()["sleepers"]
    assert (row["failed"], row["eligible"]) == (0, 3)
    assert {record["exit_status"] for record in stage.trials("workspace").values()} == {"infrastructure_failed"}
    jobs.submit("--cluster", "it", "-a", "sleepers", "--dry-run").stdout.fnmatch_lines(
        ["sleepers: * (3 trials) on it*"]
    )


@pytest.mark.long
@pytest.mark.parametrize("scheduler", IN_QUEUES)
def test_a_scheduler_that_does_not_answer_changes_nothing(stage: Stage, slurm: Slurm, scheduler: str) -> None:
    jobs = project(stage, slurm, scheduler)
    (stage.path / "hang").touch()
    jobs.submit("--cluster", "it", "-a", "one")
    there, jobs.env["SLURM_CONF"] = jobs.env["SLURM_CONF"], str(stage.path / "nowhere")
    assert jobs.status()["one"]["submitted"] == 2
    jobs.env["SLURM_CONF"] = there
    (stage.path / "hang").unlink()
    wait(lambda: jobs.status()["one"]["completed"] == 2)
    assert len(jobs.jobs()) == 2


@pytest.mark.parametrize("scheduler", ["bash", *IN_QUEUES])
def test_two_actions_on_one_directory_are_refused(stage: Stage, slurm: Slurm, scheduler: str) -> None:
    same = COMMANDS.partition('[[action]]\nname = "sleepers"')[0]
    other = same.replace('"<=", 1', '">=", 1').partition('value_file = "v.json"')[2]
    jobs = project(stage, slurm, scheduler, same + other)
    refused = jobs.submit("--cluster", "it")
    assert refused.ret == 2
    assert "'b' would be submitted multiple times" in refused.stderr.str()
    assert jobs.jobs() == {}
