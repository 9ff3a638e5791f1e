"""The matrix is written at most twice a second, and in at most one percent of the time since the run began."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processes import wait_until
from support.triage_facts import trials

from pytest_aorta.plugin import writer as matrix_writer
from pytest_aorta.plugin.writer import LARGEST_SUMMARY, MatrixWriter, append_to_summary
from pytest_aorta.triage.verdicts import Triage
from pytest_aorta.workspace.trial_store import TrialStore


class Times:
    """A clock that stands still but for the steps it is given, and for what each write takes."""

    def __init__(self, costs: list[float]) -> None:
        self.now = 0.0
        self.costs = costs
        self.writes: list[tuple[float, float]] = []

    def write(self, path: Path, text: str) -> None:
        if path.name == "matrix.json":
            cost = self.costs[len(self.writes) % len(self.costs)]
            self.writes.append((self.now, cost))
            self.now += cost


@given(
    costs=st.lists(st.floats(0.0001, 0.2), min_size=1, max_size=5),
    pauses=st.lists(st.floats(0.001, 3.0), min_size=1, max_size=200),
)
def test_writes_take_one_percent_at_most_and_are_half_a_second_apart(costs: list[float], pauses: list[float]) -> None:
    times, triage = Times(costs), Triage()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix_writer, "write_text", times.write)
        writer = MatrixWriter(triage, TrialStore(Path("none"), "stamp"), Path("none"), [], lambda: times.now)
        for pause in pauses:
            times.now += pause
            writer.trial_is_over()
    spent = 0.0
    for number, (at, cost) in enumerate(times.writes):
        before = times.writes[number - 1] if number else (0.0, 0.0)
        assert at - sum(before) >= 0.5 - 1e-9
        assert spent <= 0.01 * at + 1e-9
        spent += cost


def test_the_first_matrix_is_there_soon(tmp_path: Path) -> None:
    now, triage = [0.0], Triage()
    triage.add(trials("none", "F")[0])
    writer = MatrixWriter(triage, TrialStore(tmp_path, "stamp"), tmp_path, [], lambda: now[0])
    writer.trial_is_over()
    assert not list(tmp_path.iterdir())
    now[0] = 0.6
    writer.trial_is_over()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["matrix.json", "matrix.md"]


#: Writes for ever; the share of the time is as large as it can be.
_WRITES = """
import sys
from itertools import count
from pathlib import Path
from support.triage_facts import trials
from pytest_aorta.plugin.writer import MatrixWriter
from pytest_aorta.triage.verdicts import Triage
from pytest_aorta.workspace.trial_store import TrialStore

folder, triage = Path(sys.argv[1]), Triage()
clock = count(step=1000.0)
writer = MatrixWriter(triage, TrialStore(folder, "stamp"), folder, [], lambda: next(clock))
for facts in trials("none", "F." * 100_000):
    triage.add(facts)
    writer.trial_is_over()
"""


def test_a_kill_in_the_middle_of_a_write_leaves_the_matrix_before(tmp_path: Path) -> None:
    for number in range(2):
        process = subprocess.Popen([sys.executable, "-c", _WRITES, tmp_path], cwd=Path(__file__).parents[2])
        for _ in range(2 + number):
            wait_until(functools.partial(differs, tmp_path, read(tmp_path)))
        process.kill()
        process.wait()
        [cell] = matrix_cells(tmp_path)
        assert cell["seen"] == sum(map(len, cell["trials"].values())) > 0
    store = TrialStore(tmp_path, "later")
    MatrixWriter(triage := Triage(), store, tmp_path, [], lambda: 0.0).finish(triage.table(), None)
    assert not list(tmp_path.glob(".*.tmp"))


def read(folder: Path) -> str:
    file = folder / "matrix.json"
    return file.read_text() if file.exists() else ""


def differs(folder: Path, text: str) -> bool:
    return read(folder) != text


def matrix_cells(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads(read(folder))["cells"])


def test_the_summary_of_a_step_never_grows_beyond_what_is_shown(tmp_path: Path) -> None:
    summary, line = tmp_path / "summary.md", "| " + "x" * 97 + "\n"
    for _ in range(3):
        append_to_summary(summary, line * 6000)
    text = summary.read_text()
    assert LARGEST_SUMMARY - 1000 < len(text) <= LARGEST_SUMMARY
    assert set(text.splitlines()) == {
        "",
        line.strip("\n"),
        "The rest is in `matrix.md`: the summary of a step has no more room.",
    }
