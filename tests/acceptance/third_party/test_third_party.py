"""Scripts as people have them, on the lines that they start them with: what went wrong is named.

Those that need packages of others are run by hand: `pytest tests/acceptance/third_party -m long`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.pip_environments import kept_environment
from support.stage import PYTEST, Stage

SCRIPTS = Path(__file__).parent / "scripts"

TORCHRUN = "torchrun --standalone --nproc-per-node 2"
ACCELERATE = (
    "accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no "
    "--main_process_port 0"
)
OPS = "accelerate.test_utils.scripts.test_ops"


@dataclass(frozen=True)
class Line:
    """A command, and what its trial has to say.

    Attributes:
        what: type of the exception, name of the signal, or kind of the failure.
        rank: that is the cause; ``None`` of a command without ranks.
    """

    command: str
    status: str = "ok"
    what: str | None = None
    says: str = ""
    rank: int | None = None
    detected: str | None = None


OF_TORCH = (
    Line("python mnist.py --broken-sample", "workload_failed", "KeyError", "KeyError in DataLoader worker"),
    Line("python mnist.py --device cuda", "infrastructure_failed", "AssertionError", "CUDA"),
    Line("python nanogpt.py --learning_rate=1e30", detected="nan"),
    Line(f"{TORCHRUN} nanogpt.py --broken_rank=1", "workload_failed", "IndexError", "index 50257", 1),
    Line("python imagenet.py --multiprocessing-distributed", "ok"),
    Line(
        "python imagenet.py --multiprocessing-distributed --fault image --dist-url tcp://127.0.0.1:23457",
        *("workload_failed", "OSError", "n01440764_190.JPEG", 1),
    ),
    Line(
        "python imagenet.py --multiprocessing-distributed --fault hang --dist-url tcp://127.0.0.1:23458",
        *("timeout", "timeout", "rank 1 is missing: go_wrong() at imagenet.py", 1),
    ),
)

OF_PACKAGES = (
    Line("python hf_trainer.py", "ok"),
    Line("python hf_trainer.py nan", detected="nan"),
    Line(f"{TORCHRUN} hf_trainer.py column", "workload_failed", "KeyError", "input_ids", 1),
    Line(f"{ACCELERATE} hf_trainer.py column", "workload_failed", "KeyError", "input_ids", 1),
    Line("python hf_hub.py", "workload_failed", "OSError", "couldn't connect"),
    Line("python accelerate_loop.py plain", "workload_failed", "AssertionError", "no pad token, plain"),
    Line(f"{ACCELERATE} accelerate_loop.py launched", "workload_failed", "AssertionError", "no pad token, launched", 1),
    Line(f"{TORCHRUN} accelerate_loop.py hang", "timeout", "timeout", "rank 1 is missing: accelerate_loop.py line", 1),
    Line(f"{ACCELERATE} -m {OPS}", "ok"),
    Line("python lightning_bug_report.py nan", detected="nan"),
    Line("python lightning_bug_report.py bug", "workload_failed", "RuntimeError", "expected scalar type Float"),
    Line("python lightning_bug_report.py bug ddp", "workload_failed", "RuntimeError", "expected scalar type Float", 1),
    Line("python lightning_bug_report.py kill ddp", "workload_failed", "SIGKILL", "SIGKILL", 1),
    Line(f"{TORCHRUN} lightning_bug_report.py bug ddp", "workload_failed", "RuntimeError", "expected scalar type", 1),
)


def differences(record: dict[str, Any], line: Line) -> list[str]:
    failure = record["failure"] or {}
    what = next((failure[key] for key in ("signal", "type", "kind") if failure.get(key)), None)
    found: dict[str, tuple[Any, Any]] = {"status": (record["exit_status"], line.status), "what": (what, line.what)}
    if line.rank is not None:
        found["rank"] = (failure.get("rank"), line.rank)
        found["blame"] = ([rank["rank"] for rank in record["ranks"] if rank["blame"] == "cause"], [line.rank])
    wrong = [f"{name} {got!r} instead of {wanted!r}" for name, (got, wanted) in found.items() if got != wanted]
    message = failure.get("message") or ""
    if line.says not in message:
        wrong.append(f"does not say {line.says!r}")
    detected = record["result"].get("output", {}).get("detected", {})
    if line.detected is not None and line.detected not in detected:
        wrong.append(f"has not seen {line.detected}, only {list(detected)}")
    return [*wrong, message] if wrong else []


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.stage.PATIENCE", 900)  # for all lines in one run


def assert_named(stage: Stage, lines: tuple[Line, ...], *python: str) -> None:
    for script in SCRIPTS.glob("*.py"):
        stage.copy(script)
    commands = [word for line in lines for word in ("--aorta-command", line.command)]
    stage.command(
        *(*(python or PYTEST[:1]), *PYTEST[1:], *commands),
        *("--aorta-trials", "1", "--aorta-timeout", "90", "--aorta-slots", "3"),
        env={"HF_HUB_OFFLINE": "1", **({"PATH": f"{Path(python[0]).parent}:/usr/bin:/bin"} if python else {})},
    )
    records = {record["config"]["command"]: record for record in stage.trials().values()}

    wrong = {line.command: differences(records[line.command], line) for line in lines}
    assert {command: said for command, said in wrong.items() if said} == {}
    assert stage.left_running() == []


@pytest.mark.slow
@pytest.mark.long
def test_what_went_wrong_in_scripts_of_torch_is_named(stage: Stage) -> None:
    assert_named(stage, OF_TORCH)


@pytest.mark.slow
@pytest.mark.long
def test_what_went_wrong_in_scripts_of_transformers_accelerate_and_lightning_is_named(stage: Stage) -> None:
    assert_named(stage, OF_PACKAGES, str(kept_environment("transformers", "accelerate", "lightning")))
