"""What a failed trial says: the failure, the ends of its logs, and how to run it again."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_aorta.plugin.failures import failure_text, tail_of
from pytest_aorta.trials.result import ExecutionEnv, Failure, ResultRecord, TrialResult
from pytest_aorta.workspace.paths import TrialPaths, trial_paths

PLACE: TrialPaths = trial_paths("fsdp", None, 3)
NODE_ID = "aorta::fsdp[local-none-3]"


def item() -> pytest.Item:
    """As much of an item as is looked at."""
    config = SimpleNamespace(
        option=argparse.Namespace(), rootpath=Path("/"), invocation_params=SimpleNamespace(dir=Path("/"))
    )
    return cast(pytest.Item, SimpleNamespace(nodeid=NODE_ID, config=config))


def record(status: str = "workload_failed", **fields: Any) -> TrialResult:
    data: dict[str, Any] = {
        "trial_id": "fsdp_d0_m0_t3",
        "workload": "fsdp",
        "cell": "local-none",
        "trial_index": 3,
        "execution_env": ExecutionEnv(kind="local", name="local", source_package="test"),
        "mitigations_applied": ["none"],
        "config": {},
        "env": {},
        "result": ResultRecord(passed=status == "ok"),
        "wall_clock_sec": 1.0,
        "exit_status": status,
        "failure": Failure(phase="run", kind="result", message="run() returned passed=False"),
        "started_at": "now",
        "host": "here",
        **fields,
    }
    return TrialResult(**data)


def text_of(trial: TrialResult, results: Path) -> list[str]:
    return failure_text(trial, PLACE.file_in(results), item()).splitlines()


def test_the_cause_of_a_failed_rank_is_shown_once(tmp_path: Path) -> None:
    failure = Failure(phase="run", kind="exception", type="ValueError", rank=1, message="rank 1: boom")
    details = [{"rank": rank, "kind": "exception", "message": "boom"} for rank in (1, 2)]

    lines = text_of(record(failure=failure, result=ResultRecord(passed=False, failure_details=details)), tmp_path)

    assert lines[:2] == [
        "workload_failed in run: ValueError: rank 1: boom",
        "- rank: 2, kind: exception, message: boom",
    ]


@pytest.mark.parametrize(("wanted", "shown"), [("all", 2), ("stdout", 1), ("stderr", 1), ("log", 0), ("no", 0)])
def test_show_capture_decides_which_logs_are_shown(tmp_path: Path, wanted: str, shown: int) -> None:
    folder = PLACE.file_in(tmp_path).parent / "trial_3"
    folder.mkdir(parents=True)
    artifacts = {name: f"trial_3/{name}.log" for name in ("stdout", "stderr")}
    for name in artifacts:
        (folder / f"{name}.log").write_text("a line\n")
    asked = item()
    asked.config.option.showcapture = wanted
    text = failure_text(record(artifacts=artifacts), PLACE.file_in(tmp_path), asked)
    assert text.count("a line") == text.count("--- end of") == shown
    assert wanted == "all" or f"end of {wanted}" in text or not shown


def test_a_stack_dump_ends_where_the_runner_begins(tmp_path: Path) -> None:
    log = tmp_path / "stacks.log"
    log.write_text(
        "Current thread 0x00007f (most recent call first):\n"
        '  File "/home/me/fsdp.py", line 12 in run\n'
        '  File "/site-packages/pytest_aorta/trials/lifecycle.py", line 70 in _phase\n'
        '  File "<string>", line 1 in <module>\n'
        "Thread 0x00007e (most recent call first):\n"
        '  File "/home/me/loader.py", line 3 in load\n'
    )

    assert tail_of(log) == [
        "Current thread 0x00007f (most recent call first):",
        '  File "/home/me/fsdp.py", line 12 in run',
        "Thread 0x00007e (most recent call first):",
        '  File "/home/me/loader.py", line 3 in load',
    ]
