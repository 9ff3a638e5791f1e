"""``-s``: what trials print is on the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stage import Stage

from pytest_aorta.plugin.trial_item import LogStream

TALKS = """
import os, sys

class Talks:
    def __init__(self, config): pass
    def setup(self): print("in setup", os.environ.get("WORD"))
    def run(self):
        print("in run \\x1b[2J", file=sys.stderr)
        return {"passed": True}
    def cleanup(self): print("in cleanup")
"""


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["fork", pytest.param("none", marks=pytest.mark.long)])
def test_the_output_of_a_trial_is_shown_once_and_no_earlier_one(stage: Stage, isolation: str) -> None:
    stage.write(talks=TALKS)
    stage.run("talks.py", "--aorta-extra-env=WORD=monday")
    options = ("--aorta-trials=2", "--aorta-isolation", isolation, "--aorta-extra-env=WORD=tuesday")
    result = stage.run("talks.py", "-s", *options)
    text = result.stdout.str() + result.stderr.str()
    shown = [text.count(words) for words in ("in setup tuesday", "in run", "in cleanup", "monday")]
    assert shown == [2, 2, 2, 0]
    if isolation != "none":  # where the workload itself writes to the terminal
        assert "\x1b[2J" not in text


def test_a_log_is_followed_across_pieces_of_characters_and_cuts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stderr.log").write_text("earlier")
    stream = LogStream(tmp_path, begun=False)
    with (tmp_path / "stdout.log").open("wb", buffering=0) as log:
        log.write("ü".encode()[:1])
        log.write("ü".encode()[1:] + b"\n")
    stream.close()
    assert capfd.readouterr().out == "ü\n"
