"""The same fault of a rank is recorded alike under every launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rank_fault_table import LAUNCHERS, RANK_FAULTS, Launcher, Outcome, RankFault, as_markdown
from support.stage import Stage, torchrun_command

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "tests" / "support" / "rank_faults.py"

#: Seconds in which all ranks are where one of them hangs.
TO_HANG: dict[Launcher, int] = {"auto": 20, "torchrun": 25, "script": 25, "external": 20}

#: Deadline of the others. Under an outer launcher, a rank that sleeps has one of its own.
TO_END = {**dict.fromkeys(LAUNCHERS, 100), "external": 25}

SCRIPT = """
def test_script(aorta_torchrun):
    aorta_torchrun("rank_faults.py", "{part}", nproc=3, max_restarts={restarts}, timeout={deadline})
"""


def record_of(stage: Stage, launcher: Launcher, fault: RankFault) -> dict[str, Any]:
    """Run a trial with the fault; its record."""
    stage.copy(FAULTS)
    deadline = (TO_HANG if fault.hangs else TO_END)[launcher]
    if launcher == "script":
        stage.write_file("test_script.py", SCRIPT.format(part=fault.part, restarts=fault.restarts, deadline=deadline))
        stage.run("test_script.py")
    else:
        arguments = [
            *("rank_faults.py::RankFaults", "--aorta-config", f"script={fault.part}", "--aorta-trials", "1"),
            *("--aorta-timeout", str(deadline), "--aorta-launcher", launcher),
        ]
        if launcher == "external":  # there, a restart is one of pytest
            torchrun = torchrun_command(3)
            torchrun.insert(torchrun.index("--standalone"), f"--max-restarts={fault.restarts}")
            stage.command(*torchrun, *arguments)
        else:
            stage.run(*arguments, "--aorta-elastic", f"max_restarts={fault.restarts}")
    [record] = stage.trials().values()
    return record


def differences(trial: dict[str, Any], expected: Outcome, launcher: Launcher) -> list[str]:
    """What a record says otherwise."""
    failure = trial["failure"] or {}
    message = failure.get("message", "")
    detail = next((failure[key] for key in ("signal", "type", "exit_code") if failure.get(key) is not None), None)
    found: dict[str, tuple[Any, Any]] = {
        "status": (trial["exit_status"], expected.status),
        "kind": (failure.get("kind"), expected.kind),
    }
    if expected.kind is not None:
        blamed = [rank["rank"] for rank in trial["ranks"] if rank["blame"] == "cause"]
        found["detail"] = (detail, expected.detail)
        found["blame"] = (blamed, [] if expected.rank is None else [expected.rank])
        if expected.rank is not None:
            found["rank"] = (failure.get("rank"), expected.rank)
        if launcher != "script":
            found["phase"] = (failure.get("phase"), expected.phase)
    wrong = [f"{name} {got!r} instead of {wanted!r}" for name, (got, wanted) in found.items() if got != wanted]
    if expected.says not in message:
        wrong.append(f"does not say {expected.says!r}")
    return [*wrong, message] if wrong else []


@pytest.mark.slow
@pytest.mark.parametrize("fault", RANK_FAULTS, ids=lambda fault: fault.part + ("-again" if fault.restarts else ""))
@pytest.mark.parametrize("launcher", ["auto", *(pytest.param(name, marks=pytest.mark.long) for name in LAUNCHERS[1:])])
def test_a_fault_of_a_rank_is_recorded_alike_under_every_launcher(
    stage: Stage, launcher: Launcher, fault: RankFault
) -> None:
    trial = record_of(stage, launcher, fault)

    assert differences(trial, fault.under(launcher), launcher) == []
    assert stage.left_running() == []


def test_the_table_of_the_documentation_is_this_one() -> None:
    assert as_markdown() in (ROOT / "docs" / "distributed.md").read_text()
