"""Live: which rank is the cause, where that is hardest to tell; ``test_judge_cases.py`` has many more, recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.processes import free_port
from support.stage import Stage

FAULTS = Path(__file__).parents[1] / "support" / "rank_faults.py"


def play(stage: Stage, parts: list[str], *options: str) -> dict[str, dict[str, Any]]:
    stage.copy(FAULTS)
    arguments = ("--aorta-trials", str(len(parts)), "--aorta-config", f"script={'.'.join(parts)}", *options)
    stage.run("rank_faults.py::RankFaults", *arguments)
    assert stage.left_running() == []
    return {part: stage.trial(f"RankFaults/trial_{index}.json") for index, part in enumerate(parts)}


def blames(trial: dict[str, Any]) -> list[str | None]:
    return [rank["blame"] for rank in trial["ranks"]]


@pytest.mark.slow
@pytest.mark.long
def test_ranks_that_disagree_do_not_blame_the_one_that_notices(stage: Stage) -> None:
    parts = ["enters_another_size", "enters_another_kind", "enters_in_another_order", "enters_one_more", "shares_a_nan"]
    found = play(stage, [*parts, "gives_up", "no_group"], "--aorta-timeout", "60")

    # The process group of the others gave up, and rank 1 was looked at before it was ended.
    given_up = found["gives_up"]["failure"]
    assert "Timed out waiting" in given_up["message"]
    assert "play_alone" in (stage.results / "RankFaults" / given_up["stacks"]).read_text()
    assert [rank["collective"] is not None for rank in found.pop("gives_up")["ranks"]] == [True] * 3
    # A rank that is done early, and has no process group, is no fault.
    done_early = found.pop("no_group")
    assert (done_early["exit_status"], blames(done_early)) == ("ok", [None, None, None])

    causes = {part: (trial["failure"]["rank"], trial["failure"]["confidence"]) for part, trial in found.items()}
    assert causes == {
        # The rank that gets too much is ended by gloo, and what it has entered is not known.
        "enters_another_size": (None, "unknown"),
        "enters_another_kind": (1, "likely"),
        "enters_in_another_order": (None, "unknown"),
        "enters_one_more": (1, "likely"),
        "shares_a_nan": (None, "unknown"),
    }
    for part in ("enters_another_size", "enters_another_kind"):
        assert "collective 6 differs: rank 1: gloo:" in found[part]["failure"]["message"]
    assert found["enters_another_kind"]["failure"]["evidence"].endswith("ranks 0,2: gloo:all_reduce of Float[4]")
    assert found["shares_a_nan"]["failure"]["evidence"] == "ranks 0-2 failed alike"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("launcher", ["auto", "torchrun"])
def test_causes_at_the_deadline(stage: Stage, launcher: str) -> None:
    parts = ["woken_from_c", "deaf_waits", "sleeps_before_init"]
    found = play(stage, parts, "--aorta-launcher", launcher, "--aorta-timeout", "25", "--aorta-slots", "3")

    for part, trial in found.items():
        assert (part, trial["exit_status"], trial["failure"]["rank"]) == (part, "timeout", 1)
        assert (part, blames(trial)) == (part, ["collateral", "cause", "collateral"])
        # Also where the signal for its stack has woken it, and it went on as if nothing had been.
        assert [rank["passed"] for rank in trial["ranks"]] == [None, None, None]
        assert trial["result"]["passed"] is False
    assert "rank 2 is missing" not in found["deaf_waits"]["failure"]["message"]


#: Of a command that starts its own ranks: known as under ``auto``.
OF_A_COMMAND: dict[str, dict[str, Any]] = {
    "raises": {"kind": "exception", "type": "ValueError", "message": "rank 1: rank 1 has a bug"},
    "segfaults": {"kind": "signal", "signal": "SIGSEGV"},
    "sleeps": {"kind": "timeout"},
}


@pytest.mark.slow
def test_the_rank_of_a_command_that_is_the_cause_is_named_in_forks(stage: Stage) -> None:
    stage.copy(FAULTS)
    parts = ("raises", "sleeps", "raises", "segfaults")  # the first trial learns what to import before the forks
    command = f"torchrun --nproc-per-node 3 rank_faults.py {'.'.join(parts)}"
    options = ("--aorta-trials", "4", "--aorta-timeout", "30", "--aorta-isolation", "fork")
    stage.run_here("--aorta-command", command, *options)

    records = [stage.trial(f"command-rank_faults/trial_{trial}.json") for trial in range(len(parts))]
    for part, trial in zip(parts, records, strict=True):
        assert {name: trial["failure"][name] for name in OF_A_COMMAND[part]} == OF_A_COMMAND[part]
        assert blames(trial) == ["collateral", "cause", "collateral"], part
        assert trial["failure"]["rank"] == 1
    assert not (stage.results / "processes").exists()
    assert stage.left_running() == []
    _, slept, _, segfaulted = records

    assert "rank 1 is missing: play_alone() at rank_faults.py" in slept["failure"]["message"]
    assert slept["ranks"][0]["collective"].startswith("gloo:all_reduce number ")
    stacks = [(stage.results / "command-rank_faults" / rank["stacks"]).read_text() for rank in slept["ranks"]]
    assert all("/launch/child/script.py" in text for text in stacks)  # as the first frame of forked programs
    assert "in string_at" in (segfaulted["failure"]["traceback"] or "")


#: As Lightning does it: rank 0 starts rank 1, loses it in a collective, and leaves without waiting for it.
STARTS_THE_OTHER = """
import os, signal, subprocess, sys, threading, time
import torch
import torch.distributed as dist

