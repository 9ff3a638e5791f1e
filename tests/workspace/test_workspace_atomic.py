"""A file of results is absent or complete."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_aorta.workspace.atomic import write_json


@pytest.mark.parametrize(
    "data", [math.nan, {"a": [math.inf]}, object(), {"a": {1}}], ids=lambda data: type(data).__name__
)
def test_what_is_no_strict_json_changes_nothing(tmp_path: Path, data: object) -> None:
    write_json(tmp_path / "trial_0.json", "old")

    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "trial_0.json", data)

    assert json.loads((tmp_path / "trial_0.json").read_text()) == "old"
    assert os.listdir(tmp_path) == ["trial_0.json"]


@pytest.mark.parametrize("step", ["fchmod", "fsync", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=repr)
def test_an_interruption_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    write_json(tmp_path / "trial_0.json", "old")

    def interrupted(*arguments: Any) -> NoReturn:
        raise error

    monkeypatch.setattr(os, step, interrupted)
    with pytest.raises(type(error)):
        write_json(tmp_path / "trial_0.json", "new")
    monkeypatch.undo()

    assert json.loads((tmp_path / "trial_0.json").read_text()) == "old"
    assert os.listdir(tmp_path) == ["trial_0.json"]


_WRITER = """
import sys
from collections.abc import Callable
from pathlib import Path
from pytest_aorta.workspace.atomic import write_json
print("ready", flush=True)
size = 0
while True:
    size = (size + 977) % 20000
    write_json(Path(sys.argv[1]), {"size": size, "data": [size] * size})
"""


def test_a_reader_never_sees_a_torn_file_while_a_writer_writes(tmp_path: Path) -> None:
    path = tmp_path / "trial_0.json"
    write_json(path, {"size": 0, "data": []})
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        sizes: set[int] = set()
        while len(sizes) < 30:
            content = json.loads(path.read_text())
            assert content["data"] == [content["size"]] * content["size"]
            sizes.add(content["size"])
            assert writer.poll() is None
        writer.kill()

    content = json.loads(path.read_text())
    assert content["data"] == [content["size"]] * content["size"]
