"""The same fault of a rank is recorded alike under every launcher."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rank_fault_table import LAUNCHERS, RANK_FAULTS, SCRIPTS, Launcher, Outcome, RankFault, as_markdown
from support.pip_environments import kept_environment
from support.stage import Stage, torchrun_command

from pytest_aorta.triage.signatures import signature_of

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "tests" / "support" / "rank_faults.py"

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
    """What a record says otherwise."""
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
@pytest.mark.parametrize(
    "launcher", ["auto", *(pytest.param(name, marks=pytest.mark.long) for name in [*LAUNCHERS][1:])]
)
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
    assert as_markdown() in (ROOT / "docs" / "distributed.md").read_text()