if "RANK" not in os.environ:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2], WORLD_SIZE="2", RANK="0", LOCAL_RANK="0")
    other = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": "1", "LOCAL_RANK": "1"})
    threading.Thread(target=lambda held: time.sleep(100), args=(other,), daemon=True).start()  # else it is polled
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == "killed" else os._exit(7)
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize(
    ("how", "end"), [("killed", ("SIGKILL", None)), pytest.param("exits", (None, 7), marks=pytest.mark.slow)]
)
def test_a_rank_that_another_has_started_and_not_waited_for_is_the_cause_as_it_has_ended(
    stage: Stage, how: str, end: tuple[str | None, int | None]
) -> None:
    stage.write_file("starts.py", STARTS_THE_OTHER)
    command = f"python starts.py {how} {free_port()}"
    # No launcher says that there are ranks.
    stage.run_here("--aorta-command", command, "--aorta-trials", "1", "--aorta-observe", "full")
    [trial] = stage.trials().values()
    assert (trial["failure"]["rank"], trial["failure"]["signal"], trial["failure"]["exit_code"]) == (1, *end)


FAILS_ONCE = """
import os, sys

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    sys.exit(13)
print("step 1", flush=True)
"""


@pytest.mark.slow
def test_what_a_command_starts_again_is_recorded(stage: Stage) -> None:
    stage.write(train=FAILS_ONCE)
    line = "torchrun --standalone --max-restarts 1 --nproc-per-node 2 train.py"
    result = stage.run("--aorta-command", line)
    result.stdout.fnmatch_lines(["*ok only after a restart of the ranks"])
    trial = stage.trial("command-train/trial_0.json")
    (first,) = trial["elastic"]["attempts"]
    assert (trial["exit_status"], trial["elastic"]["launcher"], trial["elastic"]["restarts"]) == ("ok", "command", 1)
    assert (first["failure"]["rank"], first["failure"]["exit_code"]) == (1, 13)


DOES_NOT_SEND = """
import datetime, time, torch, torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=15))
rank, x = dist.get_rank(), torch.ones(4)
if rank == 0:
    time.sleep(600)
else:
    dist.recv(x, src=rank - 1)
"""


@pytest.mark.slow
def test_ranks_that_receive_say_from_whom(stage: Stage) -> None:
    stage.write(train=DOES_NOT_SEND)
    stage.run("--aorta-command", "python train.py", "--aorta-nproc", "3", "--aorta-timeout", "100")
    trial = stage.trial("command-train/trial_0.json")
    assert (trial["exit_status"], trial["failure"]["rank"]) == ("workload_failed", 0)
    assert "rank 2 waits in recv for rank 1, which waits in recv for rank 0;" in trial["failure"]["message"]
    assert blames(trial) == ["cause", "collateral", "collateral"]


WAITS_FOR_EACH_OTHER = """
import sys, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
for step in range(1, 14):
    time.sleep(0.2 if dist.get_rank() == 1 else 0.05)
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
sys.exit("fails" in sys.argv)
"""


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_ranks_of_a_command_are_recorded_whether_it_passes_or_not(stage: Stage, fails: bool) -> None:
    stage.write(train=WAITS_FOR_EACH_OTHER)
    stage.run("--aorta-command", f"torchrun --standalone --nproc-per-node 2 train.py{' fails' if fails else ''}")
    (trial,) = stage.trials().values()
    assert trial["exit_status"] == ("workload_failed" if fails else "ok")
    first, slower = trial["ranks"]
    assert fails or (first["busy_ms"] is not None and slower["busy_ms"] > 1.5 * first["busy_ms"])
    assert trial["seeds"]["hash"] is not None  # by which it is replayed
