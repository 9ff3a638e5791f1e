"""The same fault of a rank is recorded alike under every launcher, as a table of docs/guides/distributed.md says.

The fault is rank 1's, of three. Where a launcher cannot know what the others know, ``elsewhere`` has what is said
instead, and why.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from support.pip_environments import kept_environment
from support.stage import Stage, torchrun_command

from pytest_aorta.triage.signatures import signature_of

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "tests" / "support" / "rank_faults.py"

#: Of a workload class: ``auto``, ``torchrun``, ``external``. Of a script: ``script`` (the fixture ``aorta_torchrun``),
#: ``nproc`` (a command with ``--aorta-nproc``), and commands that start their ranks themselves.
Launcher = Literal["auto", "torchrun", "external", "script", "nproc", "torchrun line", "accelerate line", "spawn"]

LAUNCHERS: Mapping[Launcher, str] = {
    "auto": "`auto`",
    "torchrun": "`torchrun`",
    "external": "`external`",
    "script": "`aorta_torchrun`",
    "nproc": "`--aorta-nproc`",
    "torchrun line": "`torchrun` in the command",
    "accelerate line": "`accelerate launch` in the command",
    "spawn": "`torch.multiprocessing.spawn` in the command",
}

SCRIPTS: tuple[Launcher, ...] = ("script", "nproc", "torchrun line", "accelerate line", "spawn")


@dataclass(frozen=True)
class Outcome:
    """What a trial file says; ``why``: it differs from what is known under ``auto``.

    ``detail``: signal, exit code, or type of an exception. ``signature``: as the table calls the failure, without
    numbers of lines. ``rank``: the cause; ``None`` where it is not known, and a rank that has waited for it fails.
    ``phase``: not looked at where a script has none.
    """

    status: str
    kind: str | None = None
    detail: str | int | None = None
    says: str = ""
    signature: str = ""
    rank: int | None = 1
    phase: str = "run"
    why: str = ""

    @property
    def words(self) -> str:
        """As a cell of the table."""
        if self.kind is None:
            return self.status
        detail = "" if self.detail is None else f" {self.detail}"
        rank = "a rank that waited" if self.rank is None else f"rank {self.rank}"
        return f"{self.status}: {rank}, {self.kind}{detail}"


@dataclass(frozen=True)
class RankFault:
    """A part of ``support/rank_faults.py``, and what comes of it under the launchers that know, and ``elsewhere``."""

    part: str
    means: str
    outcome: Outcome
    elsewhere: Mapping[Launcher, Outcome] = field(default_factory=dict)
    hangs: bool = False
    restarts: int = 0

    def under(self, launcher: Launcher) -> Outcome:
        """What comes of it there."""
        return self.elsewhere.get(launcher, self.outcome)

    @property
    def name(self) -> str:
        return self.part + ("-again" if self.restarts else "")


FAILED = "workload_failed"
PLAY_ALONE = "play_alone() at rank_faults.py"
MISSING = f"rank 1 is missing: {PLAY_ALONE}"
BUG = Outcome(FAILED, "exception", "ValueError", "rank 1 has a bug", "rank # has a bug (rank_faults.py in play_alone)")
SHARDS = "Timed out waiting for shard server"
OWN_LIMITS = "each rank has a deadline of its own"
LEFT = "ended itself with exit code 0 in"


def hung(says: str, *, why: str = "", signature: str = "timeout (rank_faults.py in play_alone)") -> Outcome:
    return Outcome("timeout", "timeout", None, says, signature, why=why)


def hung_elsewhere(why: str) -> dict[Launcher, Outcome]:
    return {"external": hung(PLAY_ALONE, why=why, signature="timeout (rank_faults.py in play")}


OF_A_SCRIPT = Outcome(
    *(FAILED, "exit_code", 0, f"{LEFT} run()", "exit code 0 in run() of a rank"), why="a script has no phases"
)
OF_SPAWN = Outcome(
    *(FAILED, "exception", "DistStoreError", "wait timeout", "DistStoreError: wait timeout"),
    rank=None,
    why="a process of the script has no rank before `init_process_group()`",
)

RANK_FAULTS = (
    RankFault("raises", "exception", BUG),
    RankFault(
        "raises_its_own_timeout",
        f'`TimeoutError("{SHARDS}")` of its own',
        Outcome(
            *(FAILED, "exception", "TimeoutError", f"rank 1: {SHARDS}"),
            f"TimeoutError: {SHARDS} (rank_faults.py in play_alone)",
        ),
    ),
    RankFault(
        "segfaults",
        "segmentation fault",
        Outcome(
            *(FAILED, "signal", "SIGSEGV", "ended by SIGSEGV"), "SIGSEGV in string_at (rank_faults.py in play_alone)"
        ),
    ),
    RankFault(
        "killed_by_another",
        "SIGKILL from outside, as from a kernel short of memory",
        Outcome(FAILED, "signal", "SIGKILL", "ended by SIGKILL", "SIGKILL in run() of a rank"),
    ),
    RankFault(
        "terminated_by_another",
        "SIGTERM from outside",
        Outcome(FAILED, "signal", "SIGTERM", ", which its agent had not sent", "SIGTERM in run() of a rank"),
    ),
    RankFault(
        "exits_3",
        "`os._exit(3)`",
        Outcome(FAILED, "exit_code", 3, "ended itself with exit code 3", "exit code 3 in run() of a rank"),
    ),
    RankFault(
        "leaves",
        "`os._exit(0)` in the middle",
        Outcome(FAILED, "exit_code", 0, "ended itself with exit code 0", "exit code 0 in run() of a rank"),
    ),
    RankFault(
        "leaves_before_init",
        "`os._exit(0)` before `init_process_group()`",
        Outcome(
            *("infrastructure_failed", "exit_code", 0, f"{LEFT} setup()", "exit code 0 in setup() of a rank"),
            phase="setup",
        ),
        {**dict.fromkeys(SCRIPTS, OF_A_SCRIPT), "spawn": OF_SPAWN},
    ),
    RankFault(
        "raises_late",
        "exception when the other ranks are done",
        Outcome(
            *(
                FAILED,
                "exception",
                "ValueError",
                "rank 1 has a late bug",
                "rank # has a late bug (rank_faults.py in run)",
            )
        ),
    ),
    RankFault(
        "gives_up",
        "the process group's own timeout passes, before the deadline",
        Outcome(FAILED, "exception", "RuntimeError", MISSING, f"rank # is missing: {PLAY_ALONE}"),
        hung_elsewhere(OWN_LIMITS),
    ),
    RankFault(
        "sleeps",
        "a hang before a collective",
        hung(MISSING),
        hung_elsewhere(f"{OWN_LIMITS}, so the others may end before theirs"),
        hangs=True,
    ),
    RankFault("blocked_with_the_gil", "a hang in C, with the GIL held", hung(PLAY_ALONE), hangs=True),
    RankFault("raises_once", "exception, and a restart that passes", Outcome("ok"), restarts=1),
    RankFault("raises", "exception, and again after a restart", BUG, restarts=1),
)


def as_markdown() -> str:
    lines = ["| rank 1 | is recorded as | where not |", "|---|---|---|"]
    for fault in RANK_FAULTS:
        others: dict[str, list[str]] = {}
        for launcher, other in fault.elsewhere.items():
            others.setdefault(f"{other.words} ({other.why})", []).append(LAUNCHERS[launcher])
        cells = [
            fault.means,
            fault.outcome.words,
            "; ".join(f"{', '.join(who)}: {what}" for what, who in others.items()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


#: Seconds in which all ranks are where one of them hangs; those that are forks have imported torch already.
TO_HANG = 40
TO_HANG_IN_FORKS = 12

#: Deadline of the others. Under an outer launcher, a rank that sleeps has one of its own.
TO_END = 150
EXTERNAL = 25

#: Of one there are none; in the other, the ranks that are started again look for the addresses of the first ones.
NO_RESTARTS = ("spawn", "accelerate line")

FIXTURE = """
import pytest

