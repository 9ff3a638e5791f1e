"""In worlds in which one knows what makes trials fail, hardly anything false is said."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import barnard_exact

from benchmarks.simulate_triage import main
from benchmarks.simulated_worlds import barnard, simulate, worlds

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "statistics.md"
WORLDS = {world.name: world for group in worlds().values() for world in group}

#: One of each kind that takes little time.
QUICK = (
    "runs of 5 of each cell, 30%, 20 trials",
    "one event, 2 cells, 30%",
    "drift 0 to 90 %, cell after cell",
    "bad device, 2 cells, coinciding",
    "bad host of 2, jobs of one cell",
    "early deaths hide all failures of a cell",
    "exchange of nan for a hang",
    "a second bug uncovered",
    "bursts of each of 4 cells, 30 rounds",
    "as fast, wandering by 10 %, ten of a cell by turns, 20 rounds",
    "the seed decides, 19 of 30 in each of 3 cells",
    "NaN in 20 of 20 hid a crash in 18 of 20",
    "time-outs come before NaN in 60 %, 20 rounds",
    "the first trial of each cell fails, 10% of the others",
    "slow drift of all cells, 40 rounds, one of four cures",
    "bursts over the run, 30 rounds, one of four cures",
    "two bad hosts of eight, 24 trials, one of four cures",
    "10 % slower, every tenth trial a straggler, 20 rounds",
    "8 % slower, warm-up over 20 rounds",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow, pytest.mark.long]) for name in WORLDS]
)
def test_what_is_said_of_any_world_is_true_and_what_acts_is_found(name: str) -> None:
    # 5 % are allowed; of 40 triages, more than 5 would be false then in one test of a hundred.
    triages, most = (40, 5) if name in QUICK else (100, 10)
    seen = simulate(WORLDS[name], range(triages))
    assert seen.wrong <= most, (seen.what, seen.example)
    if name in QUICK[-5:]:  # about as often as by a test that knows the world
        assert seen.best >= 20
        assert seen.found >= 0.8 * seen.best


def test_the_page_has_all_worlds() -> None:
    tables = re.findall(r"<!-- simulation: (.+?) -->\n(.*?)<!-- end", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in tables] == [*worlds()]
    for name, table in tables:
        rows = re.findall(r"^\| (.+?) \| \*\*([\d.]+)%", table, re.MULTILINE)
        assert [row for row, _ in rows] == [world.name for world in worlds()[name]]
        assert all(float(wrong) <= 10 for _, wrong in rows)


@pytest.mark.slow
@pytest.mark.long
def test_the_tables_are_made_by_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "statistics.md"
    page.write_text(re.sub(r"(<!-- simulation: .*? -->).*?(<!-- end)", r"\1\n\2", PAGE.read_text(), flags=re.DOTALL))
    monkeypatch.setattr("sys.argv", ["simulate_triage", "--triages", "2", "--page", str(page), "--processes", "2"])
    assert main() == 0
    assert page.read_text().count("\n| ") == PAGE.read_text().count("\n| ")


@pytest.mark.parametrize(("failures", "trials", "base", "base_trials"), [(0, 20, 5, 20), (3, 12, 9, 15), (7, 7, 2, 9)])
def test_barnard_as_scipy_has_it(failures: int, trials: int, base: int, base_trials: int) -> None:
    table = np.array([[failures, base], [trials - failures, base_trials - base]])
    expected = barnard_exact(table, n=64).pvalue
    assert barnard(trials, base_trials)[failures, base] == pytest.approx(expected, rel=0.02)
