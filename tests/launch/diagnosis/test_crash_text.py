from __future__ import annotations

from pathlib import Path

import pytest

from pytest_aorta.launch.diagnosis.traces import crash_text

STACKS = 'Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File "a.py", line 1 in run'


@pytest.mark.parametrize(
    ("log", "text"),
    [
        ("", None),
        ("step 3, loss 0.5\n", None),
        (f"step 3, loss 0.5\n{STACKS}\n", STACKS),
        (f"free(): invalid pointer\n{STACKS}\n", f"free(): invalid pointer\n{STACKS}"),
        (
            f"terminate called after throwing an instance of 'E'\n  what():  no\nframe #0: f\n{STACKS}\n",
            f"terminate called after throwing an instance of 'E'\n  what():  no\n{STACKS}",
        ),
        (
            "Memory access fault by GPU node-1. Reason: Unknown.\n",
            "Memory access fault by GPU node-1. Reason: Unknown.",
        ),
        (f"{STACKS}\n{STACKS}, again\n", f"{STACKS}, again"),
        (f"[rank1]: {STACKS}\n", f"[rank1]: {STACKS}"),
    ],
)
def test_what_a_process_has_written_as_it_crashed(tmp_path: Path, log: str, text: str | None) -> None:
    path = tmp_path / "stderr.log"
    path.write_text(log)
    assert crash_text(path) == text


def test_words_of_long_before_are_not_those_of_the_crash(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_text("free(): a word of the workload's\n" + "step\n" * 100 + STACKS)
    assert crash_text(path) == STACKS