@pytest.mark.parametrize("part", {parts})
def test_script(aorta_torchrun, part):
    aorta_torchrun("rank_faults.py", part, nproc=3, max_restarts={restarts}, timeout={deadline})
"""

COMMANDS: dict[str, str] = {
    "nproc": "python rank_faults.py {parts}",
    "torchrun line": "torchrun --standalone --nproc-per-node 3 --max-restarts {restarts} rank_faults.py {parts}",
    "accelerate line": (
        "accelerate launch --multi_gpu --num_processes 3 --num_machines 1 --mixed_precision no --dynamo_backend no "
        "--main_process_port 0 --max_restarts {restarts} rank_faults.py {parts}"
    ),
    "spawn": "python rank_faults.py {parts} --spawn",
}


def records_of(stage: Stage, launcher: Launcher, faults: Sequence[RankFault], name: str) -> list[dict[str, Any]]:
    """Run a trial with each fault, all in one run; their records. ``name`` is that of the results directory."""
    parts, restarts = ".".join(fault.part for fault in faults), faults[0].restarts
    arguments: list[str] = ["--aorta-results-dir", name]
    if launcher == "script":
        text = FIXTURE.format(parts=[fault.part for fault in faults], restarts=restarts, deadline=deadline(faults[0]))
        stage.write_file(f"test_{name}.py", text)
        stage.run(f"test_{name}.py", *arguments)
        trials = {path.split("/")[0].rpartition("@")[2]: trial for path, trial in stage.trials(name).items()}
        return [trials[fault.part] for fault in faults]
    seconds = TO_HANG_IN_FORKS if faults[0].hangs and launcher == "auto" else deadline(faults[0])
    arguments += ["--aorta-trials", str(len(faults)), "--aorta-timeout", str(seconds)]
    if faults[0].hangs:
        arguments += ["--aorta-slots", str(len(faults))]
    if launcher in COMMANDS:
        arguments += ["--aorta-command", COMMANDS[launcher].format(parts=parts, restarts=restarts)]
        if restarts:  # https://github.com/pytorch/pytorch/issues/135712
            arguments += ["--aorta-extra-env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"]
        if launcher == "nproc":
            arguments += ["--aorta-nproc", "3", "--aorta-elastic", f"max_restarts={restarts}"]
    else:
        arguments += ["rank_faults.py::RankFaults", "--aorta-config", f"script={parts}", "--aorta-launcher", launcher]
        arguments += ["--aorta-elastic", f"max_restarts={restarts}"]
    stage.run(*arguments)
    return [trial for _, trial in sorted(stage.trials(name).items(), key=lambda each: int(each[1]["trial_index"]))]


def record_under_torchrun(stage: Stage, fault: RankFault) -> dict[str, Any]:
    """Of a trial in whose ranks pytest runs; there, a restart is one of pytest."""
    name = f"results-{fault.name}"
    torchrun = torchrun_command(3)
    torchrun.insert(torchrun.index("--standalone"), f"--max-restarts={fault.restarts}")
    stage.command(
        *(*torchrun, "rank_faults.py::RankFaults", "--aorta-config", f"script={fault.part}", "--aorta-trials", "1"),
        *("--aorta-timeout", str(EXTERNAL), "--aorta-launcher", "external", "--aorta-results-dir", name),
    )
    [record] = stage.trials(name).values()
    return record


def deadline(fault: RankFault) -> int:
    return TO_HANG if fault.hangs else TO_END


def differences(trial: dict[str, Any], expected: Outcome, launcher: Launcher) -> list[str]:
    failure = trial["failure"] or {}
    message = failure.get("message", "")
    detail = next((failure[key] for key in ("signal", "type", "exit_code") if failure.get(key) is not None), None)
    found: dict[str, tuple[Any, Any]] = {
        "status": (trial["exit_status"], expected.status),
        "kind": (failure.get("kind"), expected.kind),
    }
    signature = signature_of(trial)
    text = "" if signature is None else re.sub(r"(\.py):\d+| line #.*", r"\1", signature.text)
    if expected.kind is not None:
        blamed = [rank["rank"] for rank in trial["ranks"] if rank["blame"] == "cause"]
        found["detail"] = (detail, expected.detail)
        found["blame"] = (blamed, [] if expected.rank is None else [expected.rank])
        if expected.rank is not None:
            found["rank"] = (failure.get("rank"), expected.rank)
        if launcher not in SCRIPTS:
            found["phase"] = (failure.get("phase"), expected.phase)
    wrong = [f"{name} {got!r} instead of {wanted!r}" for name, (got, wanted) in found.items() if got != wanted]
    if expected.says not in message:
        wrong.append(f"does not say {expected.says!r}")
    if not text.startswith(expected.signature):
        wrong.append(f"is called {text!r} instead of {expected.signature!r}")
    return [*wrong, message] if wrong else []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_fault_of_a_rank_is_recorded_alike_under_every_launcher(
    stage: Stage, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.stage.PATIENCE", 900)  # for all faults in one run
    if launcher == "accelerate line":
        monkeypatch.setenv("PATH", f"{kept_environment('accelerate').parent}{os.pathsep}{os.environ['PATH']}")
    stage.copy(FAULTS)
    faults = [fault for fault in RANK_FAULTS if not (launcher in NO_RESTARTS and fault.restarts)]
    if launcher == "external":
        records = {fault.name: record_under_torchrun(stage, fault) for fault in faults}
    else:
        records = {}
        for name in ("ends", "hangs", "restarts"):
            alike = [
                fault
                for fault in faults
                if name == ("hangs" if fault.hangs else "restarts" if fault.restarts else "ends")
            ]
            if alike:
                found = records_of(stage, launcher, alike, f"results-{name}")
                records.update({fault.name: record for fault, record in zip(alike, found, strict=True)})

    wrong = {fault.name: differences(records[fault.name], fault.under(launcher), launcher) for fault in faults}
    assert {name: said for name, said in wrong.items() if said} == {}
    assert stage.left_running() == []


def test_the_table_of_the_documentation_is_this_one() -> None:
    assert as_markdown() in (ROOT / "docs" / "guides" / "distributed.md").read_text()
