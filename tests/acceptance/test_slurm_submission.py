"""Recipes as jobs of a real SLURM with two nodes; some are cancelled, requeued, too long, or lose their node."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes import kill_all
from support.slurm import Slurm
from support.slurm_steps import SubmittingStage
from support.stage import Stage
from support.workloads import GLOO

RECIPE = """
[default.action.resources.walltime]
per_submission = "00:05:00"

[[action]]
name = "matrix"
workload = "short"
trials = 4
group.maximum_size = 2

[[action]]
name = "list"
each = "cell"
command = "ls {folder} > {folder}/files; echo done"
products = ["files"]
previous_actions = ["matrix"]
"""


@pytest.fixture
def jobs(stage: Stage, slurm: Slurm) -> SubmittingStage:
    stage.write_file("aorta.toml", RECIPE)
    return SubmittingStage(stage, slurm)


def change(jobs: SubmittingStage, old: str, new: str) -> None:
    file = jobs.stage.path / "aorta.toml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.slow
def test_a_recipe_is_submitted_action_after_action(jobs: SubmittingStage) -> None:
    result = jobs.submit()
    result.stdout.fnmatch_lines(["matrix: 2 jobs (4 trials) on slurm, up to 0.17 CPU-hours"])
    assert result.ret == 0
    jobs.wait_for_end()
    assert {job["state"] for job in jobs.jobs().values()} == {"COMPLETED"}
    assert jobs.status()["matrix"]["completed"] == 4
    result = jobs.submit()
    result.stdout.fnmatch_lines(["matrix: no job, 4 completed", "list: 1 job (1 cell) on slurm*"])
    jobs.wait_for_end()
    assert jobs.status()["list"]["completed"] == 1
    assert "trial_3.json" in (jobs.stage.path / "workspace/matrix/short/files").read_text()
    [folder] = (jobs.stage.path / ".aorta/jobs").glob("list-*")
    assert (folder / "output-0.txt").read_text() == "done\n"
    result = jobs.submit()
    result.stdout.fnmatch_lines(["matrix: no job, 4 completed", "list: no job, 1 completed"])
    jobs.pytest("aorta.toml").assert_outcomes(passed=5)


@pytest.mark.slow
@pytest.mark.long
def test_a_trial_that_dies_with_its_job_has_a_file_that_says_why(jobs: SubmittingStage) -> None:
    (jobs.stage.path / "hang").touch()
    change(jobs, "trials = 4", 'trials = 2\nconfig = {hang = "hang"}')
    jobs.submit()
    jobs.stage.wait_for_file("began")
    [number] = jobs.jobs()
    kill_all(jobs.stage.processes())
    jobs.wait_for_end()
    assert [job["state"] for job in jobs.jobs().values()] == ["FAILED"]
    [record] = jobs.stage.trials("workspace").values()
    assert (record["exit_status"], record["trial_index"]) == ("infrastructure_failed", 0)
    assert record["failure"]["message"].startswith(f"job {number} ended: FAILED")
    status = jobs.status()["matrix"]
    assert (status["failed"], status["eligible"]) == (0, 2)
    (jobs.stage.path / "hang").unlink()
    jobs.submit().stdout.fnmatch_lines(["matrix: 1 job (2 trials) on slurm*"])
    jobs.wait_for_end()
    assert jobs.status()["matrix"]["completed"] == 2


UNTIL_DECIDED = """
[default.action.resources]
walltime.per_submission = "00:05:00"
threads_per_process = 4

[[action]]
name = "matrix"
workload = "short"
trials = 100
mitigations = ["none", "fix"]
config = {unless = "FIXED"}
until_decided = true
group.maximum_size = 4
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_watched_submission_asks_for_one_wave_at_a_time_until_all_is_decided(jobs: SubmittingStage) -> None:
    """Of 200 trials; a run on one machine needs 16 of them."""
    jobs.stage.write_file("aorta.toml", UNTIL_DECIDED)
    jobs.env["PYTEST_AORTA_REGISTRY_FILE"] = str(jobs.stage.write_registry(mitigations={"fix": {"FIXED": "1"}}))
    watched = jobs.submit("--watch")
    assert watched.ret == 0
    watched.stdout.fnmatch_lines(["matrix: 4 jobs (16 trials) on slurm*, 184 in later waves"])
    number = len(jobs.stage.trials("workspace"))
    assert number <= sum(job["units"] for job in jobs.jobs().values()) <= 32
    assert {job["state"] for job in jobs.jobs().values()} == {"COMPLETED"}
    status = jobs.status()["matrix"]
    assert (status["submitted"], status["eligible"]) == (0, 0)
    assert status["completed"] + status["failed"] == number
    jobs.submit().stdout.fnmatch_lines(["matrix: no job,*"])


TWO_NODES = """
[[action]]
name = "matrix"
workload = "together"
mitigations = ["none", "fix"]
trials = 10
timeout = 60
until_decided = true
distributed = {nproc = 1, elastic = {nnodes = 2}}
resources.walltime.per_submission = "00:10:00"
"""

TOGETHER = """
class Together(Gloo):
    def run(self):
        self.sum_of_ranks()
        return {"passed": "FIXED" in os.environ}
"""


