"""Forty trials, one per job of a real SLURM, while jobs end before their time: each row of the table is one such end.

``pytest -m long tests/acceptance/test_slurm_ends.py`` prints the table.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.slurm import Slurm, has_limits_of_memory, missing, start_server, stop_server
from support.slurm_steps import SubmittingStage
from support.stage import Stage

TRIALS = 40

#: Jobs that a case ends, of those that run.
HIT = 8

RECIPE = """
[[action]]
name = "sleepers"
command = "sh trial.sh"
trials = {trials}
group.maximum_size = 1
resources.walltime.per_submission = "00:{minutes:02}:00"
resources.memory.per_cpu_mb = 400
submit_options.slurm = {{partition = "{partition}"}}
"""

#: It says when it begins, and whether another one of its number is alive.
TRIAL = """
echo "$AORTA_TRIAL" >> began
exec 9>> "lock-$AORTA_TRIAL"
flock -n 9 || echo "$AORTA_TRIAL" >> beside
if [ -e hang ] && [ "$AORTA_TRIAL" -lt 8 ]; then exec sleep 600; fi
if [ -e eat ] && [ "$AORTA_TRIAL" -lt 8 ]; then
    exec "$PYTHON" -c 'import time; held = b"x" * (1 << 30); time.sleep(600)'
fi
exec sleep "$TAKES"
"""

#: Minutes are SLURM's: it looks once in half a minute, and a job that was queued again waits for two.
PATIENCE = 540.0


class Ends:
    """The trials of a stage, and what has become of them."""

    def __init__(self, stage: Stage, slurm: Slurm, case: Case) -> None:
        self.stage, self.slurm = stage, slurm
        self.jobs = SubmittingStage(stage, slurm)
        self.jobs.env |= {"PYTHON": sys.executable, "TAKES": str(case.seconds)}
        stage.write_file("aorta.toml", RECIPE.format(trials=TRIALS, partition=case.partition, minutes=case.minutes))
        stage.write_file("trial.sh", TRIAL)

    def lines(self, name: str) -> Counter[str]:
        """How often each trial is in a file of the trials."""
        file = self.stage.path / name
        return Counter(file.read_text().split()) if file.exists() else Counter()

    def running(self) -> list[str]:
        return self.slurm.command("squeue", "-h", "-r", "-t", "R", "-n", self.name(), "-o", "%i").split()

    def name(self) -> str:
        return ",".join({job["name"] for job in self.jobs.jobs().values()})

    def records(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Those that count, and those of the history."""
        found = self.stage.trials("workspace")
        return (
            [record for path, record in found.items() if ".history" not in path],
            [record for path, record in found.items() if ".history" in path],
        )

    def wait(self, condition: Callable[[], object], what: str) -> None:
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < give_up, f"no {what}: {self.slurm.command('squeue')}"
            time.sleep(1)

    def wait_for_end(self) -> None:
        self.wait(lambda: all(job["over"] for job in self.jobs.jobs().values()), "end of all jobs")

    # The ends

    def scancel(self) -> None:
        self.slurm.command("scancel", *self.running()[:HIT])

    def cancel_all(self) -> None:
        self.jobs.command("cancel", "--all")

    def requeue(self) -> None:
        for job in self.running()[:HIT]:
            self.slurm.command("scontrol", "requeue", job)

    def preempt(self) -> None:
        """Jobs of a higher partition take one node."""
        here = ("--chdir=/tmp", "--output=/dev/null")
        self.slurm.command("sbatch", "-p", "high", "-w", "n0", "-n", str(HIT), *here, "--wrap", "sleep 5")

    def kill_node(self) -> None:
        self._without_node(self.slurm.kill_node)

    def kill_slurmd(self) -> None:
        """The trials of the node go on until it has one again."""
        self._without_node(self.slurm.kill_daemon)

    def _without_node(self, kill: Callable[[str], None]) -> None:
        kill("n0")
        self.wait(lambda: self.slurm.states()["n0"].startswith("down"), "node that is down")
        self.slurm.start_node("n0")

    def limit(self) -> None:
        self.wait(lambda: self.jobs.ids("sleepers", "TIMEOUT"), "job that has reached its time limit")
        self.wait_for_end()
        (self.stage.path / "hang").unlink()

    def memory(self) -> None:
        self.wait(lambda: self.jobs.ids("sleepers", "OUT_OF_MEMORY"), "job that has run out of memory")
        self.wait_for_end()
        (self.stage.path / "eat").unlink()


