"""``pytest-aorta submit`` with a stand-in for a scheduler, for faults that a real one cannot be made to show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes import wait_until
from support.projects import command
from support.stage import PYTEST, Stage, text
from support.terminal import Terminal, finish

from pytest_aorta.cli import submit as submit_command
from pytest_aorta.workflow import slurm
from pytest_aorta.workflow.slurm import TaskState

SBATCH = """\
#!/bin/bash
cd -- "$(dirname "$0")" || exit
script=${@: -1}
echo "${@:1:$#-1}" >> sbatch-asked
how=$(cat sbatch-does)
if [ "$how" = slow ]; then touch sbatch-began; while [ ! -e go ]; do sleep 0.02; done; fi
if [ "$how" = refuse ]; then echo "sbatch: error: Batch job submission failed: Invalid account" >&2; exit 1; fi
if [ "$how" != nothing ]; then
    number=$((100 + $(wc -l < jobs)))
    echo "$number|$(sed -n 's/^#SBATCH --job-name=//p' "$script")|PENDING|Resources" >> jobs
fi
if [ "$how" = lost ] || [ "$how" = nothing ]; then
    echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
    exit 1
fi
echo "$number"
"""

SQUEUE = """\
#!/bin/bash
cd -- "$(dirname "$0")" || exit
echo "$@" >> squeue-asked
if [ -e squeue-down ]; then echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; fi
case "$*" in
*--name=*) cut -d '|' -f 1,2 jobs ;;
*) cut -d '|' -f 1,3,4 jobs ;;
esac
"""

SACCT = """\
#!/bin/bash
cd -- "$(dirname "$0")" || exit
echo "$@" >> sacct-asked
if [ ! -e accounting ]; then echo "Slurm accounting storage is disabled" >&2; exit 1; fi
cat accounting
"""

SCANCEL = """\
#!/bin/bash
cd -- "$(dirname "$0")" || exit
echo "$@" >> cancelled
"""


class StandInScheduler:
    """In a folder.

    What sbatch does: take jobs (``ok``), ``refuse`` them, take them and lose its answer (``lost``), not take them and
    answer the same (``nothing``), wait for a file ``go`` (``slow``).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name, script in {"sbatch": SBATCH, "squeue": SQUEUE, "sacct": SACCT, "scancel": SCANCEL}.items():
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        (folder / "jobs").touch()
        self.does("ok")

    def does(self, how: str) -> None:
        """What sbatch does from now on."""
        (self.folder / "sbatch-does").write_text(how)

    @property
    def jobs(self) -> list[list[str]]:
        """Number, name, state, reason of each job that it has."""
        return [line.split("|") for line in (self.folder / "jobs").read_text().splitlines()]

    @property
    def options(self) -> list[str]:
        """What sbatch was given before each script."""
        return (self.folder / "sbatch-asked").read_text().splitlines()

    def set_jobs(self, *jobs: list[str]) -> None:
        (self.folder / "jobs").write_text("".join("|".join(job) + "\n" for job in jobs))

    def is_down(self, down: bool) -> None:
        if down:
            (self.folder / "squeue-down").touch()
        else:
            (self.folder / "squeue-down").unlink()


RECIPE = """
[[action]]
name = "one"
command = "touch workspace/{directory}/one; echo ran {directory} >> log"
products = ["one"]
group.maximum_size = 2

[[action]]
name = "two"
command = "echo two {directory} >> log"
previous_actions = ["one"]
"""


SUBMIT = (sys.executable, "-m", "pytest_aorta", "submit")