@pytest.mark.slow
@pytest.mark.long
def test_no_node_of_a_job_waits_for_trials_that_another_one_skips(jobs: SubmittingStage) -> None:
    jobs.stage.write(together=GLOO + TOGETHER)
    jobs.stage.register(together="together:Together")
    jobs.stage.write_file("aorta.toml", TWO_NODES)
    registry = jobs.stage.write_registry(mitigations={"fix": {"FIXED": "1"}})
    jobs.env["PYTEST_AORTA_REGISTRY_FILE"] = str(registry)
    jobs.submit()
    jobs.wait_for_end()
    found = [record["exit_status"] for record in jobs.stage.trials("workspace").values()]
    assert (found.count("ok"), found.count("workload_failed"), len(found)) == (10, 10, 20)
    assert jobs.status()["matrix"]["eligible"] == 0


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

LOSSES = (
    ACTION.format(name="one", walltime="00:10:00", options='custom = ["--no-requeue"]')
    + ACTION.format(name="two", walltime="00:10:00", options="")
    + ACTION.format(name="three", walltime="00:01:00", options='partition = "short"')
)

#: Seconds in which SLURM has done what it does by itself; a requeued job waits for two minutes.
MINUTES = 420.0


def current(stage: Stage) -> dict[str, dict[str, Any]]:
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
    slurm: Slurm,
    tmp_path: Path,
) -> None:
    stage.write_file("clusters.toml", CLUSTERS)
    stage.write_file("aorta.toml", LOSSES)
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
    local.stage.write_file("aorta.toml", LOSSES)
    assert local.pytest("aorta.toml", "-q").ret == 0
    expected = current(local.stage)
    assert _comparable(now) == _comparable(expected)


def _comparable(records: dict[str, dict[str, Any]]) -> dict[str, Any]:
    same = ("trial_id", "workload", "cell", "trial_index", "config", "exit_status", "mitigations_applied")
    return {path: [record[key] for key in same] for path, record in records.items()}


#: For a SLURM without a database: what has ended, from the file of its completions.
SACCT = """\
#!/usr/bin/env python3
import re, sys
[asked] = [each.partition("=")[2].split(",") for each in sys.argv if each.startswith("--jobs=")]
for line in open("{folder}/jobs.txt"):
    job = dict(re.findall(r"(\\w+)=(\\S*)", line))
    name = f"{{job['ArrayJobId']}}_{{job['ArrayTaskId']}}" if "ArrayJobId" in job else job["JobId"]
    if name in asked:
        print(f"{{name}}|{{job['JobState']}}|{{job['ExitCode']}}")
"""

TWO_TASKS = """
[[action]]
name = "one"
command = "while [ -e hang-{directory} ]; do sleep 0.2; done; exit 3"
products = ["one"]
group.maximum_size = 1
resources.walltime.per_submission = "00:05:00"
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_task_that_slurm_has_forgotten_is_asked_of_the_accounting(
    stage: Stage, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM forgets once a minute what has ended ``MinJobAge`` seconds ago, tasks of an array that goes on included."""
    configuration = slurm.folder / "slurm.conf"
    before = configuration.read_text()
    try:
        configuration.write_text(before.replace("MinJobAge=600", "MinJobAge=5"))
        slurm.command("scontrol", "reconfigure")
        tool = tmp_path / "bin" / "sacct"
        tool.parent.mkdir()
        tool.write_text(SACCT.format(folder=slurm.folder))
        tool.chmod(0o755)
        jobs = SubmittingStage(stage, slurm)
        jobs.env["PATH"] = f"{tool.parent}:{jobs.env['PATH']}"
        stage.write_file("aorta.toml", TWO_TASKS)
        for name in "ab":
            (stage.path / "workspace" / name).mkdir(parents=True)
        (stage.path / "hang-b").touch()
        jobs.submit()
        wait(lambda: "ExitCode=2:0" in (slurm.folder / "jobs.txt").read_text(), "task that has ended")
        wait(lambda: len(slurm.command("squeue", "-h", "--states=all", "--array", "-o", "%i").split()) == 1, "purge")
        assert {job["state"]: job["reason"] for job in jobs.jobs().values()} == {
            "FAILED": "exit code 2:0",
            "RUNNING": "",
        }
        row = jobs.status()["one"]
        assert (row["failed"], row["submitted"], row["eligible"]) == (1, 1, 0)
    finally:
        (stage.path / "hang-b").unlink(missing_ok=True)
        configuration.write_text(before)
        slurm.command("scontrol", "reconfigure")


SLEEPERS = """
[[action]]
name = "sleepers"
command = "sh -c 'echo began >> began; exec sleep 1000'"
trials = {trials}
group.maximum_size = 1
resources.walltime.per_submission = "00:20:00"
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["scancel", pytest.param("cancel --all", marks=pytest.mark.long)])
def test_no_trial_of_a_cancelled_job_has_failed(stage: Stage, slurm: Slurm, how: str) -> None:
    jobs, trials = SubmittingStage(stage, slurm), 12
    stage.write_file("aorta.toml", SLEEPERS.format(trials=trials))
    began = stage.path / "began"
    jobs.submit("--yes")
    wait(lambda: began.exists() and len(began.read_text().splitlines()) == trials, "trials")
    if how == "scancel":
        slurm.command("scancel", *jobs.jobs())
    else:
        jobs.command(*how.split())
    jobs.wait_for_end()
    assert {job["state"] for job in jobs.jobs().values()} == {"CANCELLED"}
    records = current(stage).values()
    assert [record["exit_status"] for record in records] == ["infrastructure_failed"] * trials
    assert not any(record["failure"]["in_doubt"] for record in records)
    assert (jobs.status()["sleepers"]["failed"], jobs.status()["sleepers"]["eligible"]) == (0, trials)