@dataclass(frozen=True)
class Case:
    """``file``: with which trials 0 to 7 do not end by themselves. ``failed``: how many trials fail by themselves.

    ``seconds``: what a trial takes, such as longer than SLURM waits for a node.
    """

    name: str
    end: Callable[[Ends], None]
    partition: str = "main"
    minutes: int = 10
    file: str = ""
    failed: int = 0
    seconds: int = 12


CASES = (
    Case("scancel", Ends.scancel),
    Case("pytest-aorta cancel --all", Ends.cancel_all),
    Case("scontrol requeue", Ends.requeue),
    Case("preempted, PreemptMode=REQUEUE", Ends.preempt, partition="low"),
    Case("preempted, PreemptMode=CANCEL", Ends.preempt, partition="lowest"),
    Case("node killed", Ends.kill_node),
    Case("slurmd killed", Ends.kill_slurmd, seconds=40),
    Case("time limit", Ends.limit, minutes=1, file="hang"),
    Case("out of memory", Ends.memory, file="eat", failed=8),
)


@pytest.fixture(scope="module")
def slurm_server() -> Iterator[Slurm]:
    if reason := missing():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="aorta-slurm-"))
    start_server(folder, limits_memory=has_limits_of_memory())
    yield Slurm(folder)
    stop_server(folder)


HEADING = "\n{:32}{:>6}{:>6}{:>8}{:>8}{:>9}{:>7}{:>9}  {}"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_has_ended_before_its_time_has_not_failed_and_runs_again(
    stage: Stage, slurm: Slurm, case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    if case.file == "eat" and not has_limits_of_memory():
        pytest.skip("SLURM cannot limit memory here")
    ends = Ends(stage, slurm, case)
    if case.file:
        (stage.path / case.file).touch()
    ends.jobs.submit().stdout.fnmatch_lines([f"sleepers: {TRIALS} jobs ({TRIALS} trials) on slurm*"])
    ends.wait(lambda: len(ends.lines("began")) >= 2 * HIT, "trials")
    case.end(ends)
    ends.wait_for_end()
    states = Counter(job["state"] for job in ends.jobs.jobs().values())
    now, earlier = ends.records()
    first = Counter(record["exit_status"] for record in (*now, *earlier))
    in_doubt = sum(bool((record["failure"] or {}).get("in_doubt")) for record in now)
    again = ends.jobs.submit().outlines[0]
    ends.wait_for_end()
    now, earlier = ends.records()
    found = Counter(record["exit_status"] for record in now)
    kept_twice = sum(record["exit_status"] == "ok" for record in earlier)
    begun = ends.lines("began")
    with capsys.disabled():
        if case is CASES[0]:
            print(HEADING.format("end", "ok", "lost", "failed", "doubt", "starts", "beside", "twice", "jobs"))
        numbers = (first["ok"], first["infrastructure_failed"], first["workload_failed"] + first["timeout"], in_doubt)
        print(
            HEADING.format(case.name, *numbers, begun.total(), ends.lines("beside").total(), kept_twice, dict(states)),
            f"\n    then {again}: {dict(found)}",
        )
    assert (numbers[2], in_doubt, kept_twice) == (case.failed, 0, 0)
    assert found == {"ok": TRIALS - case.failed, **({"workload_failed": case.failed} if case.failed else {})}
    assert len(begun) == TRIALS
    assert ends.jobs.status()["sleepers"]["eligible"] == 0
