"""Where a program is, by the stacks that it gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_aorta.cli.activity import place_in

LIB = "/usr/lib/python3.11"


def thread(*frames: tuple[str, int, str], current: bool = False) -> str:
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
    return "\n".join([f"{'Current thread' if current else 'Thread'} 0x00007f (most recent call first):", *lines, ""])


@pytest.mark.parametrize(
    ("stacks", "place"),
    [
        (
            thread((f"{LIB}/threading.py", 327, "wait"), (f"{LIB}/queue.py", 171, "get"), ("TRAIN", 2, "work")),
            "in queue.get at train.py:2",
        ),
        (thread(("TRAIN", 3, "<module>")), "in time.sleep(40) at train.py:3"),
        (
            thread(
                (f"{LIB}/site-packages/torch/__init__.py", 9, "<module>"),
                ("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed"),
                ("TRAIN", 1, "<module>"),
            ),
            "in import torch",
        ),
        (
            thread(
                (f"{LIB}/site-packages/torch/nn/functional.py", 9, "<module>"),
                ("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed"),
            ),
            "in import torch",
        ),
        (
            thread((f"{LIB}/queue.py", 171, "get"), ("TRAIN", 2, "work"))
            + thread((f"{LIB}/threading.py", 1119, "join"), ("TRAIN", 4, "<module>"), current=True),
            "in queue.get at train.py:2",
        ),
        ("", ""),
    ],
)
def test_the_place_is_the_innermost_line_of_the_users_code(tmp_path: Path, stacks: str, place: str) -> None:
    train = tmp_path / "train.py"
    train.write_text("import torch\nqueue.Queue().get()\ntime.sleep(40)\nthread.join()\n")
    assert place_in(stacks.replace("TRAIN", str(train))) == place