@pytest.fixture
def scheduler(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInScheduler:
    """With a recipe on four directories."""
    stage.write_file("aorta.toml", RECIPE)
    for name in "abcd":
        (stage.path / "workspace" / name).mkdir(parents=True)
    # Each job by itself.
    stage.write_file(
        "clusters.toml",
        """
        [[cluster]]
        name = "one-by-one"
        identify.always = true
        scheduler = "slurm"
        maximum_array_size = 1
        """,
    )
    found = StandInScheduler(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(found.folder), prepend=os.pathsep)
    monkeypatch.chdir(stage.path)
    return found


def submit(*options: str) -> list[str]:
    """The lines that it writes."""
    result = command("submit", *options)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def refused(*options: str) -> str:
    """What it says when it cannot."""
    result = command("submit", *options)
    assert result.exit_code == 2, result.output
    return result.stderr


def matches(lines: list[str], *patterns: str) -> bool:
    """Whether there are lines like these, in this order."""
    left = iter(lines)
    return all(any(fnmatchcase(line, pattern) for line in left) for pattern in patterns)


def status() -> dict[str, dict[str, Any]]:
    result = command("status", "--all", "--json")
    assert result.exit_code == 0, result.output
    return {row["name"]: row for row in json.loads(result.stdout)["actions"]}


def jobs(*options: str) -> list[list[str]]:
    """State and reason of each job."""
    result = command("jobs", "--json", *options)
    assert result.exit_code == 0, result.output
    return [[job["state"], job["reason"]] for job in json.loads(result.stdout)["jobs"]]


def test_a_dry_run_shows_the_scripts_and_leaves_nothing(stage: Stage, scheduler: StandInScheduler) -> None:
    assert matches(
        submit("--dry-run"),
        "one: 2 jobs (4 directories) on one-by-one, up to 4 CPU-hours",
        "two: no job, 4 waiting",
        "# script 1 of 2: one-a+1.*",
        "#!/bin/bash",
        "#SBATCH --ntasks=1",
        "    run 0 'touch workspace/a/one; echo ran a >> log'",
        "# script 2 of 2: one-c+1.*",
    )
    assert not (stage.path / ".aorta").exists()
    assert scheduler.jobs == []


def test_what_was_submitted_is_not_submitted_again(stage: Stage, scheduler: StandInScheduler) -> None:
    lines = submit("-n", "1")
    assert matches(
        lines, "one: 1 job (2 directories) on one-by-one*2 left for another time", "one-by-one/100  one-a+1.*"
    )
    assert not any(line.startswith("two:") for line in lines)  # which is after the last job
    assert status()["one"]["submitted"] == 2
    assert matches(submit(), "one: 1 job (2 directories) on one-by-one*2 submitted already")
    assert matches(submit(), "one: no job, 4 submitted already")
    assert [job[0] for job in scheduler.jobs] == ["100", "101"]
    [first, _] = sorted((stage.path / ".aorta/jobs").iterdir())
    assert {path.name for path in first.iterdir()} == {"job.json", "script.sh"}


@pytest.mark.parametrize(
    ("options", "name"),
    [(["a", "d", "-a", "one"], "one-a+1"), (["-a", "o*", "c"], "one-c"), (["--where", "/v>1"], "one-c+1")],
)
def test_what_is_chosen_is_submitted(stage: Stage, scheduler: StandInScheduler, options: list[str], name: str) -> None:
    stage.write_file("aorta.toml", '[workspace]\nvalue_file = "v.json"\n' + RECIPE)
    for number, directory in enumerate("abcd"):
        stage.write_file(f"workspace/{directory}/v.json", json.dumps({"v": number}))
    submit(*options)
    assert [job[1].partition(".")[0] for job in scheduler.jobs] == [name]


def test_the_scheduler_decides_what_has_ended_and_how(stage: Stage, scheduler: StandInScheduler) -> None:
    submit()
    [first, second] = scheduler.jobs
    scheduler.set_jobs([*first[:2], "RUNNING", "None"], [*second[:2], "PENDING", "Priority"])
    assert jobs() == [["RUNNING", ""], ["PENDING", "Priority"]]
    assert (status()["one"]["submitted"], status()["one"]["running"]) == (4, 2)
    (stage.path / "workspace/a/one").touch()
    scheduler.set_jobs([*first[:2], "OUT_OF_MEMORY", "OutOfMemory"], [*second[:2], "CANCELLED", "None"])
    assert jobs() == [["OUT_OF_MEMORY", "OutOfMemory"], ["CANCELLED", ""]]
    assert (status()["one"]["completed"], status()["one"]["failed"], status()["one"]["eligible"]) == (1, 1, 2)
    assert "OUT_OF_MEMORY" in command("why", "b", "-a", "one").output
    assert jobs() == []
    assert matches(submit(), "one: 2 jobs (3 directories)*, 1 completed")


def test_watched_jobs_that_were_lost_are_submitted_again_as_often_as_retry_says(
    stage: Stage, scheduler: StandInScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = "resources.memory.per_cpu_mb = 1000\nretry = {infrastructure = 1, oom = {times = 1, memory = 'x1.5'}}\n"
    stage.write_file("aorta.toml", RECIPE.replace("group.max", retry + "group.max", 1))
    ends = iter([("OUT_OF_MEMORY", "NODE_FAIL"), ("OUT_OF_MEMORY", "NODE_FAIL")])

    def end_jobs(seconds: float) -> None:
        asked = [job for job in scheduler.jobs if job[2] == "PENDING"]
        over = [job for job in scheduler.jobs if job[2] != "PENDING"]
        scheduler.set_jobs(*over, *([*job[:2], how, how] for job, how in zip(asked, next(ends), strict=True)))

    monkeypatch.setattr(submit_command, "time", SimpleNamespace(time=time.time, sleep=end_jobs))
    said = submit("--watch")
    assert [line for line in said if "directories" in line] == [
        "one: 2 jobs (4 directories) on one-by-one, up to 4 CPU-hours"
    ] * 2
    limits = {
        job: {line for line in (stage.path / f".aorta/jobs/{job}/script.sh").read_text().split() if "--mem" in line}
        for _, job, *_ in scheduler.jobs
    }
    assert sorted(limits.values(), key=str) == [{"--mem-per-cpu=1000M"}] * 3 + [{"--mem-per-cpu=1500M"}]
    assert status()["one"]["eligible"] + status()["one"]["failed"] == 4
    assert matches(submit("--dry-run"), "one: 2 jobs (4 directories)*")  # by hand, they go once more


def test_the_queue_is_asked_before_the_index_is_read(
    stage: Stage, scheduler: StandInScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that completes its directories and leaves the queue in between is not eligible again, as in Row."""
    submit("-n", "1")
    asked = slurm.squeue

    def ends_meanwhile(numbers: Sequence[str]) -> dict[str, TaskState]:
        scheduler.set_jobs()
        states = asked(numbers)
        for name in "ab":
            (stage.path / "workspace" / name / "one").touch()
        return states

    monkeypatch.setattr(slurm, "squeue", ends_meanwhile)
    assert (status()["one"]["completed"], status()["one"]["eligible"]) == (2, 2)


def test_what_the_queue_has_forgotten_is_asked_of_the_accounting(stage: Stage, scheduler: StandInScheduler) -> None:
    submit()
    scheduler.set_jobs()
    (scheduler.folder / "accounting").write_text("100|NODE_FAIL|1:0\n101|CANCELLED by 0|0:0\n")
    assert jobs() == [["NODE_FAIL", "exit code 1:0"], ["CANCELLED", ""]]
    assert status()["one"]["eligible"] == 4  # the commands have not failed
    [asked] = set((scheduler.folder / "squeue-asked").read_text().splitlines())
    assert "--jobs=100,101" in asked


def test_a_task_that_the_queue_has_forgotten_is_asked_of_the_accounting_while_others_live(
    stage: Stage, scheduler: StandInScheduler
) -> None:
    submit("--cluster", "slurm", "-a", "one")
    [(number, name, *_)] = scheduler.jobs
    scheduler.set_jobs([f"{number}_1", name, "RUNNING", "None"])
    (scheduler.folder / "accounting").write_text(f"{number}_0|OUT_OF_MEMORY|0:125\n")
    assert jobs() == [["OUT_OF_MEMORY", "exit code 0:125"], ["RUNNING", ""]]
    assert (status()["one"]["failed"], status()["one"]["submitted"]) == (1, 2)
    assert (scheduler.folder / "sacct-asked").read_text().count(f"--jobs={number}_0 ") == 1
    assert f"--jobs={number},1 " in (scheduler.folder / "squeue-asked").read_text()


@pytest.mark.parametrize("in_accounting", [False, True])
def test_tasks_that_were_cancelled_before_they_began_are_not_unknown(
    stage: Stage, scheduler: StandInScheduler, in_accounting: bool
) -> None:
    submit("--cluster", "slurm", "-a", "one")
    [(number, name, *_)] = scheduler.jobs
    began = [f"{number}_0", name, "RUNNING", "None"]
    if in_accounting:
        (scheduler.folder / "accounting").write_text(f"{number}_[1]|CANCELLED by 0|0:0\n")
    scheduler.set_jobs(began, *([] if in_accounting else [[number, name, "CANCELLED", "None"]]))
    assert [state for state, _ in jobs()] == ["RUNNING", "CANCELLED"]


KILLED = """
[[action]]
name = "killed"
command = "sh -c 'kill -9 $$'"
trials = 2
group.maximum_size = 1
"""


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("CANCELLED", ("infrastructure_failed", "interrupted: job 100 ended: CANCELLED (by 0)", "eligible")),
        ("NODE_FAIL", ("infrastructure_failed", "interrupted: job 100 ended: NODE_FAIL (by 0)", "eligible")),
        ("OUT_OF_MEMORY", ("workload_failed", "OUT_OF_MEMORY: ended by SIGKILL", "failed")),
        ("FAILED", ("workload_failed", "ended by SIGKILL", "failed")),
    ],
)
def test_the_end_of_a_job_says_why_its_trial_was_killed(
    stage: Stage, scheduler: StandInScheduler, state: str, expected: tuple[str, str, str]
) -> None:
    stage.write_file("aorta.toml", KILLED)
    submit()
    [first, second] = scheduler.jobs
    job = stage.path / ".aorta/jobs" / first[1]
    inside = {"AORTA_JOB": str(job), "AORTA_JOB_TASK": "0", "SLURM_JOB_ID": "100"}
    items = stage.path / ".aorta/jobs" / first[1] / "items-0.txt"
    stage.command(*PYTEST, f"@{items}", env=inside)
    [(path, record)] = stage.trials("workspace").items()
    assert (record["exit_status"], record["failure"]["in_doubt"]) == ("workload_failed", True)
    assert (status()["killed"]["submitted"], status()["killed"]["failed"]) == (2, 0)
    scheduler.set_jobs([*first[:2], state, "by 0"], second)
    row = status()["killed"]
    assert {name for name in ("failed", "eligible") if row[name]} == {expected[2]}
    record = stage.trials("workspace")[path]
    assert (record["exit_status"], record["failure"]["message"]) == expected[:2]
    assert record["failure"]["in_doubt"] is None


def test_a_queue_that_is_down_changes_nothing(stage: Stage, scheduler: StandInScheduler) -> None:
    submit()
    scheduler.is_down(True)
    result = command("status", "--json")
    assert "Unable to contact slurm controller; the states of 2 submitted jobs are those that" in result.stderr
    assert json.loads(result.stdout)["actions"][0]["submitted"] == 4
    assert matches(
        submit(),
        "warning: squeue: *Unable to contact slurm controller; the states of 2 submitted jobs are those that*",
        "one: no job, 4 submitted already",
    )
    scheduler.is_down(False)
    assert jobs() == [["PENDING", "Resources"]] * 2
    assert len(scheduler.jobs) == 2


@pytest.mark.slow
def test_where_it_cannot_be_looked_up_nothing_is_submitted_until_it_can(
    stage: Stage, scheduler: StandInScheduler
) -> None:
    scheduler.does("lost")
    scheduler.is_down(True)
    assert fnmatchcase(refused(), "*timed out*Whether it has job one-a+1.* is looked up*0 of 2 were submitted before*")
    again = command("submit", "-n", "1")
    assert matches(again.output.splitlines(), "one: 1 job (2 *, 2 submitted already")
    # It is down for the second job as well; the first one is still not submitted again.
    assert [job[1].partition(".")[0] for job in scheduler.jobs] == ["one-a+1", "one-c+1"]
    scheduler.is_down(False)
    assert matches(submit(), "one: no job, 4 submitted already")
    assert jobs() == [["PENDING", "Resources"]] * 2
    assert len(scheduler.jobs) == 2


def test_a_job_that_the_scheduler_does_not_have_is_submitted_again(stage: Stage, scheduler: StandInScheduler) -> None:
    scheduler.does("nothing")
    refused()
    [folder] = (stage.path / ".aorta/jobs").iterdir()
    assert jobs() == [["UNCONFIRMED", ""]]  # sbatch may have accepted it, and its answer be lost
    scheduler.does("ok")
    assert matches(submit(), "one: 2 jobs (4 directories)*")
    assert len(scheduler.jobs) == 2
    assert subprocess.run(["bash", folder / "script.sh"]).returncode == 0  # should it come after all
    assert not (stage.path / "log").exists()


def test_a_refusal_is_an_error_and_the_directories_stay_eligible(stage: Stage, scheduler: StandInScheduler) -> None:
    scheduler.does("refuse")
    assert fnmatchcase(refused(), "*Invalid account; 0 of 2 were submitted before, the rest was not\n")
    assert (status()["one"]["eligible"], status()["one"]["submitted"]) == (4, 0)
    assert jobs("--all")[0][0] == "REFUSED"


def test_ctrl_c_lets_the_job_that_is_being_submitted_be_recorded(stage: Stage, scheduler: StandInScheduler) -> None:
    scheduler.does("slow")
    process = stage.start_command(*SUBMIT)
    wait_until((scheduler.folder / "sbatch-began").exists)
    os.killpg(process.pid, signal.SIGINT)
    (scheduler.folder / "go").touch()
    ended = stage.finish(process)
    assert ended.ret == 130
    assert "interrupted: 1 of 2 submitted, which are recorded; the rest is not" in text(ended)
    assert (status()["one"]["submitted"], status()["one"]["eligible"]) == (2, 2)


def test_jobs_are_cancelled_by_number_or_action(stage: Stage, scheduler: StandInScheduler) -> None:
    submit()
    assert command("cancel", "101").output == "1 job cancelled.\n"
    assert command("cancel", "-a", "o*").output == "2 jobs cancelled.\n"
    assert (scheduler.folder / "cancelled").read_text() == "101\n100 101\n"
    refused = command("cancel", "7")
    assert (refused.exit_code, "7' is no job of this recipe" in refused.output) == (2, True)
    assert command("cancel").exit_code == 2


WHOLE = """
[[action]]
name = "one"
command = "touch workspace/{directory}/one"
products = ["one"]

[[action]]
name = "two"
command = "touch {directories}"
products = ["two"]
previous_actions = ["one"]
group = {maximum_size = 2, submit_whole = true}
"""


def test_a_group_that_is_not_whole_waits_and_holds_up_no_other(
    stage: Stage, scheduler: StandInScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.write_file("aorta.toml", WHOLE)
    for name in "abd":
        (stage.path / "workspace" / name / "one").touch()
    command("scan")
    why = "  its group of 2 is submitted as a whole only, and c is waiting"
    assert why in command("why", "d", "-a", "two").output.splitlines()
    assert "its group" not in command("why", "a", "-a", "two").output

    def end_jobs(seconds: float) -> None:
        for _, name, state, _ in scheduler.jobs:
            if state == "PENDING" and name.startswith("one"):
                (stage.path / "workspace/c/one").touch()
        scheduler.set_jobs(*([number, name, "COMPLETED", "None"] for number, name, *_ in scheduler.jobs))

    monkeypatch.setattr(submit_command, "time", SimpleNamespace(time=time.time, sleep=end_jobs))
    lines = [line for line in submit("--watch") if line.startswith("two:")]
    assert lines[0].startswith("two: 1 job (2 directories) on one-by-one")
    assert lines[0].endswith(", 1 waiting, 1 in groups that are not whole (pytest-aorta why NAME)")
    assert lines[1].startswith("two: 1 job (2 directories) on one-by-one")  # c and d
    result = stage.command(*PYTEST, "aorta.toml", "-rs", "-k", "two and not c")
    assert "1 of a group of 2, which runs as a whole only" not in text(result)  # both are ready now


SINFO = """\
#!/bin/bash
echo "cpu*|1:00:00|2|8|16000|(null)"
echo "cpu*|1:00:00|1|64|256000|(null)"
echo "gpu|2-00:00:00|4|32|128000|gpu:a100:4(S:0-1),tmp:1"
"""


HALF_AN_HOUR = 'walltime.per_submission = "00:30:00"\n'


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        ('walltime.per_submission = "01:00:01"', "61 minutes, of 60"),
        (HALF_AN_HOUR + "threads_per_process = 65", "65 CPUs of one node for a process, of 64"),
        (HALF_AN_HOUR + "memory_per_cpu_mb = 256001", "256001 MB of one node for a process, of 256000"),
        (HALF_AN_HOUR + "gpus_per_process = 1", "1 GPUs of one node for a process, of 0; 1 GPUs, of 0"),
        ('walltime.per_submission = "01:00:00"\nthreads_per_process = 64\nmemory_per_cpu_mb = 4000', None),
    ],
)
def test_a_job_that_can_never_start_is_refused(
    stage: Stage, scheduler: StandInScheduler, resources: str, why: str | None
) -> None:
    (scheduler.folder / "sinfo").write_text(SINFO)
    (scheduler.folder / "sinfo").chmod(0o755)
    recipe = RECIPE.partition('[[action]]\nname = "two"')[0] + f"[action.resources]\n{resources}\n"
    stage.write_file("aorta.toml", recipe)
    if why is None:
        submit()
        return
    message = "action 'one': a job over 2 can never start on the default partition of 'one-by-one': it asks for "
    assert message + why in refused()
    assert scheduler.jobs == []
    stage.write_file("aorta.toml", recipe + "[action.submit_options]\none-by-one.custom = ['--partition=other']\n")
    submit()  # which nothing is known of


OVERLAPPING = """
[workspace]
value_file = "v.json"
[[action]]
name = "p"
command = "echo low >> workspace/{directory}/p"
products = ["p"]
group.include = [{condition = ["/v", "<=", 1]}]
[[action]]
name = "p"
command = "echo high >> workspace/{directory}/p"
products = ["p"]
group.include = [{condition = ["/v", ">=", 1]}]
"""


def test_two_actions_of_one_name_are_never_on_one_directory(stage: Stage, scheduler: StandInScheduler) -> None:
    stage.write_file("aorta.toml", OVERLAPPING)
    for number, name in enumerate("abcd"):
        stage.write_file(f"workspace/{name}/v.json", json.dumps({"v": number}))
    why = "aorta.toml:8: 'b' would be {} multiple times: the action 'p' of line 3 includes it as well"
    assert why.format("submitted") in refused("-n", "1")
    assert why.format("submitted") in refused("--cluster", "none")
    assert why.format("run") in command("run").output + text(stage.command(*PYTEST, "aorta.toml"))
    assert scheduler.jobs == []
    assert not (stage.path / "workspace/b/p").exists()
    stage.write_file("workspace/b/p", "")
    command("scan")
    assert matches(submit("--cluster", "one-by-one"), "p: 1 job (1 directory)*", "p: 1 job (2 directories)*")


@pytest.mark.slow
def test_on_this_host_a_job_runs_at_once(stage: Stage, scheduler: StandInScheduler) -> None:
    submit()
    scheduler.set_jobs()
    jobs()
    submit("--cluster", "none")
    assert (stage.path / "log").read_text().splitlines() == [f"ran {name}" for name in "abcd"]
    assert (status()["one"]["completed"], status()["two"]["eligible"]) == (4, 4)
    assert jobs("--all")[-1] == ["COMPLETED", ""]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "count"), [("\n", 2), ("n\n", 0)])
def test_on_a_terminal_it_asks(stage: Stage, scheduler: StandInScheduler, answer: str, count: int) -> None:
    terminal = Terminal()
    process = stage.start_command(*SUBMIT, stdin=terminal.slave, stdout=terminal.slave, stderr=terminal.slave)
    terminal.wait_for("Submit 2 jobs to one-by-one that may cost up to 4 CPU-hours? [Y/n]")
    terminal.type(answer)
    finish(process, terminal)
    terminal.close()
    assert process.returncode == 0
    assert len(scheduler.jobs) == count


MATRIX = """
[[action]]
name = "matrix"
workload = "determinism"
trials = 40
mitigations = ["none", "omp_1"]
until_decided = true
group.maximum_size = 4
"""


def test_of_trials_until_decided_only_the_next_wave_is_submitted(stage: Stage, scheduler: StandInScheduler) -> None:
    stage.write_file("aorta.toml", MATRIX.replace("until_decided = true", ""))
    dry = ("--cluster", "slurm", "--dry-run")
    assert "waves" not in submit(*dry)[0]
    assert "64 in later waves" in submit(*dry, "--pytest-args", "--aorta-stop=decided,8h")[0]
    stage.write_file("aorta.toml", MATRIX + "group.submit_whole = true\n")
    assert "waves" not in submit(*dry)[0]
    stage.write_file("aorta.toml", MATRIX)
    [line, *_] = submit("--cluster", "one-by-one")
    assert line.startswith("matrix: 4 jobs (16 trials) on one-by-one, up to ")
    assert line.endswith(", 64 in later waves")
    assert submit("--cluster", "one-by-one") == ["matrix: no job, 16 submitted already, 64 in later waves"]
